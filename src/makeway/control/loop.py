"""The loop: state → decide → apply, for ever.

Whatever changes is gathered for a moment and decided on together; a cycle's plan is carried out before the next begins, so
the state that is decided on already holds what was decided before. Between changes the loop sleeps, until the next moment at which
time alone could change a decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from makeway.control.ports import Clock, Cluster
from makeway.control.record import Recorder
from makeway.engine.cycle import decide
from makeway.engine.policy import Policy
from makeway.engine.state import State
from makeway.model.decision import Plan

log = logging.getLogger(__name__)

# Protections and patience end without anybody writing anything: look this often while somebody waits.
LOOK_AGAIN_S: Final = 10.0
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
# Deciding takes at most this share of the time: what comes meanwhile is decided on together.
SHARE: Final = 1 / 3
LONGEST_GATHER_S: Final = 0.5

OnCycle = Callable[[State, Plan, float], None]


class Loop:
    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        policy: Policy,
        *,
        state: State | None = None,
        on_cycle: OnCycle | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.state = state or State()
        self.idle = asyncio.Event()
        self.cycles = 0
        self.cluster = cluster
        self._clock = clock
        self._policy = policy
        self._on_cycle = on_cycle
        self._recorder = recorder
        self._decide_at: float | None = None
        self._failures = 0
        self._not_before = 0.0  # by the event loop's own clock

    async def run(self) -> None:
        while True:
            try:
                acted = await self.once()
                self._failures = 0
            except Exception:
                # A bug of ours must not stop everybody's work for good: say so, wait, and look at everything again.
                log.exception("a cycle failed; this is a bug in makeway, please report it")
                await asyncio.sleep(
                    min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures, 10))
                )
                self._failures += 1
                self._decide_at = 0.0
                continue
            if not acted and self.cluster.idle:
                self.idle.set()
            if not acted:
                await self.cluster.wait(self._wake_at())
                self.idle.clear()

    async def once(self) -> bool:
        """One turn; False when there was nothing to do."""
        settled = await self.cluster.settle()
        await self._gather()
        events = self.cluster.changes()
        for event in events:
            self.state.apply(event)
        now = self._clock.now()
        due = self._decide_at is not None and now >= self._decide_at
        if not events and not due:
            return settled
        self.state.history = self.cluster.history()
        # In a thread: a long cycle must not keep watches and health checks waiting.
        began = asyncio.get_running_loop().time()
        plan = await asyncio.to_thread(decide, self.state, now, self._policy)
        self._space_out(began)
        self.cycles += 1
        if self._recorder is not None:
            self._recorder.events(events)
            self._recorder.cycle(now, self.state.history, plan)
        if self._on_cycle is not None:
            self._on_cycle(self.state, plan, now)
        await self.cluster.apply(plan)
        self._decide_at = self._next_look(plan, now)
        return True

    def _space_out(self, began: float) -> None:
        """After a long cycle the next one waits a little, and carrying out the plan is part of that wait."""
        ended = asyncio.get_running_loop().time()
        pause = min(LONGEST_GATHER_S, (ended - began) * (1 / SHARE - 1))
        self._not_before = ended + pause

    async def _gather(self) -> None:
        pause = self._not_before - asyncio.get_running_loop().time()
        if pause > 0:
            await asyncio.sleep(pause)

    def _next_look(self, plan: Plan, now: float) -> float | None:
        """When time alone could change the answer."""
        times = [hold.until for hold in self.state.holds.values() if hold.until > now]
        times += [
            workload.requeue_at
            for workload in self.state.workloads.values()
            if workload.requeue_at is not None and workload.requeue_at > now
        ]
        times += [t for t in (plan.wake_at, self.cluster.decide_at()) if t is not None]
        if plan.waits:
            times.append(now + LOOK_AGAIN_S)
        return min(times, default=None)

    def _wake_at(self) -> float | None:
        times = [t for t in (self._decide_at, self.cluster.wake_at()) if t is not None]
        return min(times, default=None)
