"""Who goes next: every comparison written once, each ending in a tie-break that does not depend on luck.

Keys sort ascending; smaller goes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

from makeway.engine.policy import Policy
from makeway.model.workload import Workload

# A preempted lender queues just behind whoever took its quota back, so that the two do not swap for ever.
_AFTER_RECLAIM_S = 0.001


def queue_timestamp(workload: Workload, policy: Policy) -> float:
    """The age a workload queues by: its creation, unless an eviction sent it to the back."""
    if workload.evicted_at is not None:
        if workload.evicted_reason == "AdmissionCheck":
            return workload.evicted_at
        slow_pods = workload.evicted_reason == "PodsReadyTimeout"
        if slow_pods and policy.requeuing_timestamp == "Eviction":
            return workload.evicted_at
    if not policy.priority_within_cohort and _lost_borrowed_quota(workload):
        return (workload.last_preemption_at or 0.0) + _AFTER_RECLAIM_S
    return workload.created_at


def _lost_borrowed_quota(workload: Workload) -> bool:
    return (
        workload.last_preemption_at is not None
        and workload.last_preemption_reason == "InCohortReclaimWhileBorrowing"
    )


PendingKey = tuple[int, float, str, str]


def pending_key(workload: Workload, policy: Policy) -> PendingKey:
    """Inside one queue: priority, age, uid."""
    return (
        -workload.priority,
        queue_timestamp(workload, policy),
        workload.uid,
        workload.id,
    )


LineKey = tuple[float, bool, PendingKey]


def line_key(key: PendingKey, *, local_usage: float, sticky: bool) -> LineKey:
    """The local queue that used least, where that counts; then who waits for its victims to leave; then as above."""
    return (local_usage, not sticky, key)


EntryKey = tuple[bool, bool, int, int, float, str]


def entry_key(
    workload: Workload, policy: Policy, *, borrowing: int, second_pass: bool, preemptor: bool
) -> EntryKey:
    """Heads of different queues: who needs least that is not its own, then priority, then age."""
    return (
        not second_pass,
        not (policy.preemptors_first and preemptor),
        borrowing,
        -workload.priority if policy.priority_within_cohort else 0,
        queue_timestamp(workload, policy),
        workload.id,
    )


MemberKey = tuple[bool, int, float, str, str]


def member_key(workload: Workload) -> MemberKey:
    """Inside one queue, whom to ask first to step aside.

    Who leaves anyway, then the lowest priority, then the youngest: it has the least work to lose.
    """
    admission = workload.admission
    return (
        workload.evicted_at is None,
        workload.priority,
        -math.inf if admission is None else -admission.reserved_at,
        workload.uid,
        workload.id,
    )


CandidateKey = tuple[bool, bool, int, float, str, str]


def candidate_key(workload: Workload, *, own_queue: bool) -> CandidateKey:
    """Over several queues: after those who leave anyway, who uses other people's quota goes before one's own.

    Then as inside one queue. What local queues have used is compared only inside a queue: see `used_most_first`.
    """
    leaving, priority, age, uid, name = member_key(workload)
    return (leaving, own_queue, priority, age, uid, name)


T = TypeVar("T")


def used_most_first(members: Iterable[T], usage_of: Callable[[T], float]) -> list[T]:
    """Inside one queue, where usage counts: who came in through the local queue that used most; then in the order given."""
    return sorted(members, key=lambda member: -usage_of(member))
