"""One machine, from outside: `make bench B=one-machine`.

Three figures that a user feels: how long `makeway up` takes; how long it takes from `kubectl apply` of a preemptor to its
process running; how long a thousand jobs of one pod that arrive at once take until the last is admitted and bound. Each run has a
fresh home. Wall time is what counts, but it is also what the neighbours on the machine disturb: beside it stand the CPU seconds of
makeway's own processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
from tools.kubectl import kubectl

from bench.report import RUNS, Row, report
from makeway.client import Client, from_kubeconfig
from makeway.client.resource import JOBS, PODS, Resource

JOBS_AT_ONCE = 1000
SENT_AT_ONCE = 16
NODES = 20
TIMEOUT_S = 90.0
QUIET_CPU_S = 0.05  # of CPU in a second
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta1", "workloads")

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  priorityClassName: {priority}
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers:
  - name: main
    image: local
    command: ["sh", "-c", "date +%s.%N > {stamp}; exec sleep 600"]
    resources: {{requests: {{cpu: "1"}}}}
"""
CLASSES = """\
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: low}
value: 1
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
"""
QUEUES = """\
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: default}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: all}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors:
    - name: default
      resources: [{name: cpu, nominalQuota: "100k"}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: jobs, namespace: default}
spec: {clusterQueue: all}
"""
NODE = """\
---
apiVersion: v1
kind: Node
metadata:
  name: pretended-{number}
  annotations: {{kwok.x-k8s.io/node: fake}}
status:
  capacity: {{cpu: "1k", memory: 1Ti, pods: "10k"}}
  allocatable: {{cpu: "1k", memory: 1Ti, pods: "10k"}}
"""


class Makeway:
    """A makeway in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ready_s = 0.0
        self._kubectl = str(kubectl())

    def up(self, *options: str) -> None:
        started = time.monotonic()
        self._makeway("up", "--detach", *options)
        self.ready_s = time.monotonic() - started

    def down(self) -> None:
        self._makeway("down")

    def apply(self, text: str) -> None:
        self.kubectl("apply", "--validate=false", "-f", "-", text=text)

    def kubectl(self, *arguments: str, text: str = "") -> str:
        command = [self._kubectl, "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    @property
    def kubeconfig(self) -> Path:
        return self.home / "kubeconfig"

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far: of the API's process, and of those beside it."""
        found: dict[str, float] = {}
        for role, process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found[role] = found.get(role, 0.0) + times.user + times.system
        return found

    def memory_bytes(self) -> dict[str, int]:
        """Memory in use, pages that processes share counted once."""
        return {role: process.memory_full_info().pss for role, process in self._processes()}

    def _processes(self) -> Iterator[tuple[str, psutil.Process]]:
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if str(self.home) in line and any("makeway.cli" in part for part in line):
                yield "manager" if "makeway.cli.manager" in line else "API", process

    def cpu_when_quiet_s(self) -> dict[str, float]:
        """The same once nothing happens any more: what was put off (events, statuses) counts too."""
        used = self.cpu_s()
        while True:
            time.sleep(1.0)
            before, used = used, self.cpu_s()
            if sum(used.values()) - sum(before.values()) < QUIET_CPU_S:
                return used

    def _makeway(self, command: str, *options: str) -> None:
        program = Path(sys.executable).with_name("makeway")
        arguments = [str(program), command, "--home", str(self.home), *options]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"makeway {command}: {done.stderr}")


@contextlib.contextmanager
def makeway(*options: str) -> Iterator[Makeway]:
    with tempfile.TemporaryDirectory(prefix="makeway-bench-") as folder:
        found = Makeway(Path(folder) / "home")
        found.up(*options)
        try:
            yield found
        finally:
            found.down()


# A preemption


def preemption_s(one: Makeway, number: int) -> float:
    """From before `kubectl apply` starts until the preemptor's process has written down the time."""
    stamps = [one.home / f"{name}-{number}" for name in ("victim", "preemptor")]
    one.apply(POD.format(name=f"victim-{number}", priority="low", stamp=stamps[0]))
    stamp(stamps[0])
    started = time.time()
    one.apply(POD.format(name=f"preemptor-{number}", priority="high", stamp=stamps[1]))
    took = stamp(stamps[1]) - started
    one.kubectl("delete", "pod", "--all", "--wait")
    return took


def stamp(path: Path) -> float:
    """What a process wrote there, once it has."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        text = path.read_text().strip() if path.exists() else ""
        if text:
            return float(text)
        time.sleep(0.005)
    raise TimeoutError(f"nothing wrote {path}")


# A thousand jobs


class Flood(msgspec.Struct, frozen=True):
    wall_s: float
    submitted_s: float
    api_s: float
    manager_s: float


def flood(count: int) -> Flood:
    """Submit so many jobs at once; until the last is admitted and bound."""
    with makeway("--no-local-node") as one:
        one.apply(QUEUES + "".join(NODE.format(number=number) for number in range(NODES)))
        before = one.cpu_s()
        wall_s, submitted_s = asyncio.run(_flood(one, count))
        after = one.cpu_when_quiet_s()
    return Flood(
        wall_s, submitted_s, after["API"] - before["API"], after["manager"] - before["manager"]
    )


async def _flood(one: Makeway, count: int) -> tuple[float, float]:
    async with Client(from_kubeconfig(one.kubeconfig)) as client:
        watching = asyncio.create_task(_until_bound(client, count))
        await asyncio.sleep(0.2)
        started = time.monotonic()
        await _submit(client, count)
        submitted = time.monotonic()
        await asyncio.wait_for(watching, TIMEOUT_S)
        ended = time.monotonic()
        workloads = await client.list(WORKLOADS, "default")
        admitted = sum(_admitted(workload) for workload in workloads)
        assert admitted == count, f"{admitted} of {count} workloads are admitted"
        return ended - started, submitted - started


async def _submit(client: Client, count: int) -> None:
    numbers = iter(range(count))

    async def send() -> None:
        for number in numbers:
            await client.create(JOBS, _job(number))

    await asyncio.gather(*(send() for _ in range(SENT_AT_ONCE)))


async def _until_bound(client: Client, count: int) -> None:
    bound: set[str] = set()
    async for line in client.stream(PODS.path("default"), {"watch": "true"}, TIMEOUT_S):
        pod = msgspec.json.decode(line)["object"]
        if pod["spec"].get("nodeName"):
            bound.add(pod["metadata"]["name"])
        if len(bound) == count:
            return


def _admitted(workload: dict[str, Any]) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Admitted" and c["status"] == "True" for c in conditions)


def _job(number: int) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "local",
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": "1"}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"job-{number}",
            "namespace": "default",
            "labels": {"kueue.x-k8s.io/queue-name": "jobs"},
        },
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


def main() -> int:
    ready: list[float] = []
    with makeway("--capacity", "cpu=1,memory=4Gi") as one:
        ready.append(one.ready_s)
        one.apply(CLASSES)
        preemptions = [preemption_s(one, number) for number in range(RUNS)]
    for _ in range(RUNS - 1):
        with makeway("--no-local-node") as one:
            ready.append(one.ready_s)
    floods = [flood(JOBS_AT_ONCE) for _ in range(RUNS)]
    half, double = flood(JOBS_AT_ONCE // 2), flood(JOBS_AT_ONCE * 2)
    rows = [
        _limit("makeway up --detach", statistics.median(ready), 1.5),
        _limit("kubectl apply to process of a preemptor", statistics.median(preemptions), 1.0),
        msgspec.structs.replace(
            _limit("1,000 jobs bound", statistics.median(f.wall_s for f in floods), 10.0),
            half=half.wall_s,
            double=double.wall_s,
        ),
        _cpu("  CPU of the API", [f.api_s for f in floods], half.api_s, double.api_s),
        _cpu(
            "  CPU of the manager", [f.manager_s for f in floods], half.manager_s, double.manager_s
        ),
    ]
    return report("one-machine", rows)


def _limit(figure: str, value: float, most: float) -> Row:
    return Row(figure=figure, value=value, unit="s", target=most, at_least=False)


def _cpu(figure: str, values: list[float], half: float, double: float) -> Row:
    value = statistics.median(values)
    return Row(figure=figure, value=value, unit="s", at_least=False, half=half, double=double)
