"""Reason → sentence, for CLI, web, conditions and events alike. The words are those that Kueue's users know.

`explain` answers for one workload, live. One function per sentence; `events` and `conditions` gather them for a whole plan, in the order in which Kueue writes them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from makeway.control.sentences import sentence
from makeway.engine.policy import Policy
from makeway.engine.protection import DAY_S
from makeway.engine.state import State
from makeway.engine.why import why
from makeway.model.decision import Admit, Considered, Evict, Plan, Wait
from makeway.model.history import Eviction, Past, owner_of
from makeway.model.reason import Reason
from makeway.model.workload import Workload, WorkloadId


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why one workload is where it is, for people and for programs."""

    workload: WorkloadId
    owner: str  # "Job/team-a/train", where it stands for a job
    waits: bool
    why: str  # one sentence
    reason: Reason | None = None  # None: it does not wait
    evictions: tuple[Eviction, ...] = ()  # within a day, oldest first


def explain(state: State, workload: WorkloadId, now: float, policy: Policy) -> Explanation:
    """Computed live, by the same engine that decides; nothing is changed by asking."""
    asked = state.workloads[workload]
    reason = why(state, workload, now, policy)
    past = state.history.get(owner_of(asked), Past())
    return Explanation(
        workload=workload,
        owner=asked.owner,
        waits=reason is not None,
        why=sentence(reason) if reason is not None else _why_it_does_not_wait(state, asked),
        reason=reason,
        evictions=tuple(e for e in past.evictions if now - DAY_S < e.at <= now),
    )


def _why_it_does_not_wait(state: State, workload: Workload) -> str:
    if workload.finished:
        return "it has finished"
    if workload.evicted_at is not None:
        return "it was told to stop, and waits again when its pods are gone"
    nodes = sorted({p.node for p in state.occupancy.members(workload.id) if p.node is not None})
    where = f" on {', '.join(nodes[:_NODES_NAMED])}" if nodes else ""
    more = f" and {len(nodes) - _NODES_NAMED} more nodes" if len(nodes) > _NODES_NAMED else ""
    if workload.admission is not None:
        return f"it is admitted in ClusterQueue {workload.admission.queue} and runs{where}{more}"
    return f"it runs{where}{more}"


_NODES_NAMED = 3
EVENT_LIMIT = 1024  # characters of an event's note that the API accepts
CONDITION_LIMIT = 32 * 1024
_LONGEST_WAIT_S = (2**63 - 1) / 1e9  # Go counts durations in int64 nanoseconds

_BECAUSE = {
    "InClusterQueue": "prioritization in the ClusterQueue",
    "InCohortReclamation": "reclamation within the cohort",
    "InCohortFairSharing": "Fair Sharing within the cohort",
    "InCohortReclaimWhileBorrowing": "reclamation within the cohort while borrowing",
}


class WorkloadEvent(msgspec.Struct, frozen=True, kw_only=True):
    workload: WorkloadId
    type: str  # Normal or Warning
    reason: str
    message: str


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str
    message: str


# -- who waits -------------------------------------------------------------------------------------------------------


def pending_condition(wait: Wait) -> Condition:
    return Condition(
        type="QuotaReserved",
        status="False",
        reason=wait.reason.kueue,
        message=wait.reason.message[:CONDITION_LIMIT],
    )


NO_RESERVATION = Condition(
    type="Admitted",
    status="False",
    reason="NoReservation",
    message="The workload has no reservation",
)


def pending_event(wait: Wait) -> WorkloadEvent:
    return WorkloadEvent(
        workload=wait.workload,
        type="Warning",
        reason=wait.reason.kueue,
        message=wait.reason.message[:EVENT_LIMIT],
    )


def blocked_on_gate(wait: Wait) -> Condition:
    return Condition(
        type="BlockedOnPreemptionGates",
        status="True",
        reason="PreemptionGated",
        message=wait.reason.message,
    )


# -- who gets in -----------------------------------------------------------------------------------------------------


def quota_reserved(queue: str) -> str:
    return f"Quota reserved in ClusterQueue {queue}"


def quota_reserved_event(admit: Admit, workload: Workload, now: float) -> WorkloadEvent:
    assert admit.admission is not None
    waited = _seconds(now - _queued_since(workload))
    message = f"{quota_reserved(admit.admission.queue)}, wait time since queued was {waited}s"
    if admit.considered:
        message += f"; Flavors considered: {flavors_considered(admit.considered)}"
    return WorkloadEvent(
        workload=admit.workload,
        type="Normal",
        reason="QuotaReserved",
        message=message[:EVENT_LIMIT],
    )


def admitted_event(admit: Admit, waited_s: float) -> WorkloadEvent:
    assert admit.admission is not None
    return WorkloadEvent(
        workload=admit.workload,
        type="Normal",
        reason="Admitted",
        message=f"Admitted by ClusterQueue {admit.admission.queue},"
        f" wait time since reservation was {_seconds(waited_s)}s",
    )


def flavors_considered(considered: tuple[Considered, ...]) -> str:
    by_pod_set: dict[str, list[str]] = {}
    for item in considered:
        by_pod_set.setdefault(item.pod_set, []).append(_flavor_considered(item))
    return " | ".join(f"{pod_set}: {', '.join(items)}" for pod_set, items in by_pod_set.items())


def _flavor_considered(item: Considered) -> str:
    mode = item.mode if item.mode in ("NoFit", "Fit") else f"preemptionMode={item.mode}"
    parts = [mode]
    if item.borrow:
        parts.append(f"borrow={item.borrow}")
    return f"{item.flavor}({';'.join([*parts, *item.reasons])})"


def admitted_condition(admit: Admit) -> Condition:
    if admit.admission is not None and not admit.admission.admitted:
        return Condition(
            type="Admitted",
            status="False",
            reason="UnsatisfiedAdmissionChecks",
            message="The workload has not all checks ready",
        )
    return Condition(
        type="Admitted", status="True", reason="Admitted", message="The workload is admitted"
    )


# -- who has to go ---------------------------------------------------------------------------------------------------


def preemption_message(evict: Evict, state: State) -> str:
    preemptor = state.workloads[evict.preemptor]
    return (
        f"Preempted to accommodate a workload (UID: {preemptor.uid or 'UNKNOWN'},"
        f" JobUID: {preemptor.owner_uid or 'UNKNOWN'}) due to {_BECAUSE[evict.reason.rule]};"
        f" preemptor path: {_path(state, preemptor)};"
        f" preemptee path: {_path(state, state.workloads[evict.workload])}"
    )


def eviction_message(evict: Evict, state: State) -> str:
    return preemption_message(evict, state) if evict.preemptor else evict.reason.message


def _path(state: State, workload: Workload) -> str:
    if workload.admission is not None:
        queue: str | None = workload.admission.queue
    else:
        queue = state.queue_of(workload)
    return state.ledger.queue(queue or "").path()


def _priorities(preemptor: Workload, victim: Workload) -> str:
    return (
        f"preemptor effective priority: {_priority(preemptor)};"
        f" preemptee effective priority: {_priority(victim)}"
    )


def _priority(workload: Workload) -> str:
    return (
        f"{workload.priority} (base: {workload.priority - workload.boost}, boost: {workload.boost})"
    )


def preemption_events(evict: Evict, state: State) -> Iterator[WorkloadEvent]:
    message = preemption_message(evict, state)
    preemptor, victim = state.workloads[evict.preemptor], state.workloads[evict.workload]
    priorities = _priorities(preemptor, victim)
    queue = victim.admission.queue if victim.admission is not None else ""
    yield WorkloadEvent(
        workload=victim.id,
        type="Normal",
        reason="EvictedDueToPreempted",
        message=message[:EVENT_LIMIT],
    )
    yield WorkloadEvent(
        workload=victim.id,
        type="Normal",
        reason="Preempted",
        message=f"{message}; {priorities}"[:EVENT_LIMIT],
    )
    yield WorkloadEvent(
        workload=preemptor.id,
        type="Normal",
        reason="PreemptedWorkload",
        message=f"Preempted workload {victim.id} (UID: {victim.uid}) in ClusterQueue {queue};"
        f" {priorities}"[:EVENT_LIMIT],
    )


def eviction_conditions(evict: Evict, state: State) -> tuple[Condition, ...]:
    message = eviction_message(evict, state)[:CONDITION_LIMIT]
    evicted = Condition(type="Evicted", status="True", reason=evict.reason.kueue, message=message)
    if not evict.preemptor:
        return (evicted,)
    return evicted, Condition(
        type="Preempted", status="True", reason=evict.reason.rule, message=message
    )


# -- a whole plan ----------------------------------------------------------------------------------------------------


def events(plan: Plan, state: State, now: float) -> list[WorkloadEvent]:
    """As Kueue emits them; `state` as it was when the plan was made."""
    result: list[WorkloadEvent] = []
    for decision in plan.decisions:
        match decision:
            case Evict(already=True):
                pass
            case Evict():
                result += _eviction_events(decision, state)
            case Admit():
                result += _admission_events(decision, state, now)
            case Wait():
                result.append(pending_event(decision))
            case _:
                pass
    return result


def _eviction_events(evict: Evict, state: State) -> Iterator[WorkloadEvent]:
    if evict.preemptor:
        yield from preemption_events(evict, state)
        return
    yield WorkloadEvent(
        workload=evict.workload,
        type="Normal",
        reason=f"EvictedDueTo{evict.reason.kueue}",
        message=evict.reason.message,
    )


def _admission_events(admit: Admit, state: State, now: float) -> Iterator[WorkloadEvent]:
    if admit.admission is None:
        return
    workload = state.workloads[admit.workload]
    waited = 0.0
    if workload.admission is None:
        yield quota_reserved_event(admit, workload, now)
    else:
        waited = now - workload.admission.reserved_at
    if admit.admission.admitted:
        yield admitted_event(admit, waited)


def conditions(plan: Plan, state: State) -> dict[WorkloadId, tuple[Condition, ...]]:
    """What each workload's status says after the plan, by type; types not listed stay as they are."""
    result: dict[WorkloadId, tuple[Condition, ...]] = {}
    for decision in plan.decisions:
        match decision:
            case Evict(already=False):
                result[decision.workload] = eviction_conditions(decision, state)
            case Admit(admission=admission) if admission is not None:
                reserved = Condition(
                    type="QuotaReserved",
                    status="True",
                    reason="QuotaReserved",
                    message=quota_reserved(admission.queue),
                )
                result[decision.workload] = (reserved, admitted_condition(decision))
            case Wait():
                result[decision.workload] = _waiting_conditions(decision)
            case _:
                pass
    return result


def _waiting_conditions(wait: Wait) -> tuple[Condition, ...]:
    written = (pending_condition(wait), NO_RESERVATION)
    return (*written, blocked_on_gate(wait)) if wait.reason.kind == "gated" else written


def _queued_since(workload: Workload) -> float:
    return workload.created_at if workload.queued_at is None else workload.queued_at


def _seconds(duration: float) -> str:
    return f"{min(duration, _LONGEST_WAIT_S):.0f}"
