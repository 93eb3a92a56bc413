"""Quota and nodes in one decision: what a queued workload asks of the nodes, and whom it may take it from.

Legality is pairwise, whatever is short: two workloads of one cohort tree follow their queues' policies; everybody else is
measured by pod priority.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from makeway.engine.eligible import by_pod_priority
from makeway.engine.entries import Entry
from makeway.engine.holds import hold_for
from makeway.engine.ledger import Part
from makeway.engine.placement import Demand, Shortfall, with_flavors
from makeway.engine.policy import Policy
from makeway.engine.proposal import Proposal
from makeway.engine.rooms import Legality, Room
from makeway.engine.seating import Seating
from makeway.engine.state import State
from makeway.engine.victims import least_loss
from makeway.engine.victims.candidates import Request, why_safe
from makeway.engine.victims.quota_room import QuotaRoom
from makeway.engine.victims.roster import Roster
from makeway.model.decision import Admit, Decision, Hold, Wait
from makeway.model.queue import Flavor, QueueName
from makeway.model.workload import Admission, Assignment, Placed, Workload


class Joint:
    def __init__(self, state: State, seating: Seating, now: float, policy: Policy) -> None:
        self.state = state
        self.seating = seating
        self.now = now
        self.policy = policy

    # --- what it asks of the nodes ---

    def needs_nodes(self, workload: Workload, assignments: Sequence[Assignment]) -> bool:
        """Quota-only workloads leave placing to others; elastic flavors get their nodes on demand."""
        if self.policy.quota_only or workload.needs != "both":
            return False
        flavors = [
            self.state.flavors[f]
            for a in assignments
            for _, f in a.flavors
            if f in self.state.flavors
        ]
        return not (flavors and all(flavor.elastic for flavor in flavors))

    def demands(self, workload: Workload, assignments: Sequence[Assignment]) -> list[Demand]:
        if not self.needs_nodes(workload, assignments):
            return []
        shapes = {pod_set.name: pod_set for pod_set in workload.pod_sets}
        demands: list[Demand] = []
        for assignment in assignments:
            pod_set = shapes[assignment.pod_set]
            flavors: list[Flavor] = [
                self.state.flavors[f] for _, f in assignment.flavors if f in self.state.flavors
            ]
            if assignment.count:
                demands.append(
                    Demand(
                        pod_set=assignment.pod_set,
                        shape=with_flavors(pod_set.shape, flavors),
                        count=assignment.count,
                        topology=pod_set.topology,
                        near=pod_set.group or pod_set.name,
                    )
                )
        return demands

    # --- is there room? ---

    def room(self, workload: Workload, queue: QueueName, proposal: Proposal) -> Room | Shortfall:
        """On the nodes, for a workload whose quota fits."""
        demands = self.demands(workload, proposal.assignments())
        if not demands:
            return Room(placement=())
        quota = self.quota_room(workload, queue, proposal, need=frozenset(proposal.usage))
        room = self.seating.find_room(
            workload,
            demands,
            self.legality(quota),
            quota,
            may_evict=not self.seating.waits_for_room(workload),
        )
        return self._or_as_many_as_fit(workload, demands, room)

    def room_by_evicting(
        self, workload: Workload, queue: QueueName, proposal: Proposal
    ) -> Room | None:
        """Quota is short, perhaps nodes too: the cheapest victims for both, with those who leave already gone."""
        demands = self.demands(workload, proposal.assignments())
        quota = self.quota_room(workload, queue, proposal, need=proposal.need)
        with quota.once_they_are_gone():
            room = self.seating.find_room(workload, demands, self.legality(quota), quota)
        return None if isinstance(room, Shortfall) else room

    def release_leaving(self) -> bool:
        """Inside a what-if: the quota of everybody who was told to stop, in this cycle or before. False: nobody was."""
        ledger = self.state.ledger
        fallen = [workload for workload, pods in self.seating.fallen if not pods]
        leaving = [held.id for held in ledger.leaving()]
        for workload in dict.fromkeys([*leaving, *fallen]):
            ledger.release(workload)
        for workload, pods in self.seating.giving_up.items():
            held = ledger.get(workload)
            if held is not None:
                ledger.give_back(Part(held, pods))
        return bool(leaving or fallen or self.seating.giving_up)

    def _or_as_many_as_fit(
        self, workload: Workload, demands: Sequence[Demand], room: Room | Shortfall
    ) -> Room | Shortfall:
        """Independent pods: one that fits is enough to start, and none waits for the others' room to come by itself."""
        comes = isinstance(room, Shortfall) or room.comes_at is not None
        if workload.gang is not None or not comes:
            return room
        some = self.seating.place_some(workload, demands)
        return Room(placement=some) if some else room

    # --- whom may it take it from? ---

    def quota_room(
        self,
        workload: Workload,
        queue: QueueName,
        proposal: Proposal,
        need: frozenset[tuple[str, str]],
    ) -> QuotaRoom:
        request = Request(
            workload=workload,
            queue=queue,
            usage=proposal.usage,
            need=need,
            preemption=self.state.queues[queue].preemption,
            policy=self.policy,
            now=self.now,
            usable=lambda name: name in self.state.queues and self.state.is_active(QueueName(name)),
        )
        return QuotaRoom(self.state.ledger, request, self.release_leaving)

    def legality(self, quota: QuotaRoom) -> Legality:
        tree = self.state.ledger.queue(quota.request.queue).root()

        def legal(workload: Workload, roster: Roster) -> least_loss.Legal:
            plain = by_pod_priority(workload, roster)
            mask, band = plain.mask.copy(), plain.band.copy()
            for unit, candidate in enumerate(roster.candidates):
                admission = candidate.workload.admission
                if admission is None or self.state.ledger.queue(admission.queue).root() is not tree:
                    continue
                mask[unit] = (
                    candidate.workload.id in quota.candidates and not roster.protected[unit]
                )
                band[unit] = candidate.workload.priority
            return least_loss.Legal(mask=mask, band=np.asarray(band), rule=quota.rule)

        return legal

    def refusal(self, asking: Workload, holder: Workload) -> str:
        """The rule of the queues that keeps `holder` safe; "" where no queue is between the two, or none does."""
        queue = asking.admission.queue if asking.admission else self.state.queue_of(asking)
        held = self.state.ledger.get(holder.id)
        if queue is None or held is None:
            return ""
        node = self.state.ledger.queue(held.queue)
        if node.root() is not self.state.ledger.queue(queue).root():
            return ""
        preemption = self.state.queues[queue].preemption
        return why_safe(node, queue, preemption, asking, held, self.policy)

    # --- making way ---

    def room_without(self, entry: Entry) -> Room | None:
        """The victims are given, as Kueue would choose them; the nodes must suffice once they are gone."""
        roster = self.seating.eligible.roster
        chosen = [
            roster.candidates[unit]
            for victim in entry.victims
            for unit in roster.by_workload.get(victim.held.id, ())
            if roster.candidates[unit].whole
        ]
        demands = self.demands(entry.workload, entry.proposal.assignments())
        room = self.seating.room_without(entry.workload, demands, chosen)
        if room is None:
            return None
        return msgspec.structs.replace(room, rules={v.held.id: v.rule for v in entry.victims})

    def way(self, entry: Entry, room: Room) -> list[Decision]:
        """The evictions, each by the rule that allows it, and the hold of quota and nodes."""
        decisions = self.seating.make_way(entry.workload, room, placement=room.placement)
        kept = hold_for(entry, self.now, self.policy)
        return [
            msgspec.structs.replace(decision, queue=kept.queue, admission=kept.admission)
            if isinstance(decision, Hold)
            else decision
            for decision in decisions
            if not isinstance(decision, Wait)
        ]

    def seat_unqueued(self, workload: Workload) -> list[Decision]:
        return self.seating.seat(workload, by_pod_priority)

    def seat_admitted(self, workload: Workload) -> list[Decision]:
        """Pods of a workload that holds quota already: nodes may be short again, after a node was lost."""
        admission = workload.admission
        if admission is None or admission.queue not in self.state.queues:
            return self.seating.seat(workload, by_pod_priority)
        quota = self.quota_held(workload, admission)
        return self.seating.seat(workload, self.legality(quota), quota)

    def pass_gate(self, workload: Workload, opened: Admission) -> list[Decision]:
        """Its last check is ready: now its nodes are chosen. It keeps its quota until it has them."""
        demands = self.demands(workload, opened.assignments)
        admit = Admit(workload=workload.id, admission=opened)
        if not demands:
            return [admit]
        quota = self.quota_held(workload, opened)
        waits = self.seating.waits_for_room(workload)
        room = self.seating.find_room(
            workload, demands, self.legality(quota), quota, may_evict=not waits
        )
        room = self._or_as_many_as_fit(workload, demands, room)
        if isinstance(room, Shortfall) and waits:
            return [Wait(workload=workload.id, reason=self.seating.waiting_for_victims(workload))]
        if isinstance(room, Shortfall):
            why = msgspec.structs.replace(
                self.seating.refusals.why_not(workload, room), kueue="WaitingForNodes"
            )
            return [Wait(workload=workload.id, reason=why, parked=True)]
        if room.victims or room.comes_at is not None:
            return self.seating.make_way(workload, room, placement=room.placement)
        self.take_nodes(demands, room.placement)
        self.seating.end_hold(workload.id)
        return [msgspec.structs.replace(admit, placement=room.placement)]

    def take_nodes(
        self, demands: Sequence[Demand], placement: Sequence[Placed], sign: int = 1
    ) -> None:
        """For the rest of the cycle (-1: given back)."""
        for demand in demands:
            mine = [place for place in placement if place.pod_set == demand.pod_set]
            self.seating.take_rooms(demand.shape, mine, sign)

    def quota_held(self, workload: Workload, admission: Admission) -> QuotaRoom:
        """Nothing more is asked of quota; it only says who may be taken from."""
        usage: dict[tuple[str, str], int] = {
            (flavor, resource): 0 for a in admission.assignments for resource, flavor in a.flavors
        }
        request = Request(
            workload=workload,
            queue=admission.queue,
            usage=usage,
            need=frozenset(usage),
            preemption=self.state.queues[admission.queue].preemption,
            policy=self.policy,
            now=self.now,
        )
        return QuotaRoom(self.state.ledger, request, self.release_leaving)
