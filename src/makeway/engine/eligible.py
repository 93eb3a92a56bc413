"""Everybody who could be evicted now, at what price, and what keeps them safe from whom.

The roster is built when somebody is first asked to fall, once a cycle. Protections are the same for whoever asks; only who fell for
whom depends on the two (`displacers`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from makeway.engine import gang
from makeway.engine.nodes import Mask
from makeway.engine.occupancy import occupies
from makeway.engine.policy import Policy
from makeway.engine.protection import Grant, displacers_of, grant_of, protection_of
from makeway.engine.state import State
from makeway.engine.victims import least_loss
from makeway.engine.victims.loss import Intervals, loss_of
from makeway.engine.victims.roster import Candidate, Roster
from makeway.model.history import owner_of
from makeway.model.queue import QueueName
from makeway.model.workload import Budget, Pod, Workload, WorkloadId


class Eligible:
    def __init__(self, state: State, now: float, policy: Policy) -> None:
        self._state = state
        self.occupancy = state.occupancy
        self.workloads = state.workloads
        self.budgets = state.budgets
        self.history = state.history
        self.now = now
        self.policy = policy
        self.usual_interval = Intervals(state.workloads.values())
        self.surplus: dict[WorkloadId, int] = {}  # pods that can be taken singly
        self.protected_until = math.inf  # the first protection that ends by itself does so then
        self._roster: Roster | None = None
        self._displaced: dict[WorkloadId, frozenset[str]] = {}

    @property
    def has_been_asked(self) -> bool:
        return self._roster is not None

    @property
    def roster(self) -> Roster:
        if self._roster is None:
            # kube-scheduler knows no local queues, and Kueue asks by `Request.used`.
            counts = self.policy.usage_order is not None and self.policy.victims == "least-loss"
            used = self._state.usage if counts else None
            self._roster = Roster(self.occupancy.table, list(self._candidates()), used)
        return self._roster

    @cached_property
    def protected(self) -> frozenset[WorkloadId]:
        """Workloads that may not fall whole, for whomever."""
        return frozenset(c.workload.id for c in self.roster.candidates if c.whole and c.protected)

    def price_of(self, workload: WorkloadId) -> int:
        """What evicting it whole costs; what runs nothing yet costs nothing."""
        unit = self._whole_unit(workload)
        return 0 if unit is None else unit.loss_ms

    def protection_of(self, workload: WorkloadId) -> str:
        """Why nobody may evict it, as the end of a sentence; "" if that is so for none of its units."""
        units = [self.roster.candidates[u] for u in self.roster.by_workload.get(workload, ())]
        protected = [unit.protected for unit in units if unit.protected]
        return protected[0] if protected and len(protected) == len(units) else ""

    def guarded_by(self, workload: WorkloadId) -> str:
        """The disruption budget that its eviction would overdraw, as a sentence."""
        if not self.policy.budgets_are_hard:
            return ""
        for unit in self.roster.by_workload.get(workload, ()):
            drawn = Counter(self.roster.candidates[unit].budgets)
            for key, count in sorted(drawn.items()):
                allowed = self.budgets[key].allowed
                if count > allowed:
                    return f"PodDisruptionBudget {key} allows {allowed} disruptions"
        return ""

    def budgets_of(self, workload: WorkloadId) -> tuple[str, ...]:
        unit = self._whole_unit(workload)
        return () if unit is None else unit.budgets

    def _whole_unit(self, workload: WorkloadId) -> Candidate | None:
        units = (self.roster.candidates[u] for u in self.roster.by_workload.get(workload, ()))
        return next((unit for unit in units if unit.whole), None)

    def _candidates(self) -> Iterator[Candidate]:
        for workload in self._holding_quota_only():
            yield self._candidate(workload, (), whole=True)
        for workload_id, members in self.occupancy.by_workload.items():
            found = self.workloads.get(workload_id)
            if found is None or found.finished or found.evicted_at is not None:
                continue
            if found.foreign and not self.policy.evict_foreign:
                continue
            workload = found
            there = tuple(p for p in members.values() if occupies(p) and p.gone_by is None)
            if len(there) > 1:
                there = tuple(sorted(there, key=lambda p: p.id))
            if not there and workload.admission is None:
                continue
            if workload.gang is None and workload.admission is None:
                for pod in there:
                    yield self._candidate(workload, (pod,), whole=False)
                continue
            yield self._candidate(workload, there, whole=True)
            # Single pods make room on nodes; quota comes back with the whole workload, or where its job is lowered.
            lowers = self._lowers(workload)
            spare = self._spare(workload, there) if lowers else gang.surplus_of(workload, there)
            if spare:
                self.surplus[workload_id] = spare
                for pod in there:
                    yield self._candidate(workload, (pod,), whole=False, lowers=lowers)

    def _lowers(self, workload: Workload) -> bool:
        """Kueue stops whole workloads and kube-scheduler single pods: neither lowers a job."""
        return (
            workload.lowers_to is not None
            and workload.admission is not None
            and self.policy.victims == "least-loss"
        )

    def _spare(self, workload: Workload, there: tuple[Pod, ...]) -> int:
        assert workload.lowers_to is not None
        return max(0, len(there) - workload.lowers_to)

    def _holding_quota_only(self) -> Iterator[Workload]:
        """Admitted, and none of its pods exists yet."""
        for workload in self.workloads.values():
            if workload.admission is None or workload.id in self.occupancy.by_workload:
                continue
            if workload.evicted_at is None and not workload.finished and workload.active:
                yield workload

    def _candidate(
        self, workload: Workload, pods: tuple[Pod, ...], *, whole: bool, lowers: bool = False
    ) -> Candidate:
        past = self.history.get(owner_of(workload)) if self.history else None
        loss = loss_of(
            workload,
            pods,
            self.now,
            usual_interval_s=self.usual_interval.of(workload),
            save_s=past.save_s if past is not None else None,
            cores_per_gpu=self.policy.cores_per_gpu,
        )
        protected = ""
        asks = workload.protected or past is not None or workload.checkpoint.min_runtime_s
        if asks and self.policy.victims == "least-loss":
            grant = self._grant(workload)
            protected, until = protection_of(workload, pods, self.now, grant, past)
            if until is not None:
                self.protected_until = min(self.protected_until, until)
        if len(pods) == 1:
            started = pods[0].started_at or self.now
        else:
            started = max((pod.started_at or self.now for pod in pods), default=self.now)
        drawn: tuple[str, ...] = ()
        if self.budgets:
            drawn = tuple(b.id for p in pods for b in self.budgets.values() if _counts_for(b, p))
        return Candidate(
            workload=workload,
            pods=pods,
            whole=whole,
            lowers=lowers,
            loss_ms=round(loss * 1000),
            started_at=started,
            promised=tuple(self.occupancy.promised.get(workload.id, ())) if whole else (),
            budgets=drawn,
            protected=protected,
        )

    def _grant(self, workload: Workload) -> Grant:
        ledger = self._state.ledger
        held = ledger.get(workload.id)
        if held is None:
            return grant_of(None, self.policy, borrows=False)
        borrows = ledger.queue(held.queue).is_borrowing(held.usage)
        queue = self._state.queues.get(QueueName(held.queue))
        return grant_of(queue, self.policy, borrows=borrows)

    # --- a victim cannot displace its displacer ---

    def displacers(self, workload: Workload) -> Mask:
        """Who made it fall, or made those fall who did: it does not displace them in turn."""
        mask = np.zeros(len(self.roster), np.bool_)
        for key in self.out_of_bounds(workload):
            mask[self.roster.by_workload.get(key, [])] = True
        return mask

    def out_of_bounds(self, workload: Workload) -> frozenset[WorkloadId]:
        if not self._displacers_of(workload):
            return frozenset()
        units = self.roster.candidates
        return frozenset(c.workload.id for c in units if self.fell_for(workload, c.workload))

    def fell_for(self, workload: Workload, other: Workload) -> bool:
        """Whether it was displaced by the other, or by who was: it takes neither its place nor the room kept for it."""
        return owner_of(other) in self._displacers_of(workload)

    def _displacers_of(self, workload: Workload) -> frozenset[str]:
        known = self._displaced.get(workload.id)
        if known is None:
            known = displacers_of(workload, self.now, self.history) if self.history else frozenset()
            self._displaced[workload.id] = known
        return known


def by_pod_priority(workload: Workload, roster: Roster) -> least_loss.Legal:
    """No queue between them: pod priority strictly lower."""
    mask = (roster.pod_priority < workload.rank) & ~roster.protected
    return least_loss.Legal(mask=mask, band=roster.pod_priority)


def _counts_for(budget: Budget, pod: Pod) -> bool:
    return (
        budget.namespace == pod.shape.namespace
        and budget.selector is not None
        and bool(budget.selector.requirements)
        and bool(pod.shape.labels)
        and pod.id.split("/", 1)[-1] not in budget.disrupted
        and budget.selector.matches(dict(pod.shape.labels))
    )
