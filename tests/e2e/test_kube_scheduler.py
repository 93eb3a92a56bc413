"""A real, unmodified kube-scheduler against the embedded API: it places pods as it would anywhere."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from makeway.client import Client, embedded
from makeway.client.resource import NODES, PODS, PRIORITY_CLASSES
from makeway.embedded.controllers import run_controllers
from makeway.embedded.node.pretend import run_pretended
from makeway.embedded.server import serving

CACHE = Path(os.environ.get("MAKEWAY_CACHE") or Path.home() / ".cache" / "makeway")
BINARIES = sorted(CACHE.glob("kube-*/kube-scheduler"))


def binary() -> str:
    return str(BINARIES[-1]) if BINARIES else ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.skipif(not binary(), reason="no kube-scheduler was built on this machine")
async def test_a_real_kube_scheduler_places_and_preempts() -> None:
    home = Path(tempfile.mkdtemp(prefix="mw-ks-"))
    try:
        async with serving(home) as server, Client(embedded(server.socket_path, server.token)) as c:
            tasks = [asyncio.create_task(run_controllers(c)), asyncio.create_task(run_pretended(c))]
            arguments = ["--leader-elect=false", f"--secure-port={free_port()}"]
            scheduler = await asyncio.create_subprocess_exec(
                binary(),
                f"--kubeconfig={server.kubeconfig}",
                f"--authentication-kubeconfig={server.kubeconfig}",
                f"--authorization-kubeconfig={server.kubeconfig}",
                *arguments,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=(home / "scheduler.log").open("wb"),
            )
            try:
                await _place_and_preempt(c)
            except AssertionError as error:
                raise AssertionError(
                    f"{error}\n{(home / 'scheduler.log').read_text()[-3000:]}"
                ) from None
            finally:
                scheduler.kill()
                await scheduler.wait()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)


async def _place_and_preempt(client: Client) -> None:
    size = {"cpu": "2", "memory": "8Gi", "pods": "10"}
    await client.create(
        NODES,
        {
            "metadata": {"name": "one", "annotations": {"kwok.x-k8s.io/node": "fake"}},
            "status": {"allocatable": size, "capacity": size},
        },
    )
    await client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
    await client.create(PODS, _pod("low", "2"))
    await _until(client, "low", "Running")
    await client.create(PODS, _pod("urgent", "2", priorityClassName="high"))
    await _until(client, "urgent", "Running")
    assert "low" not in {p["metadata"]["name"] for p in await client.list(PODS)}


def _pod(name: str, cpu: str, **spec: str) -> dict[str, object]:
    container = {"name": "app", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }


async def _until(client: Client, name: str, phase: str) -> None:
    for _ in range(400):
        found = {p["metadata"]["name"]: p for p in await client.list(PODS)}
        if name in found and found[name].get("status", {}).get("phase") == phase:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{name} is not {phase}: {found.get(name, {}).get('status')}")
