"""Decisions under way are part of the state until the watch confirms them: what we asked for counts as done."""

from __future__ import annotations

import msgspec

from makeway.engine.state import State
from makeway.model.decision import Admit, Evict, Hold, Plan
from makeway.model.event import Remove, Upsert


def assume(state: State, plan: Plan, now: float) -> None:
    """A decision that then fails is taken back by applying the workload as it really is."""
    for decision in plan.decisions:
        match decision:
            case Admit(admission=admission) if admission is not None:
                workload = msgspec.structs.replace(
                    state.workloads[decision.workload],
                    admission=admission,
                    evicted_at=None,
                    evicted_reason="",
                )
                state.apply(Upsert(obj=workload))
                state.apply(Remove(type=Hold, key=decision.workload))
            case Evict(pods=(), already=False):
                workload = msgspec.structs.replace(
                    state.workloads[decision.workload],
                    evicted_at=now,
                    evicted_reason=decision.reason.kueue,
                )
                state.apply(Upsert(obj=workload))
            case Hold(until=until) if until > now:
                state.apply(Upsert(obj=decision))
            case Hold():
                state.apply(Remove(type=Hold, key=decision.workload))
            case _:
                pass
