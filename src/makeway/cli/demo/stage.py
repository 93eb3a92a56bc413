"""What every demo stands on: a makeway of its own in a temporary home, questions with a deadline, and a clean end.

Whatever happens (the end, an error, Ctrl-C, a closed terminal), `stage()` stops its makeway, makes sure that no process of it
is left, and removes the home.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from makeway.cli import up
from makeway.cli.apply import apply_one
from makeway.cli.demo.timeline import Timeline
from makeway.cli.discovery import Served, served
from makeway.cli.home import Home
from makeway.cli.manifests import Manifest, read
from makeway.cli.output import out
from makeway.client import ApiError, Client, Resource, embedded
from makeway.client.resource import JOBS, PODS
from makeway.errors import UserError

Object = dict[str, Any]
T = TypeVar("T")
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
PREEMPTIONS = Resource("makeway.dev", "v1alpha1", "preemptions")
_LOOK_EVERY_S = 0.05
_STEP_WITHIN_S = 15.0
_STOP_WITHIN_S = 10.0


class DemoFailed(UserError):
    """A step that the demo promises did not happen."""


class Stage:
    """A running makeway, seen through its API."""

    def __init__(self, home: Home, client: Client, timeline: Timeline) -> None:
        self.home = home
        self.client = client
        self.timeline = timeline
        self._kinds: Served | None = None

    async def apply(
        self, *files: Path, change: Callable[[Object], Object] = lambda obj: obj
    ) -> None:
        """Apply files as they are, or with the one change that the demo's text names."""
        if self._kinds is None:
            self._kinds = await served(self.client)
        for manifest in read([str(file) for file in files]):
            changed = Manifest(obj=change(manifest.obj), where=manifest.where)
            await apply_one(self.client, self._kinds, changed)

    async def until(
        self,
        what: str,
        look: Callable[[], Awaitable[T | None]],
        within_s: float = _STEP_WITHIN_S,
    ) -> T:
        """Look again and again until there is an answer."""
        with out.progress(f"{what}…"):
            try:
                async with asyncio.timeout(within_s):
                    while True:
                        found = await look()
                        if found is not None and found is not False:
                            return found
                        await asyncio.sleep(_LOOK_EVERY_S)
            except TimeoutError:
                raise DemoFailed(
                    f"the demo waited {within_s:.0f} s for this, and it did not happen: {what}."
                ) from None

    # -- questions --

    async def pods_of(self, namespace: str, selector: str) -> list[Object]:
        return await self.client.list(PODS, namespace, label_selector=selector)

    async def running_pod(self, namespace: str, selector: str) -> Object | None:
        for pod in await self.pods_of(namespace, selector):
            if is_running(pod):
                return pod
        return None

    async def workload(self, namespace: str, owner: str) -> Object | None:
        """The Workload of a job (or of a pod group, which has its name)."""
        for one in await self.client.list(WORKLOADS, namespace):
            owners = one["metadata"].get("ownerReferences") or []
            if one["metadata"]["name"] == owner or any(o["name"] == owner for o in owners):
                return one
        return None

    async def preempted(self, namespace: str, owner: str) -> Object | None:
        """The condition with which it was told to stop."""
        return condition(await self.workload(namespace, owner), "Preempted", "True")

    async def job_condition(self, namespace: str, name: str, kind: str) -> bool:
        job = await self.client.get(JOBS, name, namespace)
        return condition(job, kind, "True") is not None

    async def preemption_of(self, victim: str) -> Object | None:
        """The record of the eviction of a workload or pod, by namespace/name."""
        for one in await self.client.list(PREEMPTIONS):
            for evicted in one["spec"]["victims"]:
                if evicted["workload"] == victim:
                    return one
        return None

    def process_of(self, pod: Object) -> int | None:
        """The number of the pod's process; None on a pretended node."""
        folder = self.home.path / "pods" / pod["metadata"]["uid"] / "containers"
        for written in sorted(folder.glob("*/*/started.json"), reverse=True):
            with contextlib.suppress(OSError, msgspec.DecodeError, KeyError):
                return int(msgspec.json.decode(written.read_bytes())["pid"])
        return None

    async def process(self, pod: Object) -> int:
        async def look() -> int | None:
            return self.process_of(pod)

        return await self.until(f"{pod['metadata']['name']} has a process", look)

    async def process_ended(self, pid: int) -> None:
        async def look() -> bool:
            return not alive(pid)

        await self.until(f"process {pid} has ended", look)

    async def log_of(self, pod: Object) -> str:
        metadata = pod["metadata"]
        path = PODS.path(metadata["namespace"], metadata["name"], "log")
        try:
            return (await self.client.raw("GET", path, accept="*/*")).decode(errors="replace")
        except ApiError:
            return ""


def is_running(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") == "Running" and not pod["metadata"].get(
        "deletionTimestamp"
    )


def condition(obj: Object | None, kind: str, status: str) -> Object | None:
    for one in ((obj or {}).get("status") or {}).get("conditions") or []:
        if one["type"] == kind and one["status"] == status:
            found: Object = one
            return found
    return None


def alive(pid: int) -> bool:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def play(
    story: Callable[[Stage], Awaitable[None]], options: up.Options, timeline: Timeline
) -> None:
    """Run a story on a stage of its own."""

    async def run(home: Home) -> None:
        token = (home.path / "token").read_text().strip()
        async with Client(embedded(home.socket, token), user_agent="makeway-demo") as client:
            await story(Stage(home, client, timeline))

    with _interruptible(), _machine(options) as home:
        timeline.note(f"makeway runs in a temporary home{_offer(options)}")
        asyncio.run(run(home))


def _offer(options: up.Options) -> str:
    if not options.local_node:
        return "; its nodes are pretended"
    offered = ", ".join(f"{name} {amount}" for name, amount in options.capacity.items())
    return f"; this machine is its node and offers {offered}; processes are real"


@contextlib.contextmanager
def _machine(options: up.Options) -> Iterator[Home]:
    home = Home(Path(tempfile.mkdtemp(prefix="makeway-demo-")))
    try:
        home.prepare()
        with out.silenced():
            up.start_detached(home, None, options)
        yield home
    except DemoFailed:
        _show_log(home)
        raise
    finally:
        # A second Ctrl-C must not leave anything behind.
        with _uninterruptible():
            _stop(home)
            shutil.rmtree(home.path, ignore_errors=True)


def _show_log(home: Home) -> None:
    with contextlib.suppress(OSError):
        for line in home.log.read_text(errors="replace").splitlines()[-15:]:
            out.complain(f"  log: {line}")


def _stop(home: Home) -> None:
    import time

    pid = home.running_pid()
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_WITHIN_S
        while home.running_pid() is not None and time.monotonic() < deadline:
            time.sleep(0.02)
    for process in _left_over(home.path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _left_over(home: Path) -> list[int]:
    """Processes that belong to the home: it stands in their command line, their folder or their environment."""
    import psutil

    mark = str(home)
    found: list[int] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            said = [*process.cmdline(), process.cwd(), *process.environ().values()]
            if process.pid != os.getpid() and any(mark in text for text in said):
                found.append(process.pid)
    return found


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """A closed terminal or a kill ends a demo like Ctrl-C does: with a clean stage."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _uninterruptible() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
