"""Killed at any write, refused at any write: the work goes on and ends the same way."""

from __future__ import annotations

import random

import pytest

from makeway.kube.actions import Action
from tests.kube.board import (
    PREEMPTS,
    Board,
    MemoryApi,
    job,
    node,
    pod,
    queue_board,
    queued_pod,
)


class Killed(BaseException):
    """The process is gone between two writes."""


class MortalApi(MemoryApi):
    left = 10**9

    def _do(self, action: Action) -> bool:
        if self.left <= 0:
            raise Killed
        self.left -= 1
        return super()._do(action)


class MoodyApi(MemoryApi):
    """Refuses one write in three, for no reason that the caller could know."""

    chance = random.Random(7)

    def _do(self, action: Action) -> bool:
        return self.chance.random() > 0.33 and super()._do(action)


def begin() -> Board:
    """Low work runs everywhere: a queued pod, and two pods without a queue."""
    b = queue_board("4", nodes=0, **PREEMPTS)
    for number in (1, 2, 3):
        b.put("Node", node(f"node-{number}", cpu="4"))
    b.put("Pod", queued_pod("low", "3", priority="low"))
    b.put("Pod", pod("plain-1", "3", priority=10))
    b.put("Pod", pod("plain-2", "3", priority=10))
    return b


async def before() -> Board:
    b = begin()
    await b.settle()
    for name in ("low", "plain-1", "plain-2"):
        b.running(f"default/{name}")
    await b.settle()
    b.put("Job", job("high", "3", priority="high"))
    b.put("PodGroup", {"metadata": {"name": "g"}, "spec": {"minMember": 2}})
    for name in ("gang-1", "gang-2"):
        labels = {"pod-group.scheduling.sigs.k8s.io": "g"}
        b.put("Pod", pod(name, "3", labels=labels, priority=500, schedulerName="koord-scheduler"))
    return b


async def live_on(b: Board) -> Board:
    """Victims end when they are deleted; what was started runs."""
    for _ in range(12):
        await b.settle()
        changed = False
        for key in b.cluster.copy.keys("Pod"):
            found = b.get("Pod", key)
            if "deletionTimestamp" in found["metadata"] and found["status"]["phase"] == "Running":
                b.patch("Pod", key, {"status": {"phase": "Failed"}})
                changed = True
        if not changed:
            return b
    raise AssertionError("it never comes to rest")


def outcome(b: Board) -> dict[str, object]:
    high = b.workload_of("high")
    nodes = {
        key: b.get("Pod", key)["spec"].get("nodeName")
        for key in ("default/gang-1", "default/gang-2")
    }
    told = sorted(
        key.split("/")[1]
        for key in b.cluster.copy.keys("Pod")
        if "deletionTimestamp" in b.get("Pod", key)["metadata"]
    )
    phases = sorted(r["status"]["phase"] for r in b.cluster.copy.all("Preemption"))
    return {
        "high": b.condition(high, "Admitted")[0],
        "job runs": not b.get("Job", "default/high")["spec"]["suspend"],
        "gang is whole": None not in nodes.values(),
        "gone": told,
        "records": phases,
    }


async def undisturbed() -> dict[str, object]:
    return outcome(await live_on(await before()))


async def test_what_it_looks_like_when_nothing_goes_wrong() -> None:
    assert await undisturbed() == {
        "high": "True",
        "job runs": True,
        "gang is whole": True,
        "gone": ["low", "plain-1", "plain-2"],
        "records": ["Placed", "Placed"],
    }


@pytest.mark.parametrize("writes", range(24))
async def test_killed_after_any_write_a_new_process_goes_on(writes: int) -> None:
    b = await before()
    mortal = MortalApi(b.cluster, b.clock)
    mortal._numbers = b.api._numbers
    mortal.left = writes
    b.api = mortal
    b.cluster.writer = mortal  # type: ignore[assignment]
    try:
        await live_on(b)
    except Killed:
        b = await live_on(b.restarted())

    seen = outcome(b)

    assert {k: seen[k] for k in ("high", "job runs", "gang is whole", "gone")} == {
        "high": "True",
        "job runs": True,
        "gang is whole": True,
        "gone": ["low", "plain-1", "plain-2"],
    }


async def test_refused_again_and_again_it_still_gets_there() -> None:
    b = await before()
    moody = MoodyApi(b.cluster, b.clock)
    moody._numbers = b.api._numbers
    b.api = moody
    b.cluster.writer = moody  # type: ignore[assignment]
    for _ in range(30):
        await live_on(b)
        await b.wait(5)

    seen = outcome(b)

    assert (seen["high"], seen["job runs"], seen["gang is whole"]) == ("True", True, True)
    assert seen["gone"] == ["low", "plain-1", "plain-2"]


async def test_one_that_is_always_refused_keeps_nobody_else() -> None:
    b = begin()
    await b.settle()
    refused = MemoryApi._do

    class Stubborn(MemoryApi):
        def _do(self, action: Action) -> bool:
            if "bad" in str(getattr(action, "name", "")):
                return False
            return refused(self, action)

    stubborn = Stubborn(b.cluster, b.clock)
    stubborn._numbers = b.api._numbers
    b.api = stubborn
    b.cluster.writer = stubborn  # type: ignore[assignment]
    b.put("Pod", pod("bad", "1"))
    b.put("Pod", pod("good", "1"))

    for _ in range(20):
        await b.loop.once()
        b.clock.time += 0.01

    assert b.get("Pod", "default/good")["spec"].get("nodeName")
    assert "nodeName" not in b.get("Pod", "default/bad")["spec"]
    assert b.cluster.decide_at() is not None


FLOOD = 20


async def before_a_flood() -> Board:
    """As many high pods as there are nodes, each of which needs the place of a low one."""
    b = Board()
    b.put("Namespace", {"metadata": {"name": "default"}})
    for number in range(FLOOD):
        b.put("Node", node(f"node-{number}", cpu="4"))
        b.put("Pod", pod(f"low-{number}", "3", priority=10))
    await b.settle()
    for number in range(FLOOD):
        b.running(f"default/low-{number}")
    await b.settle()
    for number in range(FLOOD):
        b.put("Pod", pod(f"high-{number}", "3", priority=500))
    return b


def after_a_flood(b: Board) -> tuple[int, int]:
    """How many of the high pods have a node, and how many of the low ones made way."""
    pods = [b.get("Pod", key) for key in b.cluster.copy.keys("Pod")]
    high = [p for p in pods if p["metadata"]["name"].startswith("high")]
    gone = [p for p in pods if "deletionTimestamp" in p["metadata"]]
    return sum("nodeName" in p["spec"] for p in high), len(gone)


async def test_many_preemptions_at_once_are_one_record() -> None:
    b = await live_on(await before_a_flood())

    assert after_a_flood(b) == (FLOOD, FLOOD)
    written = [line for line in b.api.log if "Preemption" in line]
    assert len([line for line in written if line.startswith("create")]) == 1
    assert {r["status"]["phase"] for r in b.cluster.copy.all("Preemption")} == {"Placed"}
    assert len(list(b.cluster.copy.all("Preemption"))) == FLOOD
    (first, *others) = b.cluster.copy.all("Preemption")
    assert first["status"]["victimsText"].endswith(f"; and those of {FLOOD - 1} others")
    asked = {record["spec"]["preemptor"] for record in (first, *others)}
    assert asked == {f"default/high-{n}" for n in range(FLOOD)}


@pytest.mark.parametrize("writes", [*range(8), *range(8, 60, 7), 75])
async def test_killed_in_the_middle_of_a_flood_a_new_process_goes_on(writes: int) -> None:
    b = await before_a_flood()
    mortal = MortalApi(b.cluster, b.clock)
    mortal._numbers = b.api._numbers
    mortal.left = writes
    b.api = mortal
    b.cluster.writer = mortal  # type: ignore[assignment]
    try:
        await live_on(b)
    except Killed:
        b = await live_on(b.restarted())

    assert after_a_flood(b) == (FLOOD, FLOOD)
    assert {r["status"]["phase"] for r in b.cluster.copy.all("Preemption")} == {"Placed"}


async def test_nobody_of_a_flood_is_touched_when_its_record_cannot_be_written() -> None:
    b = await before_a_flood()
    b.api.refuse.add("create Preemption")
    for _ in range(3):
        await b.loop.once()
    assert after_a_flood(b) == (0, 0)

    b.api.refuse.clear()
    await b.wait(5)
    await live_on(b)
    assert after_a_flood(b) == (FLOOD, FLOOD)
