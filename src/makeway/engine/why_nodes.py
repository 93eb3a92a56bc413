"""Why the nodes have no room for a workload: what is missing where, who is there, what keeps them safe, what would help.

The question is the one a cycle asks (`Seating.find_room`), put again with one thing changed at a time: no required topology,
fewer pods, a higher priority, more nodes. All of it is what-if work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from makeway.engine import gang
from makeway.engine.eligible import by_pod_priority
from makeway.engine.joint import Joint
from makeway.engine.placement import Demand, Shortfall
from makeway.engine.proposal import Proposal
from makeway.engine.refusals import incomplete
from makeway.engine.rooms import Legality, Room
from makeway.engine.victims.oracle import QuotaTest
from makeway.model.queue import QueueName
from makeway.model.reason import Holder, Reason, Shortage
from makeway.model.resources import PODS, format_amount, is_accelerator
from makeway.model.workload import Admission, PodShape, Workload, WorkloadId

MOST_HOLDERS = 5  # the largest; a list of hundreds explains nothing
_NAMED = 3

# Whom a workload may take from, and what quota says to it.
Terms = Callable[[Joint, Workload], tuple[Legality, QuotaTest | None]]


def unqueued_terms(_joint: Joint, _workload: Workload) -> tuple[Legality, QuotaTest | None]:
    return by_pod_priority, None


def held_terms(held: Admission) -> Terms:
    """It has its quota, and wants nothing but nodes."""

    def terms(joint: Joint, workload: Workload) -> tuple[Legality, QuotaTest | None]:
        quota = joint.quota_held(workload, held)
        return joint.legality(quota), quota

    return terms


def queued_terms(queue: QueueName, proposal: Proposal) -> Terms:
    """Its quota is free."""

    def terms(joint: Joint, workload: Workload) -> tuple[Legality, QuotaTest | None]:
        quota = joint.quota_room(workload, queue, proposal, need=frozenset(proposal.usage))
        return joint.legality(quota), quota

    return terms


def some_names(workloads: Iterable[str]) -> str:
    names = list(dict.fromkeys(workloads))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


class NodeQuestion:
    """`demands`: what it asks of the nodes; left out: its pods that wait."""

    def __init__(
        self,
        joint: Joint,
        workload: Workload,
        terms: Terms,
        demands: Sequence[Demand] | None = None,
    ) -> None:
        self.joint = joint
        self.seating = joint.seating
        self.table = joint.seating.table
        self.workload = workload
        self.terms = terms
        self.ask = gang.ask(workload, self.seating.occupancy.members(workload.id))
        if demands is None:
            demands = gang.demands_of(workload, self.ask.core or self.ask.surplus[:1])
        self.demands = demands

    def answer(self) -> Reason:
        if self.ask.missing and self.workload.admission is None and self.workload.needs == "nodes":
            return incomplete(self.ask)
        hold = self.seating.holds.get(self.workload.id)
        if hold is not None and hold.victims:
            return self.seating.waiting_for_victims(self.workload)
        room = self._room(self.workload, self.demands)
        if isinstance(room, Shortfall):
            return self._missing(room)
        if room.victims:
            names = some_names(victim.workload.id for victim in room.victims)
            return Reason(
                kind="waiting-for-victims",
                message=f"It would get in by preempting {names}.",
                loss=room.loss_ms / 1000,
                alternatives=room.alternatives,
            )
        if room.comes_at is not None:
            message = f"It would rather wait for {some_names(room.comes_from)} to end than evict."
            return Reason(kind="patience", message=message, until=room.comes_at)
        if room.later:
            leaving = some_names(sorted({pod.workload for pod in self.seating.going.values()}))
            return Reason(kind="waiting-for-victims", message=f"It starts when {leaving} is gone.")
        return Reason(kind="fits", message="It fits now and waits for its turn.")

    def _room(self, workload: Workload, demands: Sequence[Demand]) -> Room | Shortfall:
        legality, quota = self.terms(self.joint, workload)
        return self.seating.find_room(workload, demands, legality, quota)

    def _missing(self, shortfall: Shortfall) -> Reason:
        reason = self.seating.refusals.why_not(self.workload, shortfall)
        return msgspec.structs.replace(
            reason,
            kind="topology" if self._only_topology_is_in_the_way() else reason.kind,
            shortages=(*reason.shortages, *self._shortages()),
            holders=tuple(self._holders()),
            cheapest=self._cheapest(shortfall),
        )

    # -- what is missing, and where ------------------------------------------------------------------------------

    def _shortages(self) -> Iterable[Shortage]:
        """Of each resource: what all its pods ask for against what is free on the nodes that it may use."""
        for demand in self.demands:
            view = self.seating.placer.view(demand.shape)
            nodes = int(view.suits.sum())
            for resource, one in demand.shape.requests:
                column = self.table.columns[resource]
                free = np.maximum(self.table.free[view.suits, column], 0)
                capacity = self.table.alloc[view.suits, column]
                enough_in_sum = one * demand.count <= int(free.sum())
                if enough_in_sum and (not len(free) or one <= int(free.max())):
                    continue
                # Enough in sum, and not on any one node: then one pod and the freest node are compared.
                asked = one if enough_in_sum else one * demand.count
                there = int(free.max(initial=0)) if enough_in_sum else int(free.sum())
                yield Shortage(
                    resource=resource,
                    missing=asked - there,
                    requested=asked,
                    free=there,
                    limit=int(capacity.max(initial=0)) if enough_in_sum else int(capacity.sum()),
                    nodes=1 if enough_in_sum else nodes,
                )

    # -- who is there --------------------------------------------------------------------------------------------

    def _holders(self) -> Iterable[Holder]:
        """On the nodes that it may use, the largest first."""
        resource = _main_resource(self.demands[0].shape) if self.demands else PODS
        used: Counter[WorkloadId] = Counter()
        suits = np.zeros(len(self.table.live), np.bool_)
        for demand in self.demands:
            suits |= self.seating.placer.view(demand.shape).suits
        for row in np.flatnonzero(suits).tolist():
            for pod in self.table.pods_on[row].values():
                amount = dict(pod.shape.requests).get(resource, 0) if resource != PODS else 1
                if amount:
                    used[pod.workload] += amount
        largest = sorted(used.items(), key=lambda item: (-item[1], item[0]))
        for key, _ in largest[:MOST_HOLDERS]:
            holder = self.seating.workloads.get(key)
            if holder is not None:
                queue = holder.admission.queue if holder.admission is not None else ""
                yield Holder(
                    workload=key,
                    priority=holder.priority,
                    queue=queue,
                    safe_because=self._safe_because(holder),
                )

    def _safe_because(self, holder: Workload) -> str:
        """The first rule that keeps it from being evicted for the one who waits; "" when none does."""
        if holder.foreign and not self.seating.policy.evict_foreign:
            return "it belongs to another scheduler"
        if holder.evicted_at is not None:
            return "it is already leaving"
        if not self.workload.preempts:
            return f"{self.workload.id} has preemptionPolicy Never"
        protected = self.seating.eligible.protection_of(holder.id)
        if protected:
            return protected
        return self._refused_by_rules(holder) or self.seating.eligible.guarded_by(holder.id)

    def _refused_by_rules(self, holder: Workload) -> str:
        units = self.seating.eligible.roster.by_workload.get(holder.id, ())
        legality, _ = self.terms(self.joint, self.workload)
        legal = legality(self.workload, self.seating.eligible.roster)
        if any(legal.mask[unit] for unit in units):
            return ""
        return self.joint.refusal(self.workload, holder) or (
            f"its priority {holder.rank} is not below {self.workload.rank}"
        )

    # -- what would help -----------------------------------------------------------------------------------------

    def _cheapest(self, shortfall: Shortfall) -> str:
        """What costs its owner least first; nodes that somebody has to buy last."""
        if self._only_topology_is_in_the_way():
            level = next(d.topology.level for d in self.demands if d.topology is not None)
            return f"it would fit now if {level} were preferred instead of required"
        return (
            self._fewer_pods()
            or self._permission_to_preempt()
            or self._higher_priority()
            or self._more_nodes(shortfall)
        )

    def _only_topology_is_in_the_way(self) -> bool:
        free = [msgspec.structs.replace(demand, topology=None) for demand in self.demands]
        if not any(d.topology is not None and d.topology.required for d in self.demands):
            return False
        return not isinstance(self.seating.placer.place(free), Shortfall)

    def _fewer_pods(self) -> str:
        if len(self.demands) != 1 or self.demands[0].count < 2:
            return ""
        count = self.demands[0].count
        low, high, best = 1, count - 1, 0
        while low <= high:  # fewer never fit worse
            middle = (low + high) // 2
            smaller = msgspec.structs.replace(self.demands[0], count=middle)
            if isinstance(self.seating.placer.place([smaller]), Shortfall):
                high = middle - 1
            else:
                best, low = middle, middle + 1
        return f"{best} of its {count} pods would fit now" if best else ""

    def _permission_to_preempt(self) -> str:
        if self.workload.preempts:
            return ""
        allowed = msgspec.structs.replace(self.workload, preempts=True)
        room = self._room(allowed, self.demands)
        if isinstance(room, Shortfall) or not room.victims:
            return ""
        names = some_names(victim.workload.id for victim in room.victims)
        return f"without preemptionPolicy Never it would preempt {names}"

    def _higher_priority(self) -> str:
        """The lowest priority that would find victims."""
        roster = self.seating.eligible.roster
        taken = {c.workload.priority for c in roster.candidates}
        taken |= set(roster.pod_priority.tolist())
        own = min(self.workload.priority, self.workload.rank)
        for priority in sorted(p + 1 for p in taken if p >= own):
            raised = msgspec.structs.replace(
                self.workload, priority=priority, pod_priority=priority, preempts=True
            )
            room = self._room(raised, self.demands)
            if not isinstance(room, Shortfall) and room.victims:
                names = some_names(victim.workload.id for victim in room.victims)
                return f"a priority of {priority} would let it preempt {names}"
        return ""

    def _more_nodes(self, shortfall: Shortfall) -> str:
        demand = shortfall.demand
        view = self.seating.placer.view(demand.shape)
        asked = np.flatnonzero(view.need)
        per_node = self.table.alloc[view.suits][:, asked] // view.need[asked]
        most = int(per_node.min(axis=1).max(initial=0)) if len(per_node) else 0
        wanted = ", ".join(
            f"{format_amount(resource, amount)} {resource}"
            for resource, amount in demand.shape.requests
        )
        if not most:
            return f"a node that it may use with at least {wanted}"
        nodes = -(-(demand.count - shortfall.placed) // most)
        plural = "node" if nodes == 1 else "nodes"
        return f"{nodes} more {plural} like those it may use, empty ({wanted} for each pod)"


def _main_resource(shape: PodShape) -> str:
    """The one by which people count it: its devices, else its CPU, else its slots."""
    names = [resource for resource, amount in shape.requests if amount]
    devices = [name for name in names if is_accelerator(name)]
    return next(iter([*devices, *(n for n in names if n == "cpu"), *names]), PODS)
