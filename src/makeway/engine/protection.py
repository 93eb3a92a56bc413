"""Who is left in peace for a while: exemption labels, minimum runtime, a daily budget, and peace after repeated losses.

Protections are granted by administrators: what a workload asks for counts up to its queue's maximum, and no minimum runtime
outlasts an hour a start. Who was evicted twice within a day is left alone for five minutes, doubling with each further loss; who
was evicted as often as its queue allows in a day is left alone until the first of these is a day old. And between two workloads:
a victim cannot displace its displacer, also not by way of others.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from makeway.engine.policy import Policy
from makeway.model.history import History, Past, owner_of
from makeway.model.queue import Queue
from makeway.model.workload import Pod, Workload

DAY_S = 86_400.0
LONGEST_S = 3_600.0
_FIRST_PEACE_S = 300.0
_LOSSES_BEFORE_PEACE = 2


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What an administrator lets a workload have."""

    runtime_s: float  # minimum runtimes count up to this
    preemptions_per_day: int | None = None  # None: as many as it takes


def grant_of(queue: Queue | None, policy: Policy, *, borrows: bool) -> Grant:
    """By the queue where it says something, else by configuration; who borrows is granted no time by default."""
    if queue is None:
        return Grant(
            runtime_s=policy.max_protection_s, preemptions_per_day=policy.preemptions_per_day
        )
    runtime_s = queue.max_protection_s
    if runtime_s is None:
        runtime_s = 0.0 if borrows else policy.max_protection_s
    per_day = queue.preemptions_per_day
    return Grant(
        runtime_s=runtime_s,
        preemptions_per_day=policy.preemptions_per_day if per_day is None else per_day,
    )


def protection_of(
    workload: Workload, pods: Sequence[Pod], now: float, grant: Grant, past: Past | None
) -> tuple[str, float | None]:
    """Why it is safe ("" if it is not), and until when if that ends by itself."""
    if workload.protected:
        return workload.protected, None
    if past is None and not workload.checkpoint.min_runtime_s:
        return "", None
    losses = [e.at for e in past.evictions if now - DAY_S < e.at <= now] if past else []
    if grant.preemptions_per_day is not None and 0 < grant.preemptions_per_day <= len(losses):
        return (
            f"it was evicted {len(losses)} times within 24 h, as often as its queue allows",
            losses[-grant.preemptions_per_day] + DAY_S,
        )
    started = max((pod.started_at for pod in pods if pod.started_at is not None), default=None)
    if started is None:
        return "", None
    granted = min(workload.checkpoint.min_runtime_s, grant.runtime_s, LONGEST_S)
    if granted and now < started + granted:
        return f"it runs for less than its minimum of {granted:.0f} s", started + granted
    if len(losses) >= _LOSSES_BEFORE_PEACE:
        peace = min(_FIRST_PEACE_S * 2 ** (len(losses) - _LOSSES_BEFORE_PEACE), LONGEST_S)
        if now < started + peace:
            return (
                f"it was evicted {len(losses)} times within 24 h and has peace for {peace:.0f} s",
                started + peace,
            )
    return "", None


def displacers_of(workload: Workload, now: float, history: History) -> frozenset[str]:
    """The owners that this one fell for within a day, those that they fell for, and so on.

    Priorities alone never make a circle. Priorities, queues and reclaim together can: then the circle is cut here.
    """
    found: set[str] = set()
    asked = [owner_of(workload)]
    while asked:
        past = history.get(asked.pop())
        if past is None:
            continue
        fresh = {e.by for e in past.evictions if e.by and now - DAY_S < e.at <= now} - found
        found |= fresh
        asked += sorted(fresh)
    return frozenset(found - {owner_of(workload)})
