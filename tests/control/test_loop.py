"""The loop: decides when something changed, sleeps when nothing does, survives its own mistakes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from makeway.control import loop as loops
from makeway.control.loop import Loop
from makeway.engine.policy import Policy
from makeway.model.decision import Plan, Wait
from makeway.model.event import Event, Namespace, Upsert
from makeway.model.history import History
from makeway.model.reason import Reason
from makeway.model.workload import WorkloadId


class HandClock:
    time = 1000.0

    def now(self) -> float:
        return self.time


class QuietCluster:
    """Says what it is told to say, and keeps what it is asked to do."""

    def __init__(self) -> None:
        self.news: list[Event] = []
        self.plans: list[Plan] = []
        self.waits: list[float | None] = []
        self.woken = asyncio.Event()
        self.applied = asyncio.Event()
        self.idle = True

    async def wait(self, until: float | None) -> None:
        self.waits.append(until)
        await self.woken.wait()
        self.woken.clear()

    async def settle(self) -> bool:
        return False

    def changes(self) -> Sequence[Event]:
        news, self.news = self.news, []
        return news

    def history(self) -> History:
        return {}

    async def apply(self, plan: Plan) -> None:
        self.plans.append(plan)
        self.applied.set()

    def wake_at(self) -> float | None:
        return None

    def decide_at(self) -> float | None:
        return None


def made() -> tuple[Loop, QuietCluster, HandClock]:
    cluster, clock = QuietCluster(), HandClock()
    return Loop(cluster, clock, Policy()), cluster, clock


CHANGE = Upsert(obj=Namespace(name="team"))


async def test_nothing_changed_nothing_decided() -> None:
    loop, cluster, _ = made()
    assert not await loop.once()
    cluster.news = [CHANGE]
    assert await loop.once()
    assert not await loop.once()
    assert len(cluster.plans) == 1


async def test_looks_again_when_time_alone_could_change_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, cluster, clock = made()
    waiting = Wait(workload=WorkloadId("team/w"), reason=Reason(kind="no-quota"))
    plans = [Plan(decisions=(waiting,)), Plan(wake_at=1015.0), Plan()]
    monkeypatch.setattr(loops, "decide", lambda *_: plans.pop(0))
    cluster.news = [CHANGE]
    await loop.once()
    assert not await loop.once()
    clock.time += loops.LOOK_AGAIN_S
    assert await loop.once()
    clock.time = 1015.0
    assert await loop.once()
    clock.time = 5000.0
    assert not await loop.once()


async def test_reports_idle_and_wakes_up() -> None:
    loop, cluster, _ = made()
    cluster.news = [CHANGE]
    task = asyncio.create_task(loop.run())
    await asyncio.wait_for(loop.idle.wait(), 5)
    assert len(cluster.plans) == 1
    cluster.news = [CHANGE]
    cluster.woken.set()
    cluster.applied.clear()
    await asyncio.wait_for(cluster.applied.wait(), 5)
    assert len(cluster.plans) == 2
    task.cancel()


async def test_a_failed_cycle_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop, cluster, _ = made()
    answers: Iterator[Plan | Exception] = iter([ZeroDivisionError("bug"), Plan()])

    def decide(*_: object) -> Plan:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(loops, "decide", decide)
    monkeypatch.setattr(loops, "FIRST_PAUSE_S", 0.0)
    cluster.news = [CHANGE]
    task = asyncio.create_task(loop.run())
    await asyncio.wait_for(loop.idle.wait(), 5)
    task.cancel()
    assert len(cluster.plans) == 1
    assert "this is a bug in makeway" in caplog.text
