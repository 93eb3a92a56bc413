"""Room kept for workloads whose victims are leaving, from one cycle to the next.

A hold is closed to everybody of equal or lower priority; a higher one may take the room, and then the hold is broken. Kueue
keeps nothing between cycles, so under its policy there are no holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from makeway.engine.entries import Entry
from makeway.engine.ledger import Held, Part, counted_pods, usage_of
from makeway.engine.policy import Policy
from makeway.engine.quota import Usage
from makeway.engine.state import State
from makeway.model.decision import PATIENCE, RESERVATION, Hold
from makeway.model.queue import QueueName
from makeway.model.workload import Admission, Workload, WorkloadId


class Holds:
    """Those in force when the cycle began."""

    def __init__(self, state: State, now: float, policy: Policy) -> None:
        self._state = state
        self._now = now
        self._live: dict[WorkloadId, Hold] = {}
        # Who has waited long keeps what is free of its queue's own quota; nobody leaves for it.
        self._reserved: dict[WorkloadId, Hold] = {}
        if policy.victims != "kueue":
            for key, hold in state.holds.items():
                if self._is_live(hold):
                    kept = self._reserved if hold.rule == RESERVATION else self._live
                    kept[key] = hold

    def _is_live(self, hold: Hold) -> bool:
        return (
            hold.admission is not None
            and hold.until > self._now
            and self._state.waits_in(hold.workload) == hold.queue
        )

    def __contains__(self, workload: object) -> bool:
        return workload in self._live

    def holders(self) -> list[tuple[QueueName, WorkloadId]]:
        return sorted((h.queue, key) for key, h in self._live.items() if h.queue is not None)

    def claims(self) -> dict[WorkloadId, tuple[QueueName, Usage]]:
        return self._asked_for(self._live)

    def _asked_for(
        self, holds: dict[WorkloadId, Hold]
    ) -> dict[WorkloadId, tuple[QueueName, Usage]]:
        return {
            key: (hold.queue, usage_of(self._state.workloads[key], hold.admission))
            for key, hold in holds.items()
            if hold.queue is not None and hold.admission is not None
        }

    @cached_property
    def reservations(self) -> dict[WorkloadId, tuple[QueueName, Usage]]:
        return self._asked_for(self._reserved)

    def open_to(self, workload: Workload) -> list[WorkloadId]:
        """Reservations that it may use: it ranks higher, or says that it ends before they are needed."""
        runs = workload.checkpoint.expected_runtime_s
        return [
            key
            for key, hold in self._reserved.items()
            if self._state.workloads[key].priority < workload.priority
            or (runs is not None and self._now + runs <= hold.until)
        ]

    def victims(self) -> Iterator[Held]:
        """Who was told in earlier cycles, and has not left yet."""
        for hold in self._live.values():
            for victim in hold.victims:
                held = self._state.ledger.get(victim)
                if held is not None and held.workload.evicted_at is not None:
                    yield held
            yield from self._parts(hold)

    def _parts(self, hold: Hold) -> Iterator[Held]:
        """What jobs that are lowered for it still hold of what they give up."""
        for lowered in hold.lowered:
            held = self._state.ledger.get(lowered.workload)
            if held is not None and counted_pods(held.workload) > lowered.keeps:
                yield Part(held, lowered.gives, which=f"all but {lowered.keeps}")

    def comes_true(self, workload: WorkloadId) -> bool:
        """Somebody it waits for is still there. If nobody is, what they left went to another."""
        hold = self._live[workload]
        if hold.rule == PATIENCE:
            return True
        leaving = {pod.workload for pod in self._state.occupancy.leaving.values()}
        leaving |= {held.id for held in self._state.ledger.leaving()}
        leaving |= {part.workload.id for part in self._parts(hold)}
        # Without victims of its own it waits for those of others.
        return any(v in leaving for v in hold.victims) if hold.victims else bool(leaving)

    def weaker_than(self, entry: Entry) -> list[WorkloadId]:
        """Whose room this one may take: the lowest priority first, then the youngest."""
        workloads = self._state.workloads
        weaker = [key for key in self._live if workloads[key].priority < entry.workload.priority]
        return sorted(weaker, key=lambda k: (workloads[k].priority, -workloads[k].created_at, k))

    def end(self, workload: WorkloadId) -> None:
        del self._live[workload]


def hold_for(entry: Entry, now: float, policy: Policy) -> Hold:
    """What a head that waits for its victims will get."""
    return Hold(
        workload=entry.workload.id,
        queue=entry.queue,
        admission=Admission(
            queue=entry.queue,
            assignments=entry.proposal.assignments(),
            reserved_at=now,
            admitted=False,
        ),
        victims=tuple(victim.held.id for victim in entry.victims),
        until=now + policy.hold_s,
    )
