"""The node half of a cycle: who gets which nodes, who steps aside for it, and which room is kept meanwhile.

`Rooms` answers where there is room; here it is given, promised, kept and made. The decisions are the only result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from makeway.engine import filters, gang
from makeway.engine.occupancy import occupies
from makeway.engine.placement import Demand, Shortfall
from makeway.engine.policy import Policy
from makeway.engine.refusals import Refusals, incomplete
from makeway.engine.rooms import Legality, Room, Rooms
from makeway.engine.state import State
from makeway.engine.victims import least_loss
from makeway.engine.victims.loss import notice_of
from makeway.engine.victims.oracle import QuotaTest
from makeway.engine.victims.roster import Candidate
from makeway.model.decision import (
    PATIENCE,
    RESERVATION,
    Admit,
    Bind,
    Decision,
    Evict,
    Hold,
    Lowered,
    Wait,
)
from makeway.model.node import NodeName
from makeway.model.reason import Holder, Kind, NodeVerdict, Reason
from makeway.model.workload import Placed, Pod, PodId, PodShape, Workload, WorkloadId

_WAITING_BY_RULE: dict[str, Kind] = {PATIENCE: "patience", RESERVATION: "reservation"}


class Seating(Rooms):
    def __init__(self, state: State, now: float, policy: Policy) -> None:
        super().__init__(state, now, policy)
        self.refusals = Refusals(self)
        # Promised places that this cycle has filled, by workload.
        self._kept: dict[WorkloadId, Counter[tuple[str, NodeName]]] = {}
        self._bound: dict[PodId, NodeName] = {}  # the pods that did so
        self.ended_holds: list[WorkloadId] = []
        self.lost_holds: list[
            tuple[WorkloadId, WorkloadId]
        ] = []  # whose room was taken, and by whom

    # --- pods that have no node ---

    def seat_promised(self, workload: Workload) -> tuple[list[Decision], bool]:
        """Pods whose nodes were chosen at admission; True: others are left, to be seated in their turn."""
        ask = self._ask(workload)
        if ask.missing or not workload.placement:
            return [], True
        decisions: list[Decision] = []
        if ask.core:
            promised = self._promised_places(workload, ask.core)
            if promised is None:
                return [], True
            decisions = promised
            if not isinstance(decisions[0], Admit):
                return decisions, False
        rest = False
        for pod in ask.surplus:
            promised = self._promised_places(workload, [pod])
            rest = rest or promised is None
            decisions += promised or []
        return _merged(decisions), rest

    def has_begun(self, workload: Workload) -> bool:
        """It runs, or is about to, without the pods that still want a node."""
        if workload.gang is not None:
            return not self._ask(workload).core
        members = self.occupancy.members(workload.id)
        return workload.id in self._kept or any(occupies(pod) for pod in members)

    def _ask(self, workload: Workload) -> gang.Ask:
        """With those counted that this cycle has seated."""
        members = self.occupancy.members(workload.id)
        if workload.id in self._kept:
            members = [
                msgspec.structs.replace(pod, node=self._bound[pod.id])
                if pod.id in self._bound
                else pod
                for pod in members
            ]
        return gang.ask(workload, members)

    def seat(
        self, workload: Workload, legality: Legality, quota: QuotaTest | None = None
    ) -> list[Decision]:
        """What to do about the pods of this workload that have no node. `quota`: what it holds, where queues say who may fall."""
        ask = self._ask(workload)
        if ask.missing:
            return [Wait(workload=workload.id, reason=incomplete(ask))]
        decisions: list[Decision] = []
        if ask.core:
            decisions = self._seat_together(workload, ask.core, legality, quota, may_evict=True)
            if not isinstance(decisions[0], Admit):
                return decisions
        # Surplus members take free room and evict nobody; independent pods are each for themselves.
        for pods in _alike(ask.surplus):
            alone = workload.gang is None
            decisions += self._seat_each(workload, pods, legality, quota, may_evict=alone)
        return _merged(decisions)

    def _seat_each(
        self,
        workload: Workload,
        pods: list[Pod],
        legality: Legality,
        quota: QuotaTest | None,
        *,
        may_evict: bool,
    ) -> list[Decision]:
        decisions: list[Decision] = []
        for pod in pods:
            mine = self._seat_together(workload, [pod], legality, quota, may_evict=may_evict)
            decisions += mine
            if not isinstance(mine[0], Admit):
                break  # the others are alike: what stopped this one stops them
        return decisions

    def _seat_together(
        self,
        workload: Workload,
        pods: Sequence[Pod],
        legality: Legality,
        quota: QuotaTest | None,
        *,
        may_evict: bool,
    ) -> list[Decision]:
        """These pods, all or none: on the places they were promised, else wherever there is room."""
        promised = self._promised_places(workload, pods)
        if promised is not None:
            return promised
        demands = gang.demands_of(workload, pods)
        if self.waits_for_room(workload):
            taken = self._take_if_free(workload, demands, pods, quota)
            taker = None if isinstance(taken, Admit) else self._taker(workload, demands)
            if taker is None:
                return [taken]
            # A higher one took the room: what it waits for will not come.
            self.end_hold(workload.id, taker)
        room = self.find_room(workload, demands, legality, quota, may_evict=may_evict)
        if isinstance(room, Shortfall) or (room.later and not may_evict):
            shortfall = (
                room if isinstance(room, Shortfall) else Shortfall(demand=demands[0], placed=0)
            )
            reserved = self.reserve(workload, demands, pods=pods) if may_evict else []
            why = self.refusals.why_not(workload, shortfall)
            return [*reserved, Wait(workload=workload.id, reason=why, parked=not reserved)]
        binds = gang.binds_of(demands, pods, room.placement)
        if not room.later:
            return [self._admit(workload, binds)]
        if (
            self.policy.victims == "kube"
            and not room.victims
            and not self._outranks(workload, room)
        ):
            # kube-scheduler promises nothing to who evicts nobody: it looks again when they have left. Of those who leave
            # already it evicts the weaker ones once more, and so takes the room from others who wait for it.
            why = self.refusals.why_not(workload, Shortfall(demand=demands[0], placed=0))
            return [Wait(workload=workload.id, reason=why, parked=True)]
        return self.make_way(workload, room, nominations=binds)

    def _take_if_free(
        self,
        workload: Workload,
        demands: Sequence[Demand],
        pods: Sequence[Pod],
        quota: QuotaTest | None,
    ) -> Admit | Wait:
        """Room is on its way to it: it takes what is free now, there or elsewhere, and evicts nobody more."""
        with self._as_seen_by(workload):
            found = self.placer.place(demands)
            fits = quota is None or quota.fits()
        if isinstance(found, Shortfall) or not fits:
            return Wait(workload=workload.id, reason=self.waiting_for_victims(workload))
        return self._admit(workload, gang.binds_of(demands, pods, found))

    def _taker(self, workload: Workload, demands: Sequence[Demand]) -> WorkloadId | None:
        """Who of higher priority has, or was promised, the room that is kept for it; None while it may still come."""
        hold = self.holds[workload.id]
        kept = {name for name, _ in self._held_room(hold)}
        stronger = self._stronger_on(kept, workload)
        if hold.rule == PATIENCE or not stronger:
            return None
        with self._as_seen_by(workload), self._once_they_are_gone():
            for victim in hold.victims:  # a restart may find some that nobody has told yet
                for pod in self.occupancy.members(victim):
                    if pod.node in kept and pod.id not in self.going and occupies(pod):
                        self._lift(pod)
            comes = not isinstance(self.placer.place(demands), Shortfall)
        return None if comes else stronger[-1]

    def _stronger_on(self, nodes: set[NodeName], workload: Workload) -> list[WorkloadId]:
        """Of higher priority, on these nodes or about to be; the last that came at the end."""
        rows = [self.table.row_of[name] for name in nodes if name in self.table.row_of]
        came = {
            pod.workload: self.now if pod.started_at is None else pod.started_at
            for row in rows
            for pod in self.table.pods_on[row].values()
            if self._rank_of(pod.workload) > workload.rank
        }
        for rank, held in self._held_by_rank.items():
            if rank > workload.rank:
                for hold in held.values():
                    if any(name in nodes for name, _ in self._held_room(hold)):
                        came[hold.workload] = math.inf
        return sorted(came, key=lambda w: (came[w], w))

    def _rank_of(self, workload: WorkloadId) -> float:
        found = self.workloads.get(workload)
        return -math.inf if found is None else found.rank

    def _outranks(self, workload: Workload, room: Room) -> bool:
        """All who leave the places that it would get are weaker, and somebody does."""
        nodes = {placed.node for placed in room.placement}
        leaving = {pod.workload for pod in self.going.values() if pod.node in nodes}
        return bool(leaving) and all(self._rank_of(w) < workload.rank for w in leaving)

    def waits_for_room(self, workload: Workload) -> bool:
        """Room is on its way to it; what it merely keeps together while it waits is no promise of that."""
        hold = self.holds.get(workload.id)
        return hold is not None and hold.rule != RESERVATION

    def reserve(
        self,
        workload: Workload,
        demands: Sequence[Demand],
        *,
        pods: Sequence[Pod] = (),
        after_s: float | None = None,
        quota: Hold | None = None,
    ) -> list[Decision]:
        """Large gangs do not starve: who has waited long keeps the places it could have, until it can have all.

        `pods`: those that exist; without them the places are kept for pods to come. `after_s`: as its queue says.
        `quota`: what it asks of its queue, to be kept too.
        """
        after_s = self.policy.reserve_after_s if after_s is None else after_s
        since = workload.created_at if workload.queued_at is None else workload.queued_at
        if self.now < since + after_s:
            self._look_again(since + after_s)
            return []
        others = any(h.rule == RESERVATION and w != workload.id for w, h in self.holds.items())
        asked = demands or (quota.admission.assignments if quota and quota.admission else ())
        if others or sum(part.count for part in asked) < 2 or not self._could_ever_fit(demands):
            return []  # one at a time, the first in line
        with self.table.what_if():
            kept = self.place_some(workload, demands)
        hold = Hold(
            workload=workload.id,
            queue=quota.queue if quota else None,
            admission=quota.admission if quota else None,
            nominations=gang.binds_of(demands, pods, kept) if pods else (),
            placement=() if pods else kept,
            until=self._could_start_at(demands, self.now + after_s),
            rule=RESERVATION,
        )
        before = self.holds.get(workload.id)
        same = before is not None and _places(before) == _places(hold)
        if same or not (kept or quota):
            return []  # nothing is free yet, or nothing new
        self.end_hold(workload.id)
        self.holds[workload.id] = hold
        self._file(hold)
        self._take_hold(hold, 1)
        self._look_again(hold.until)
        return [hold]

    def _could_start_at(self, demands: Sequence[Demand], otherwise: float) -> float:
        """When enough others will have ended, as they say: until then the kept room may be lent."""
        start = self._room_after_ends(demands, self._ending_by(math.inf))
        return otherwise if start is None or start.comes_at is None else start.comes_at

    def _could_ever_fit(self, demands: Sequence[Demand]) -> bool:
        """On the same nodes with nobody there: what does not fit then keeps room from others for nothing."""
        with self.table.what_if():
            rows = np.flatnonzero(self.table.live)
            self.table.take_many(rows, self.table.free[rows] - self.table.alloc[rows])
            return not isinstance(self.placer.place(demands), Shortfall)

    def _admit(self, workload: Workload, binds: tuple[Bind, ...]) -> Admit:
        self.take_places(binds)
        self.end_hold(workload.id)
        return Admit(workload=workload.id, binds=binds)

    def _promised_places(self, workload: Workload, pods: Sequence[Pod]) -> list[Decision] | None:
        """Bind to the nodes chosen at admission; None when the promise does not hold for all of these pods."""
        if not workload.placement:
            return None
        left = self.occupancy.promised_places(workload)
        left.subtract(self._kept.get(workload.id, {}))
        binds: list[Bind] = []
        free_now = True
        for pod in pods:
            node = self._promised_node(left, pod)
            if node is None:
                return None
            left[pod.pod_set, node] -= 1
            binds.append(Bind(pod=pod.id, node=node))
            free_now = free_now and self._nothing_overdrawn(workload, self.table.row_of[node])
        if not free_now and not any(
            pod.node in {b.node for b in binds} for pod in self.going.values()
        ):
            return None  # nobody leaves who could make the promise good
        if not free_now:
            return [Wait(workload=workload.id, reason=self._waiting_for_room(workload))]
        self._keep_promise(workload, binds)
        return [Admit(workload=workload.id, binds=tuple(binds))]

    def _nothing_overdrawn(self, workload: Workload, row: int) -> bool:
        """The promise itself is counted as taken; so is room that is kept for others and lent to this one meanwhile."""
        if bool((self.table.free[row] >= 0).all()):
            return True
        with self._as_seen_by(workload):
            return bool((self.table.free[row] >= 0).all())

    def _promised_node(self, left: Counter[tuple[str, NodeName]], pod: Pod) -> NodeName | None:
        for (pod_set, name), count in sorted(left.items()):
            row = self.table.row_of.get(name)
            if pod_set != pod.pod_set or count <= 0 or row is None:
                continue
            node = self.table.nodes[row]
            if node is not None and not filters.site_verdict(pod.shape, node):
                return name
        return None

    def _keep_promise(self, workload: Workload, binds: Sequence[Bind]) -> None:
        """The pod takes the room that was counted for it."""
        kept = self._kept.setdefault(workload.id, Counter())
        for bind in binds:
            pod = self.occupancy.pods[bind.pod]
            kept[pod.pod_set, bind.node] += 1
            self._bound[pod.id] = bind.node
            row = self.table.row_of[bind.node]
            self.table.take(row, -self.table.need(pod.shape))
            self.table.put(msgspec.structs.replace(pod, node=bind.node), row)

    def _waiting_for_room(self, workload: Workload) -> Reason:
        leaving = sorted({pod.workload for pod in self.going.values()})
        return Reason(
            kind="waiting-for-victims",
            kueue="WaitingForPreemptedWorkloads",
            verdicts=self.refusals.verdicts(self.refusals.pending_shape(workload)),
            nodes_total=int(self.table.live.sum()),
            holders=tuple(Holder(workload=w) for w in leaving),
        )

    def take_places(self, binds: Sequence[Bind]) -> None:
        for bind in binds:
            pod = self.occupancy.pods[bind.pod]
            self.table.put(
                msgspec.structs.replace(pod, node=bind.node), self.table.row_of[bind.node]
            )

    def end_hold(self, workload: WorkloadId, taker: WorkloadId | None = None) -> None:
        hold = self.holds.pop(workload, None)
        if hold is not None and taker is not None:
            self.lost_holds.append((workload, taker))
        if hold is not None:
            for held in self._held_by_rank.values():
                held.pop(workload, None)
            self._take_hold(hold, -1)
            self.ended_holds.append(workload)

    # --- making way ---

    def make_way(
        self,
        workload: Workload,
        room: Room,
        *,
        nominations: tuple[Bind, ...] = (),
        placement: tuple[Placed, ...] = (),
    ) -> list[Decision]:
        """Evict the victims, hold the room, and say what it waits for."""
        if workload.id in self.holds and not room.victims:
            # It waits for those who were told before, and the room is kept: nothing new to say.
            return [Wait(workload=workload.id, reason=self.waiting_for_victims(workload))]
        # What the nodes lack is said of the nodes as they are, before anybody makes way.
        self.refusals.verdicts(self.refusals.pending_shape(workload))
        evicts: list[Decision] = []
        lowered: list[Lowered] = []
        longest = 0.0
        for victim in _pods_of_lowered_jobs_together(room.victims):
            notice = notice_of(victim.workload, victim.pods, self.policy.max_notice_s)
            longest = max(longest, notice)
            if victim.lowers:
                lowered.append(self._lower(victim.workload, len(victim.pods)))
            evicts.append(
                Evict(
                    workload=victim.workload.id,
                    pods=() if victim.whole else tuple(pod.id for pod in victim.pods),
                    keeps=lowered[-1].keeps if victim.lowers else None,
                    preemptor=workload.id,
                    reason=Reason(
                        kind="preempted",
                        kueue="Preempted",
                        preemptor=workload.id,
                        rule=room.rules.get(victim.workload.id, least_loss.PRIORITY),
                        loss=victim.loss_ms / 1000,
                    ),
                    loss=victim.loss_ms / 1000,
                    notice_s=notice,
                )
            )
            self._fall(victim)
        if room.comes_at is not None:
            longest = room.comes_at - self.now
        gone_by = max(self.now + longest, self.gone_by)
        self.end_hold(workload.id)
        hold = Hold(
            workload=workload.id,
            placement=placement,
            nominations=nominations,
            victims=tuple(dict.fromkeys(victim.workload.id for victim in room.victims))
            or room.comes_from,
            lowered=tuple(lowered),
            until=gone_by + self.policy.hold_s,
            loss=room.loss_ms / 1000,
            bound=room.bound_ms / 1000,
            steps=room.steps,
            alternatives=room.alternatives,
            rule=PATIENCE
            if room.comes_at is not None
            else ", ".join(sorted(set(room.rules.values()))),
        )
        self.holds[workload.id] = hold
        self._file(hold)
        self._take_hold(hold, 1)
        self._look_again(hold.until)
        return [
            *evicts,
            hold,
            Wait(workload=workload.id, reason=self.waiting_for_victims(workload)),
        ]

    def waiting_for_victims(self, workload: Workload) -> Reason:
        hold = self.holds[workload.id]
        return Reason(
            kind=_WAITING_BY_RULE.get(hold.rule, "waiting-for-victims"),
            kueue="WaitingForPreemptedWorkloads",
            verdicts=self._verdicts_beside(hold, workload),
            nodes_total=int(self.table.live.sum()),
            holders=tuple(
                Holder(workload=w, priority=self.workloads[w].priority)
                for w in hold.victims
                if w in self.workloads
            ),
            loss=hold.loss,
            alternatives=hold.alternatives,
            until=hold.until,
        )

    def _verdicts_beside(self, hold: Hold, workload: Workload) -> tuple[NodeVerdict, ...]:
        """What the nodes lack: the room that is kept for itself is not missing."""
        self._take_hold(hold, -1)
        try:
            return self.refusals.verdicts(self.refusals.pending_shape(workload))
        finally:
            self._take_hold(hold, 1)


def _pods_of_lowered_jobs_together(victims: Sequence[Candidate]) -> list[Candidate]:
    """A job is lowered once, however many of its pods fall."""
    result: list[Candidate] = []
    place: dict[WorkloadId, int] = {}
    for victim in victims:
        if not victim.lowers:
            result.append(victim)
        elif victim.workload.id not in place:
            place[victim.workload.id] = len(result)
            result.append(victim)
        else:
            before = result[place[victim.workload.id]]
            result[place[victim.workload.id]] = msgspec.structs.replace(
                before,
                pods=tuple(sorted((*before.pods, *victim.pods), key=lambda pod: pod.id)),
                loss_ms=before.loss_ms + victim.loss_ms,
            )
    return result


def _places(hold: Hold) -> tuple[object, ...]:
    given = hold.admission.assignments if hold.admission is not None else ()
    return hold.placement, hold.nominations, given


def _alike(pods: Sequence[Pod]) -> list[list[Pod]]:
    groups: dict[tuple[str, PodShape], list[Pod]] = {}
    for pod in pods:
        groups.setdefault((pod.pod_set, pod.shape), []).append(pod)
    return list(groups.values())


def _merged(decisions: list[Decision]) -> list[Decision]:
    """One Admit for all pods of a workload, and its reason to wait only if something waits."""
    binds: list[Bind] = []
    others: list[Decision] = []
    waits: list[Wait] = []
    for decision in decisions:
        if isinstance(decision, Admit):
            binds += decision.binds
        elif isinstance(decision, Wait):
            waits.append(decision)
        else:
            others.append(decision)
    result: list[Decision] = []
    if binds:
        result.append(
            Admit(
                workload=next(d.workload for d in decisions if isinstance(d, Admit)),
                binds=tuple(binds),
            )
        )
    return [*result, *others, *waits[:1]]
