"""`kill -9` of `makeway up` at random moments, under load: what was acknowledged is there, no process is lost or started twice, and no
more is admitted than the quota has.

Ten rounds in every test run, a hundred in `make long`. The seed of the moments is printed when it fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from makeway.client import ApiError, Client, UnreachableError, embedded
from makeway.client.resource import CONFIG_MAPS, JOBS, PODS, Object, Resource
from tests.e2e.cli import Makeway, alive, machine_of_its_own

SEED = int(os.environ.get("MAKEWAY_KILL_SEED", "0")) or random.randrange(1 << 30)


WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
AT_ONCE = 5  # queued jobs that the quota has room for
QUEUES = f"""
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {{name: all}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {{name: narrow}}
spec:
  namespaceSelector: {{}}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{{name: all, resources: [{{name: cpu, nominalQuota: {AT_ONCE * 10}m}}]}}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {{name: narrow, namespace: default}}
spec: {{clusterQueue: narrow}}
"""


class Load:
    """Somebody who writes all the time, and remembers what was acknowledged."""

    def __init__(self, makeway: Makeway, starts: Path) -> None:
        self._makeway = makeway
        self._starts = starts
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._write()))
        self.notes: list[int] = []
        self.jobs: list[str] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(timeout=30)

    async def _write(self) -> None:
        number = 0
        while not self._ending.is_set():
            token = (self._makeway.home / "token").read_text().strip()
            async with Client(embedded(self._makeway.home / "api.sock", token)) as client:
                with contextlib.suppress(ApiError, UnreachableError, OSError):
                    while not self._ending.is_set():
                        number += 1
                        await client.create(CONFIG_MAPS, _note(number))
                        self.notes.append(number)
                        if number % 12 == 0:
                            await client.create(JOBS, self._job(number))
                            self.jobs.append(f"job-{number}")
                        await asyncio.sleep(0.01)
            await asyncio.sleep(0.02)

    def _job(self, number: int) -> Object:
        uid = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
        command = f"echo $POD_UID >> {self._starts}; exec sleep 1"
        container = {
            "name": "main",
            "image": "local",
            "command": ["sh", "-c", command],
            "env": [uid],
            "resources": {"requests": {"cpu": "10m"}},
        }
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": f"job-{number}",
                "namespace": "default",
                # Every other one has to queue.
                "labels": {"kueue.x-k8s.io/queue-name": "narrow"} if number % 24 else {},
            },
            "spec": {
                "backoffLimit": 0,
                "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
            },
        }


def _note(number: int) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"note-{number}", "namespace": "default"},
        "data": {"text": _text(number)},
    }


def _text(number: int) -> str:
    return f"{number}-" * 200


def kill(makeway: Makeway) -> None:
    """The API's process; the other one goes with it, and then nobody holds the lock."""
    first = psutil.Process(int((makeway.home / "pid").read_text()))
    family = [first, *first.children(recursive=True)]
    ours = [p for p in family if _is_ours(p)]
    os.kill(first.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while left := [p for p in ours if alive(p.pid)]:
        assert time.monotonic() < deadline, f"outlived what started them: {left}"
        time.sleep(0.01)


def _is_ours(process: psutil.Process) -> bool:
    """The API or the manager; not a shim on its way, which is meant to outlive them."""
    try:
        return any(word.startswith("makeway.cli") for word in process.cmdline())
    except psutil.Error:
        return False


def sleepers(makeway: Makeway) -> dict[int, str]:
    """The processes of pods, with the uid of the pod whose folder they work in."""
    pods = makeway.home / "pods"
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            place = Path(process.cwd())
            if process.name() == "sleep" and place.is_relative_to(pods):
                found[process.pid] = place.relative_to(pods).parts[0]
    return found


@pytest.mark.parametrize(
    "rounds", [10, pytest.param(100, marks=pytest.mark.slow)], ids=lambda n: f"{n} times"
)
def test_nothing_is_lost_orphaned_or_started_twice(rounds: int, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    starts = tmp_path / "starts"
    starts.touch()
    (tmp_path / "queues.yaml").write_text(QUEUES)
    with machine_of_its_own("--capacity", "cpu=8,memory=8Gi") as makeway:
        makeway("apply", "-f", str(tmp_path / "queues.yaml"))
        with Load(makeway, starts) as load:
            for _ in range(rounds):
                time.sleep(chance.uniform(0.05, 1.5))
                kill(makeway)
                makeway("up", "--detach")
                check_quota(makeway)
        check(makeway, load, starts)


def check_quota(makeway: Makeway) -> None:
    """Never over, whatever crashed in between."""
    holding = [
        workload["metadata"]["name"]
        for workload in makeway.items(WORKLOADS)
        if _is_true(workload, "QuotaReserved") and not _is_true(workload, "Finished")
    ]
    assert len(holding) <= AT_ONCE, f"seed {SEED}: {len(holding)} hold quota for {AT_ONCE}"


def _is_true(obj: Object, condition: str) -> bool:
    found = obj.get("status", {}).get("conditions") or []
    return any(each["type"] == condition and each["status"] == "True" for each in found)


def check(makeway: Makeway, load: Load, starts: Path) -> None:
    assert load.jobs, "the load wrote nothing"
    kept = {
        found["metadata"]["name"]: (found.get("data") or {}).get("text")
        for found in makeway.items(CONFIG_MAPS)
    }
    lost = [n for n in load.notes if kept.get(f"note-{n}") != _text(n)]
    assert not lost, f"seed {SEED}: acknowledged, and gone or broken: {lost[:5]}"

    def all_done() -> bool:
        done = {o["metadata"]["name"]: o.get("status", {}) for o in makeway.items(JOBS)}
        assert set(load.jobs) <= set(done), f"seed {SEED}"
        return all(done[name].get("succeeded") == 1 for name in load.jobs)

    makeway.until(f"all jobs are done (seed {SEED})", all_done, within_s=180)
    pods = makeway.items(PODS)
    counted = Counter(starts.read_text().split())
    twice = {uid: n for uid, n in counted.items() if n > 1}
    assert not twice, f"seed {SEED}: started more than once: {twice}"
    assert {p["metadata"]["uid"] for p in pods} <= set(counted), f"seed {SEED}"
    owners = Counter(p["metadata"]["labels"]["batch.kubernetes.io/job-name"] for p in pods)
    assert max(owners.values()) == 1, f"seed {SEED}: a job had two pods: {owners.most_common(3)}"
    makeway.until(f"no process is left (seed {SEED})", lambda: not sleepers(makeway))
