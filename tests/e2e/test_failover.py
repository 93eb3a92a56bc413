"""Whoever leads may be killed at any moment of a walkthrough: another goes on within 20 s, and what was promised holds.

The moment is drawn anew in each run and printed. The history of the API itself says whether anything was broken on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from makeway.client import Client, from_kubeconfig
from makeway.client.resource import PODS
from makeway.model.resources import amount_of
from tests.e2e.backends import Kube, kube_available, kube_backend
from tests.e2e.harness import SCHEDULER_NAMES, Machine, Object, chosen_backend
from tests.e2e.history import WatchedStore
from tests.e2e.test_cluster import PREEMPTIONS, Process, eventually, kubectl, logs, ready, replica
from tests.e2e.test_walkthroughs import EXAMPLES, MANIFESTS

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(
        chosen_backend() != "kube" or not kube_available(),
        reason="needs a real API server: pytest --backend kube",
    ),
]
TAKEOVER_S = 20.0
LATEST_KILL_S = 6.0


class Story(msgspec.Struct, frozen=True):
    """What is there, who runs, who comes; and the pods that run in the end, by the beginnings of their names."""

    name: str
    setting: tuple[Path, ...]
    first: Path
    then: Path
    runs_first: frozenset[str]
    runs_last: frozenset[str]


def examples(folder: str, *names: str) -> tuple[Path, ...]:
    return tuple(EXAMPLES / folder / f"{name}.yaml" for name in names)


STORIES = (
    Story(
        "000",
        examples("kubeai", "node", "priority-classes"),
        EXAMPLES / "kubeai/background-research-model.yaml",
        EXAMPLES / "kubeai/critical-service-model.yaml",
        frozenset({"model-background-research-model"}),
        frozenset({"model-critical-service-model"}),
    ),
    Story(
        "001",
        (
            MANIFESTS / "001-node.yaml",
            *examples("kueue", "namespaces", "resource-flavors", "cluster-queues"),
            *examples("kueue", "local-queues", "priorities"),
        ),
        EXAMPLES / "kueue/team-b-job.yaml",
        EXAMPLES / "kueue/team-a-job.yaml",
        frozenset({"team-b-job"}),
        frozenset({"team-a-job"}),
    ),
    Story(
        "002",
        (MANIFESTS / "002-node.yaml", *examples("skypilot", "queues")),
        EXAMPLES / "skypilot/low.yaml",
        EXAMPLES / "skypilot/high.yaml",
        frozenset({"low"}),
        frozenset({"high"}),
    ),
    Story(
        "003",
        examples("koordinator", "nodes", "priorityclasses"),
        EXAMPLES / "koordinator/low-priority-pods.yaml",
        EXAMPLES / "koordinator/high-priority-job.yaml",
        frozenset({"lp-pod"}),
        frozenset({"hp-worker"}),
    ),
    Story(
        "004",
        examples("priorityclass", "nodes", "high-priority-inference", "low-priority-training"),
        EXAMPLES / "priorityclass/training-job-1.yaml",
        EXAMPLES / "priorityclass/inference-1.yaml",
        frozenset({"training-job-1"}),
        frozenset({"inference-1"}),
    ),
)


async def submit(world: Kube, path: Path) -> None:
    """As the walkthrough does it: tasks are launched, everything else is applied."""
    if path.parent.name == "skypilot" and path.stem != "queues":
        box = Machine.__new__(Machine)
        box.backend = world
        await box.makeway("launch", "-y", "-d", "-c", path.stem, str(path))
    else:
        await kubectl(world, await asyncio.to_thread(path.read_text))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
async def test_the_walkthrough_ends_as_told_when_the_leader_is_killed(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = random.uniform(0.0, LATEST_KILL_S)
    with capsys.disabled():
        print(f" killed after {moment:.2f} s ", end="", flush=True)
    async with (
        kube_backend() as world,
        Client(from_kubeconfig(world.kubeconfig)) as admin,
        pretending(world),
        replica(world, "one", answering_all(world)) as one,
    ):
        await eventually(one.leads, 20, "the first leads")
        async with replica(world, "two", answering_all(world)) as two:
            await eventually(lambda: ready(two), 60, "the second is ready")
            killing = asyncio.create_task(kill_and_time(one, two, moment))
            for path in (*story.setting, story.first):
                await submit(world, path)
            await eventually(lambda: running(admin, story.runs_first), 60, "the first runs")
            await submit(world, story.then)
            took = await killing
            try:
                await eventually(lambda: running(admin, story.runs_last), 60, "the second runs")
            except AssertionError as never:
                raise AssertionError(f"{never}\n{logs(world, 'one', 'two')}") from never
            assert took <= TAKEOVER_S
            assert len(await admin.list(PREEMPTIONS)) == 1
            assert overfull(world.app.store) == []


def answering_all(world: Kube) -> str:
    """A configuration for every scheduler name of the walkthroughs."""
    file = world.home / "all-schedulers.yaml"
    file.write_text(f"makeway: {{schedulerNames: [{', '.join(SCHEDULER_NAMES)}]}}\n")
    return f"--config={file}"


async def kill_and_time(leader: Process, other: Process, after_s: float) -> float:
    """How long nobody led."""
    await asyncio.sleep(after_s)
    await leader.stop(signal.SIGKILL)
    killed_at = time.monotonic()
    await eventually(other.leads, TAKEOVER_S + 10, "the other leads")
    return time.monotonic() - killed_at


@contextlib.asynccontextmanager
async def pretending(world: Kube) -> AsyncIterator[None]:
    nodes = asyncio.create_task(world._pretend())
    try:
        yield
    finally:
        nodes.cancel()


async def running(admin: Client, wanted: frozenset[str]) -> bool:
    """Whether exactly pods of these names run that nobody deletes."""
    alive = [
        one["metadata"]["name"]
        for one in await admin.list(PODS)
        if one["status"]["phase"] == "Running" and "deletionTimestamp" not in one["metadata"]
    ]
    return bool(alive) and {name for name in alive if not name.startswith(tuple(wanted))} == set()


def overfull(store: WatchedStore) -> list[str]:
    """Moments at which the pods on a node asked for more than it has."""
    found: list[str] = []
    room: dict[str, Object] = {}
    pods: dict[tuple[str, str], Object] = {}
    for change in store.changes_since(0):
        obj = change.last.decode()
        key = (change.last.namespace, change.last.name)
        if change.kind == "nodes" and change.after is not None:
            status = obj.get("status") or {}
            room[change.last.name] = status.get("allocatable") or status.get("capacity") or {}
        elif change.kind == "pods":
            over = obj["status"].get("phase") in ("Succeeded", "Failed")
            pods.pop(key, None)
            if change.after is not None and not over and obj["spec"].get("nodeName"):
                pods[key] = obj
                found += _too_much(obj["spec"]["nodeName"], room, list(pods.values()))
    return found


def _too_much(node: str, room: dict[str, Object], pods: list[Object]) -> list[str]:
    here = [pod for pod in pods if pod["spec"]["nodeName"] == node]
    asked: dict[str, int] = {}
    for pod in here:
        for container in pod["spec"]["containers"]:
            for resource, amount in (container["resources"].get("requests") or {}).items():
                asked[resource] = asked.get(resource, 0) + amount_of(resource, str(amount))
    names = sorted(pod["metadata"]["name"] for pod in here)
    return [
        f"{node}: {names} ask for {total} of {resource}"
        for resource, total in asked.items()
        if total > amount_of(resource, str(room[node].get(resource, "0")))
    ]
