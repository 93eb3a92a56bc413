"""Beside kube-scheduler: N nodes full of low pods, then N high pods that each evict four. `make bench B=kube`.

    python -m bench.kube --nodes 500 --nodes 1000

As in kube-scheduler's own benchmark there is no kubelet and victims have no grace: who is deleted is gone. Each scheduler runs on
a fresh API server with etcd, one after the other on this machine, with the same objects and without rate limits. Compared are the
time until the last high pod is bound, the time to bind plain pods, the scheduler's CPU time over both, and its writes per preemption
(events and leases aside) until it has nothing more to write. Pods that kube-scheduler leaves waiting are told, and not held against it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec
from tools.control_plane import ControlPlane, cpu_seconds_of

from bench.report import Row, report
from makeway.client import ApiError, Client, Reflector, from_kubeconfig
from makeway.client.resource import NODES, PODS, PRIORITY_CLASSES
from makeway.client.watch import DELETED
from makeway.control.clock import SystemClock
from makeway.kube.install import install
from makeway.kube.manifests import Options

Object = dict[str, Any]
Cpu = Callable[[], float]

AT_ONCE: Final = 64
VICTIMS: Final = 4
QUIET_S: Final = 3.0
STARTED_WITHIN_S: Final = 3.0
# kube-scheduler now and then forgets a preemptor whose victims are gone, and looks again after five minutes.
STALLED_S: Final = 30.0
READING: Final = frozenset({"get", "list", "watch"})
LEASES: Final = "leases"  # are renewed for ever
NOT_COUNTED: Final = frozenset({"events"})
# By nodes: the time to preempt, the CPU time and the writes at most, and the speed with plain pods at least.
TARGETS: Final = {500: (0.7, 0.5, 1.0, 1.0), 1000: (0.5, 0.5, 1.0, 1.0)}


class Result(msgspec.Struct):
    scheduler: str
    nodes: int
    plain_s: float
    preempting_s: float
    cpu_s: float
    server_cpu_s: float  # of the API server and etcd, while preempting
    left_out: int  # pods that were not bound in the end
    writes: Counter[str]  # by kind, while preempting

    @property
    def writes_each(self) -> float:
        return sum(self.writes.values()) / self.nodes

    def shown(self) -> str:
        kinds = ", ".join(f"{n / self.nodes:.1f} {kind}" for kind, n in self.writes.most_common())
        return (
            f"  {self.scheduler:14} {self.nodes} nodes: plain {self.plain_s:.1f} s,"
            f" preempting {self.preempting_s:.1f} s, CPU {self.cpu_s:.1f} s"
            f" (the server's while preempting {self.server_cpu_s:.1f} s),"
            f" {self.writes_each:.1f} writes a preemption ({kinds})"
            + (f"; {self.left_out} pod(s) left waiting" if self.left_out else "")
        )


async def measure(plane: ControlPlane, scheduler: str, nodes: int, cpu: Cpu) -> Result:
    async with Client(from_kubeconfig(plane.kubeconfig), user_agent="bench") as client:
        await _prepare(client, nodes)
        # What it was needed for is done: on two cores every other program is in the way of both.
        plane.stop_one("kube-controller-manager", kill=True)
        name = "makeway" if scheduler == "makeway" else "default-scheduler"
        watching = _Bound(client)
        task = asyncio.create_task(watching.run())
        try:
            began_cpu = cpu()
            low = [_pod(f"low-{n}", name, "low", "1") for n in range(VICTIMS * nodes)]
            plain_s, unbound = await watching.time("low", len(low), _create_all(client, low))
            before = await _all_written(plane, scheduler)
            high = [_pod(f"high-{n}", name, "high", str(VICTIMS)) for n in range(nodes)]
            began_server = _server_cpu(plane)
            preempting_s, waiting = await watching.time(
                "high", len(high), _create_all(client, high)
            )
            used, used_by_server = cpu() - began_cpu, _server_cpu(plane) - began_server
            written = await _all_written(plane, scheduler) - before
            return Result(
                scheduler,
                nodes,
                plain_s,
                preempting_s,
                used,
                used_by_server,
                unbound + waiting,
                written,
            )
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _server_cpu(plane: ControlPlane) -> float:
    return plane.cpu_seconds("kube-apiserver") + plane.cpu_seconds("etcd")


async def _all_written(plane: ControlPlane, scheduler: str) -> Counter[str]:
    """Its writes so far, when it has added none for a while, events included: what counts may come after them."""
    writes: Counter[str] = Counter()
    while writes != (now := _writes(plane, scheduler)):
        writes = now
        await asyncio.sleep(QUIET_S)
    return Counter({what: n for what, n in writes.items() if what.split()[1] not in NOT_COUNTED})


class _Meta(msgspec.Struct):
    name: str


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _Spec


_decode = msgspec.json.Decoder(_Pod).decode


class _Bound:
    """Counts bound pods by the beginning of their name, as the watch tells."""

    def __init__(self, client: Client) -> None:
        self._bound: dict[str, set[str]] = {"low": set(), "high": set()}
        self._changed = asyncio.Event()
        self._reflector = Reflector(client, PODS, self._hear, decode=_decode)

    async def run(self) -> None:
        await self._reflector.run()

    def _hear(self, change: str, pod: _Pod) -> None:
        if change != DELETED and pod.spec.node_name:
            self._bound[pod.metadata.name.split("-")[0]].add(pod.metadata.name)
            self._changed.set()

    async def time(self, prefix: str, wanted: int, work: Awaitable[None]) -> tuple[float, int]:
        """Until the last one was bound; and how many were left out, of whom nobody took care for a while."""
        await self._reflector.synced.wait()
        began = last = time.monotonic()
        await work
        with contextlib.suppress(TimeoutError):
            while len(self._bound[prefix]) < wanted:
                self._changed.clear()
                async with asyncio.timeout(STALLED_S):
                    await self._changed.wait()
                last = time.monotonic()
        return last - began, wanted - len(self._bound[prefix])


async def _prepare(client: Client, nodes: int) -> None:
    for name, value in (("low", 1), ("high", 1000)):
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
    capacity = {"cpu": str(VICTIMS), "memory": "64Gi", "pods": "110"}
    await _all(
        client.create(
            NODES,
            {
                "metadata": {"name": f"n{n}"},
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
            "terminationGracePeriodSeconds": 0,
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


def _writes(plane: ControlPlane, scheduler: str) -> Counter[str]:
    """Writes by the scheduler's own client from the server's audit log: `patch pods/status` and so on."""
    agent = "kube-scheduler/" if scheduler == "kube-scheduler" else "makeway"
    found: Counter[str] = Counter()
    for line in plane.audit_log.read_text().splitlines():
        entry = msgspec.json.decode(line, type=_Entry)
        about = entry.object_ref
        if entry.verb in READING or about is None or about.resource == LEASES:
            continue
        if entry.user_agent.startswith(agent):
            sub = f"/{about.subresource}" if about.subresource else ""
            found[f"{entry.verb} {about.resource}{sub}"] += 1
    return found


class _About(msgspec.Struct):
    resource: str = ""
    subresource: str = ""


class _Entry(msgspec.Struct, rename="camel"):
    verb: str
    object_ref: _About | None = None
    user_agent: str = ""


def run_kube(nodes: int) -> Result:
    with ControlPlane.start(scheduler=True) as plane:
        return asyncio.run(
            measure(plane, "kube-scheduler", nodes, lambda: plane.cpu_seconds("kube-scheduler"))
        )


def run_makeway(nodes: int) -> Result:
    with ControlPlane.start() as plane:
        asyncio.run(_install(plane))
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
        try:
            time.sleep(STARTED_WITHIN_S)
            return asyncio.run(
                measure(plane, "makeway", nodes, lambda: cpu_seconds_of(process.pid))
            )
        finally:
            process.kill()
            process.wait()


async def _install(plane: ControlPlane) -> None:
    async with Client(from_kubeconfig(plane.kubeconfig)) as client:
        await install(client, Options(replicas=0), SystemClock(), lambda _: None)


def compare(theirs: Result, ours: Result) -> list[Row]:
    """The ratios, with what they have to be where that is said."""
    nodes = ours.nodes
    if ours.left_out:
        raise SystemExit(f"makeway left {ours.left_out} pod(s) waiting: nothing to compare")
    targets = TARGETS.get(nodes, (None, None, None, None))
    ratios = (
        ("preempting", ours.preempting_s / theirs.preempting_s),
        ("CPU", ours.cpu_s / theirs.cpu_s),
        ("writes a preemption", ours.writes_each / theirs.writes_each),
        ("plain pods a second", theirs.plain_s / ours.plain_s),
    )
    return [
        Row(
            figure=f"{name}, {nodes} nodes",
            value=value,
            unit="x kube-scheduler",
            target=target,
            at_least=name.startswith("plain"),
        )
        for (name, value), target in zip(ratios, targets, strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--nodes", type=int, action="append")
    options, _ = parser.parse_known_args()
    rows: list[Row] = []
    for nodes in options.nodes or sorted(TARGETS):
        theirs, ours = run_kube(nodes), run_makeway(nodes)
        print(theirs.shown(), ours.shown(), sep="\n", flush=True)
        rows += compare(theirs, ours)
    return report("kube", rows, runs=1)


if __name__ == "__main__":
    sys.exit(main())
