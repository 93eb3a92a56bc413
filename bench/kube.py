"""Beside kube-scheduler on one API server: N nodes full of low pods, then N high pods that each evict four.

    python -m bench.kube --nodes 500

Each scheduler has a control plane of its own run after the other on this machine, the same objects, clients without rate
limits. Printed: the time until all high pods are bound, the scheduler's CPU time, its writes per preemption, and the ratios.
Victims have no grace and are taken away by the same stand-in for the kubelet in both runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from tools.control_plane import ControlPlane

from makeway.client import ApiError, Client, Reflector, from_kubeconfig
from makeway.client.resource import NODES, PODS, PRIORITY_CLASSES
from makeway.control.clock import SystemClock
from makeway.embedded.node.pretend import run_pretended
from makeway.kube.install import install
from makeway.kube.manifests import Options

Object = dict[str, Any]
AT_ONCE = 64
VICTIMS = 4


class Result(msgspec.Struct):
    scheduler: str
    plain_s: float
    preempting_s: float
    cpu_s: float
    writes: int

    def shown(self, preemptions: int) -> str:
        return (
            f"{self.scheduler:15} plain {self.plain_s:6.1f} s   preempting {self.preempting_s:6.1f} s"
            f"   CPU {self.cpu_s:6.1f} s   {self.writes / preemptions:4.1f} writes/preemption"
        )


async def measure(plane: ControlPlane, scheduler: str, nodes: int, cpu: Any) -> Result:
    async with Client(from_kubeconfig(plane.kubeconfig), user_agent="bench") as client:
        await _prepare(client, nodes)
        pretending = asyncio.create_task(run_pretended(client))
        name = "makeway" if scheduler == "makeway" else "default-scheduler"
        watching = _Bound(client)
        task = asyncio.create_task(watching.run())
        try:
            began_cpu = cpu()
            low = [_pod(f"low-{n}", name, "low", "1") for n in range(VICTIMS * nodes)]
            plain_s = await watching.time("low-", len(low), _create_all(client, low))
            writes = _writes(plane, scheduler)
            high = [_pod(f"high-{n}", name, "high", "4") for n in range(nodes)]
            preempting_s = await watching.time("high-", len(high), _create_all(client, high))
            return Result(
                scheduler,
                plain_s,
                preempting_s,
                cpu() - began_cpu,
                _writes(plane, scheduler) - writes,
            )
        finally:
            for one in (task, pretending):
                one.cancel()
            await asyncio.gather(task, pretending, return_exceptions=True)


class _Bound:
    """Counts bound pods by the beginning of their name, as the watch tells."""

    def __init__(self, client: Client) -> None:
        self._bound: set[str] = set()
        self._changed = asyncio.Event()
        self._reflector: Reflector[Object] = Reflector(client, PODS, self._hear)

    async def run(self) -> None:
        await self._reflector.run()

    def _hear(self, change: str, pod: Object) -> None:
        if change != "DELETED" and pod["spec"].get("nodeName"):
            self._bound.add(pod["metadata"]["name"])
            self._changed.set()

    async def time(self, prefix: str, wanted: int, work: Awaitable[None]) -> float:
        await self._reflector.synced.wait()
        began = time.monotonic()
        await work
        async with asyncio.timeout(600):
            while sum(name.startswith(prefix) for name in self._bound) < wanted:
                self._changed.clear()
                await self._changed.wait()
        return time.monotonic() - began


async def _prepare(client: Client, nodes: int) -> None:
    for name, value in (("low", 1), ("high", 1000)):
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
    capacity = {"cpu": str(VICTIMS), "memory": "64Gi", "pods": "110"}
    await _all(
        client.create(
            NODES,
            {
                "metadata": {"name": f"n{n}", "annotations": {"kwok.x-k8s.io/node": "fake"}},
                "status": {
                    "capacity": capacity,
                    "allocatable": capacity,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )
        for n in range(nodes)
    )
    accounts = "/api/v1/namespaces/default/serviceaccounts/default"
    while True:
        with contextlib.suppress(ApiError):
            await client.request("GET", accounts)
            if not any(node["spec"].get("taints") for node in await client.list(NODES)):
                return
        await asyncio.sleep(0.2)


def _pod(name: str, scheduler: str, priority: str, cpu: str) -> Object:
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": scheduler,
            "priorityClassName": priority,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    }


async def _create_all(client: Client, pods: list[Object]) -> None:
    await _all(client.create(PODS, pod) for pod in pods)


async def _all(work: Iterable[Awaitable[Any]]) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(item: Awaitable[Any]) -> None:
        async with slots:
            await item

    await asyncio.gather(*(one(item) for item in work))


def _writes(plane: ControlPlane, scheduler: str) -> int:
    """Writes by the scheduler's own client, events aside, from the server's audit log."""
    agent = "kube-scheduler/" if scheduler == "kube-scheduler" else "makeway"
    count = 0
    for line in plane.audit_log.read_text().splitlines():
        entry = json.loads(line)
        if entry["verb"] in ("get", "list", "watch") or entry["objectRef"].get("resource") in (
            "events",
            "leases",
        ):
            continue
        count += str(entry.get("userAgent", "")).startswith(agent)
    return count


def run_kube(nodes: int) -> Result:
    with ControlPlane.start(scheduler=True) as plane:
        return asyncio.run(
            measure(plane, "kube-scheduler", nodes, lambda: plane.cpu_seconds("kube-scheduler"))
        )


def run_makeway(nodes: int) -> Result:
    with ControlPlane.start() as plane:

        async def prepare() -> None:
            async with Client(from_kubeconfig(plane.kubeconfig)) as client:
                await install(client, Options(replicas=0), SystemClock(), lambda _: None)

        asyncio.run(prepare())
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "makeway.cli.main",
                "run",
                f"--kubeconfig={plane.kubeconfig}",
                "--listen=127.0.0.1:0",
            ],
            env=os.environ,
            stderr=(plane.folder / "makeway.log").open("ab"),
        )

        def cpu() -> float:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / 100

        try:
            time.sleep(3)
            return asyncio.run(measure(plane, "makeway", nodes, cpu))
        finally:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--nodes", type=int, default=500)
    options, _ = parser.parse_known_args()
    theirs = run_kube(options.nodes)
    print(theirs.shown(options.nodes), flush=True)
    ours = run_makeway(options.nodes)
    print(ours.shown(options.nodes), flush=True)
    print(
        f"ratio           preempting {ours.preempting_s / theirs.preempting_s:.2f}"
        f"   CPU {ours.cpu_s / theirs.cpu_s:.2f}   plain {theirs.plain_s / ours.plain_s:.2f}x"
        f"   writes {ours.writes / max(1, theirs.writes):.2f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
