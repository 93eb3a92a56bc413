"""The embedded API under load: `make bench B=api`.

Five figures: pods created a second over TLS; `kubectl get pods -A` with 20,000 pods; the memory of a whole `makeway up` with 5,000
pretended nodes and 20,000 pods; what 100 watchers hear of 500 changes a second, and how long a GET takes meanwhile. All but the memory are
of the API's process alone, since the scheduler beside it would be measured too. The client runs on the same machine (`bench.load`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop
from tools.kubectl import kubectl

from bench.load import SecureWire, Way
from bench.one_machine import makeway
from bench.report import Row, median, report
from makeway.cli.eventloop import run
from makeway.embedded.server import serving

T = TypeVar("T")

PODS_PATH = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
CREATED = 10_000
SHOWN = 20_000
NODES = 5_000
PODS_PER_NODE = 4
WATCHERS = 100
CHANGES_PER_S = 500
CHANGING_S = 10
CONNECTIONS = 32
GETS_PER_S = 50
CHANGED_PODS = 200
RUNNING_TIMEOUT_S = 400.0
GIB = 1024**3


@contextlib.contextmanager
def alone() -> Iterator[Path]:
    """The API in a process of its own; its home."""
    with tempfile.TemporaryDirectory(prefix="makeway-bench-") as folder:
        home = Path(folder) / "home"
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.api", "serve", str(home)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n", "the API did not start"
            yield home
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


async def _serve(home: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with serving(home):
        print("ready", flush=True)
        await stop.wait()


def pod(number: int) -> bytes:
    """About as long as pods of training jobs are."""
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "command": ["python", "train.py", "--shard", str(number)],
        "env": [{"name": f"SETTING_{i}", "value": "x" * 20} for i in range(6)],
        "resources": {
            "requests": {"cpu": "1", "memory": "1Gi"},
            "limits": {"nvidia.com/gpu": "1"},
        },
    }
    metadata = {
        "name": f"pod-{number}",
        "labels": {"app": "train", "shard": str(number % 16)},
        "annotations": {"example.com/note": "n" * 60},
    }
    spec = {"containers": [container], "restartPolicy": "Never"}
    return msgspec.json.encode(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    )


async def create(home: Path, first: int, count: int) -> float:
    """Create pods over TLS, and how long it took."""
    wire = SecureWire(Way(home))
    numbers = iter(range(first, first + count))

    async def send() -> None:
        for number in numbers:
            await wire.send("POST", PODS_PATH, pod(number))

    # Connections are opened before the clock starts: a TLS handshake costs as much as several creates.
    await asyncio.gather(*(wire.send("GET", "/version") for _ in range(CONNECTIONS)))
    started = time.perf_counter()
    await asyncio.gather(*(send() for _ in range(CONNECTIONS)))
    took = time.perf_counter() - started
    wire.close()
    return took


def creates_per_s(count: int) -> float:
    with alone() as home:
        return count / _run(create(home, 0, count))


def get_all_s(home: Path) -> float:
    command = [str(kubectl()), "--kubeconfig", str(home / "kubeconfig"), "get", "pods", "-A"]
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        subprocess.run(command, stdout=output, check=True, env={**os.environ, "HOME": str(home)})
        return time.perf_counter() - started


def shown_s(count: int) -> float:
    with alone() as home:
        _run(create(home, 0, count))
        return statistics.median(get_all_s(home) for _ in range(3))


# Watchers


class Heard(msgspec.Struct):
    lost: int
    changes_per_s: float
    get_p99_ms: float


def heard(watchers: int) -> Heard:
    changes = CHANGES_PER_S * CHANGING_S
    with alone() as home:
        _run(create(home, 0, CHANGED_PODS))
        listed = json.loads(_run(_get(home, PODS_PATH)))
        path = f"/api/v1/pods?watch=true&resourceVersion={listed['metadata']['resourceVersion']}"
        command = [sys.executable, "-m", "bench.load", "watch"]
        listening = subprocess.Popen(
            [*command, str(home), path, str(watchers), str(changes)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert listening.stdout is not None
        assert listening.stdout.readline() == "ready\n", "the watchers did not start"
        rate, versions, times = _run(_change(home, changes))
        found = json.loads(listening.stdout.readline())
        listening.wait()
    lost = sum(changes - lines for lines in found["lines"])
    assert len(found["checksums"]) == 1 or lost, "watchers heard different things"
    assert found["versions"] == sorted(versions) or lost, "what was heard is not what was written"
    return Heard(lost, rate, statistics.quantiles(times, n=100)[98] * 1000)


async def _get(home: Path, path: str) -> bytes:
    wire = SecureWire(Way(home))
    answer = await wire.send("GET", path)
    wire.close()
    return answer


async def _change(home: Path, changes: int) -> tuple[float, list[int], list[float]]:
    """Change labels at the given rate, and GET beside it; the rate, the versions written, the times of the GETs."""
    wire = SecureWire(Way(home))
    loop = asyncio.get_running_loop()
    versions: list[int] = []
    numbers = itertools.count()
    started = loop.time()

    async def change() -> None:
        while (number := next(numbers)) < changes:
            await asyncio.sleep(started + number / CHANGES_PER_S - loop.time())
            body = msgspec.json.encode({"metadata": {"labels": {"step": str(number)}}})
            path = f"{PODS_PATH}/pod-{number % CHANGED_PODS}"
            answer = msgspec.json.decode(await wire.send("PATCH", path, body, MERGE))
            versions.append(int(answer["metadata"]["resourceVersion"]))

    async def look() -> list[float]:
        times: list[float] = []
        for number in itertools.count():
            await asyncio.sleep(started + number / GETS_PER_S - loop.time())
            if len(versions) >= changes:
                return times
            before = time.perf_counter()
            await wire.send("GET", f"{PODS_PATH}/pod-{number % CHANGED_PODS}")
            times.append(time.perf_counter() - before)
        raise AssertionError("count() does not end")

    looking = asyncio.create_task(look())
    await asyncio.gather(*(change() for _ in range(CONNECTIONS)))
    took = loop.time() - started
    times = await looking
    wire.close()
    return changes / took, versions, times


# Memory


def memory_gib(nodes: int) -> float:
    """Of all processes of a `makeway up`, once every pod runs."""
    with makeway("--no-local-node") as one:
        _run(_fill(one.home, nodes))
        return sum(one.memory_bytes().values()) / GIB


async def _fill(home: Path, nodes: int) -> None:
    wire = SecureWire(Way(home))
    numbers = iter(range(nodes))

    async def send() -> None:
        for number in numbers:
            await wire.send("POST", "/api/v1/nodes", _node(number))

    await asyncio.gather(*(send() for _ in range(CONNECTIONS)))
    pods = nodes * PODS_PER_NODE
    await create(home, 0, pods)
    path = f"{PODS_PATH}?fieldSelector=status.phase!%3DRunning&limit=1"
    deadline = time.monotonic() + RUNNING_TIMEOUT_S
    while msgspec.json.decode(await wire.send("GET", path))["items"]:
        assert time.monotonic() < deadline, "some pods do not run"
        await asyncio.sleep(2.0)
    wire.close()


def _node(number: int) -> bytes:
    room = {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}
    metadata = {
        "name": f"pretended-{number}",
        "annotations": {"kwok.x-k8s.io/node": "fake"},
        "labels": {"topology.kubernetes.io/zone": f"zone-{number % 8}"},
    }
    status = {"capacity": room, "allocatable": room}
    return msgspec.json.encode(
        {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
    )


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def main() -> int:
    shown = [shown_s(SHOWN // 2), shown_s(SHOWN), shown_s(SHOWN * 2)]
    listening = [heard(WATCHERS // 2), heard(WATCHERS), heard(WATCHERS * 2)]
    memory = [memory_gib(NODES // 2), memory_gib(NODES)]
    rows = [
        Row(
            figure="pod creates over TLS",
            value=median(lambda: creates_per_s(CREATED)),
            unit="1/s",
            target=1500,
            half=creates_per_s(CREATED // 2),
            double=creates_per_s(CREATED * 2),
        ),
        _limit("kubectl get pods -A, 20,000 pods", "s", 3.0, shown),
        _limit("memory, 5,000 nodes and 20,000 pods", "GiB", 1.5, memory),
        _limit("lost events, 100 watchers", "", 0, [each.lost for each in listening]),
        Row(
            figure="  changes made meanwhile",
            value=listening[1].changes_per_s,
            unit="1/s",
            # The clock of the load generator decides; what is missing is the last change's own time.
            target=CHANGES_PER_S * 0.99,
            half=listening[0].changes_per_s,
            double=listening[2].changes_per_s,
        ),
        _limit("  p99 of a GET meanwhile", "ms", 100, [each.get_p99_ms for each in listening]),
    ]
    return report("api", rows)


def _limit(figure: str, unit: str, most: float, values: Sequence[float]) -> Row:
    """At half the size, at the size that counts, and at twice that where it was measured."""
    return Row(
        figure=figure,
        value=values[1],
        unit=unit,
        target=most,
        at_least=False,
        half=values[0],
        double=values[2] if len(values) > 2 else None,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        run(_serve(Path(sys.argv[2])))
    else:
        sys.exit(main())
