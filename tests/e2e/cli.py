"""The real command line in processes of its own, with a home of its own.

with machine_of_its_own("--no-local-node") as makeway:
    makeway("get", "nodes")
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil

from makeway.client import Client, Resource, embedded
from makeway.client.resource import PODS, Object

WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
PREEMPTIONS = Resource("makeway.dev", "v1alpha1", "preemptions")
T = TypeVar("T")
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


class Makeway:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {k: v for k, v in os.environ.items() if k not in ("KUBECONFIG", "MAKEWAY_HOME")}
        self.env |= {"MAKEWAY_HOME": str(home), "NO_COLOR": "1"}

    def __call__(
        self, *arguments: str, code: int = 0, timeout_s: float = 90, cwd: Path | None = None
    ) -> str:
        """What it printed, after it ended with the code that was expected."""
        done = self.run(*arguments, timeout_s=timeout_s, cwd=cwd)
        said = f"makeway {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == code, said
        return done.stdout if code == 0 else done.stderr

    def run(
        self, *arguments: str, timeout_s: float = 90, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "makeway.cli.main", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=self.env,
            cwd=cwd,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def items(self, resource: Resource) -> list[Object]:
        """All objects of a kind, asked for directly: to look often, a process each time is too slow."""

        async def ask() -> list[Object]:
            token = (self.home / "token").read_text().strip()
            async with Client(embedded(self.home / "api.sock", token)) as client:
                return await client.list(resource)

        return asyncio.run(ask())

    def log_of(self, pod: Object) -> str:
        folder = self.home / "logs" / pod["metadata"]["uid"]
        return "".join(file.read_text() for file in sorted(folder.glob("*.log")))

    def until(self, what: str, look: Callable[[], T | None], within_s: float = 30) -> T:
        deadline = time.monotonic() + within_s
        while True:
            found = look()
            if found:
                return found
            assert time.monotonic() < deadline, f"never happened: {what}\n{self('status')}"
            time.sleep(0.1)

    def running(self, label: str) -> Object | None:
        """The pod with this label that runs, if there is one."""
        for pod in self.items(PODS):
            key, _, value = label.partition("=")
            labels = pod["metadata"].get("labels") or {}
            leaving = pod["metadata"].get("deletionTimestamp")
            if labels.get(key) == value and pod["status"]["phase"] == "Running" and not leaving:
                return pod
        return None

    def pid_of(self, pod: Object) -> int:
        folder = self.home / "pods" / pod["metadata"]["uid"] / "containers"
        written = self.until(
            "the process was started", lambda: sorted(folder.glob("*/*/started.json"))
        )
        return int(json.loads(written[-1].read_text())["pid"])


@contextlib.contextmanager
def a_home() -> Iterator[Path]:
    # Short: a Unix socket's path has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="mw-e2e-"))
    try:
        yield folder / "home"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def machine_of_its_own(*options: str) -> Iterator[Makeway]:
    with a_home() as home:
        makeway = Makeway(home)
        try:
            makeway("up", "--detach", *options)
            yield makeway
        finally:
            makeway("down")


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def processes_about(mark: str) -> list[list[str]]:
    """Processes whose command line or folder names something; this one excepted."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and any(
                mark in text for text in [*process.cmdline(), process.cwd()]
            ):
                found.append(process.cmdline())
    return found
