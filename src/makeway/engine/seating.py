"""The node half of a cycle: who gets which nodes, who steps aside for it, and which room is kept meanwhile.

All of it is what-if work on the node table, undone when the cycle ends; the decisions are the only result. Room has three
states for who asks: free now; free once those who are leaving are gone; free once somebody legal is evicted. Holds (room freed
for somebody) count as taken for everybody of equal or lower priority.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial

import msgspec
import numpy as np

from makeway.engine import filters, gang
from makeway.engine.nodes import Rows, Vector
from makeway.engine.occupancy import Occupancy, occupies, waits
from makeway.engine.placement import Demand, Shortfall
from makeway.engine.policy import Policy
from makeway.engine.protection import Grant, displacers_of, grant_of, protection_of
from makeway.engine.state import State
from makeway.engine.victims import kube, least_loss
from makeway.engine.victims.loss import Intervals, loss_of, notice_of
from makeway.engine.victims.oracle import QuotaTest
from makeway.engine.victims.roster import Candidate, Roster, lift
from makeway.model.decision import (
    PATIENCE,
    RESERVATION,
    Admit,
    Bind,
    Decision,
    Evict,
    Hold,
    Wait,
)
from makeway.model.history import History, owner_of
from makeway.model.node import NodeName
from makeway.model.queue import QueueName
from makeway.model.reason import Holder, Kind, NodeVerdict, Reason, Shortage
from makeway.model.workload import Budget, Placed, Pod, PodId, PodShape, Workload, WorkloadId

_WAITING_BY_RULE: dict[str, Kind] = {PATIENCE: "patience", RESERVATION: "reservation"}

Legality = Callable[[Workload, Roster], least_loss.Legal]


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to "is there room?": the places, and whom it takes."""

    placement: tuple[Placed, ...]
    victims: tuple[Candidate, ...] = ()
    rules: dict[WorkloadId, str] = {}  # by which rule of the queues each victim falls
    later: bool = False  # not before somebody is gone
    comes_at: float | None = None  # by itself, when these have ended as they said
    comes_from: tuple[WorkloadId, ...] = ()
    loss_ms: int = 0
    bound_ms: int = 0
    steps: int = 0


class Seating:
    def __init__(
        self,
        occupancy: Occupancy,
        workloads: dict[WorkloadId, Workload],
        holds: dict[WorkloadId, Hold],
        budgets: dict[str, Budget],
        now: float,
        policy: Policy,
        usual_interval: Callable[[Workload], float | None],
        history: History,
        grant: Callable[[Workload], Grant],
    ) -> None:
        self.occupancy = occupancy
        self.table = occupancy.table
        self.placer = occupancy.placer
        self.workloads = workloads
        self.holds = dict(holds)
        self._held_by_rank: dict[int, dict[WorkloadId, Hold]] = {}
        for hold in holds.values():
            self._file(hold)
        self.budgets = budgets
        self.now = now
        self.policy = policy
        self.usual_interval = usual_interval
        self.history = history
        self.grant = grant
        self.going: dict[PodId, Pod] = {}  # who is leaving, those of this cycle included
        self._going_order: list[PodId] = []
        self._counted = 0
        self._coming: dict[int, Vector] = {}
        self._unpromised: list[tuple[NodeName, Vector]] = []  # promises to those who fell
        self._leave(occupancy.leaving.values())
        self.fallen: set[tuple[WorkloadId, tuple[PodId, ...]]] = set()
        self._fallen_units: list[int] = []
        # Promised places that this cycle has filled, by workload.
        self._kept: dict[WorkloadId, Counter[tuple[str, NodeName]]] = {}
        self._bound: dict[PodId, NodeName] = {}  # the pods that did so
        self.ended_holds: list[WorkloadId] = []
        self.wake_at: float | None = None
        self._displaced: dict[WorkloadId, frozenset[str]] = {}
        self.protected_until = math.inf  # the first protection that ends by itself does so then
        self._roster: Roster | None = None
        self._refused: dict[PodShape, tuple[NodeVerdict, ...]] = {}
        self._verdicts: dict[tuple[PodShape, int], Reason] = {}

    @classmethod
    def of(cls, state: State, now: float, policy: Policy) -> Seating:
        return cls(
            state.occupancy,
            state.workloads,
            state.holds,
            state.budgets,
            now,
            policy,
            Intervals(state.workloads.values()).of,
            state.history,
            partial(_grant, state, policy),
        )

    # --- the cycle's frame ---

    @contextmanager
    def open(self) -> Iterator[None]:
        """Everything decided inside is undone on the table when it closes."""
        self.occupancy.refresh_mix()
        with self.table.what_if():
            for hold in self.holds.values():
                self._look_again(hold.until)
                self._take_hold(hold, 1)
            yield

    def _look_again(self, when: float) -> None:
        if when > self.now:
            self.wake_at = when if self.wake_at is None else min(self.wake_at, when)

    def _take_hold(self, hold: Hold, sign: int) -> None:
        for name, amount in self._held_room(hold):
            row = self.table.row_of.get(name)
            if row is not None:
                self.table.take(row, amount * sign)

    def _held_room(self, hold: Hold) -> list[tuple[NodeName, Vector]]:
        workload = self.workloads.get(hold.workload)
        if workload is None:
            return []
        shapes = {pod_set.name: pod_set.shape for pod_set in workload.pod_sets}
        # Once admitted, its own placement is counted as taken: the hold must not count the same room again.
        rooms = [
            (placed.node, self.table.need(shapes[placed.pod_set]) * placed.count)
            for placed in hold.placement
            if placed.pod_set in shapes and workload.id not in self.occupancy.promised
        ]
        for nomination in hold.nominations:
            pod = self.occupancy.pods.get(nomination.pod)
            if pod is not None and not occupies(pod):
                rooms.append((nomination.node, self.table.need(pod.shape)))
        return rooms

    @contextmanager
    def _as_seen_by(self, workload: Workload) -> Iterator[None]:
        """Its own hold, and those of lower priority, are open to it."""
        with self.table.what_if():
            for hold in self._open_to(workload):
                self._take_hold(hold, -1)
            yield

    def _open_to(self, workload: Workload) -> Iterator[Hold]:
        """By rank: of a thousand who wait with the same priority, none is asked about the others."""
        for rank, held in self._held_by_rank.items():
            if rank < workload.rank:
                yield from (h for h in held.values() if not self._fell_for_holder(workload, h))
            elif workload.checkpoint.expected_runtime_s is not None:
                yield from (
                    h
                    for h in held.values()
                    if h.workload == workload.id or self._ends_before(workload, h)
                )
            elif workload.id in held:
                yield held[workload.id]

    def _fell_for_holder(self, workload: Workload, hold: Hold) -> bool:
        holder = self.workloads.get(hold.workload)
        return holder is not None and self.fell_for(workload, holder)

    def _file(self, hold: Hold) -> None:
        holder = self.workloads.get(hold.workload)
        if holder is not None:  # of nobody: takes no room
            self._held_by_rank.setdefault(holder.rank, {})[hold.workload] = hold

    def _ends_before(self, workload: Workload, hold: Hold) -> bool:
        """Backfill: it says that it has ended before the one who waits could start."""
        runs = workload.checkpoint.expected_runtime_s
        return hold.rule == RESERVATION and runs is not None and self.now + runs <= hold.until

    @contextmanager
    def _once_they_are_gone(self) -> Iterator[None]:
        """As it will be when everybody who is leaving has left."""
        with self.table.what_if():
            if self.table.choosy:
                for pod in self.going.values():
                    self._lift(pod)
            elif self.going:
                self.table.take_many(*self._room_on_its_way())
            for name, amount in self._unpromised:
                row = self.table.row_of.get(name)
                if row is not None:
                    self.table.take(row, -amount)
            yield

    def _lift(self, pod: Pod) -> None:
        row = self.table.row_of.get(pod.node) if pod.node is not None else None
        if row is not None:
            self.table.lift(pod, row)

    def _room_on_its_way(self) -> tuple[Rows, Rows]:
        """What those who are leaving will give back, row by row; counted once for each who joins them."""
        width = len(self.table.columns)
        while self._counted < len(self.going):
            pod = self.going[self._going_order[self._counted]]
            self._counted += 1
            row = self.table.row_of.get(pod.node) if pod.node is not None else None
            if row is not None:
                before = self._coming.get(row)
                need = self.table.need(pod.shape)
                self._coming[row] = need if before is None else before + need
        rows = np.array(list(self._coming), np.int64)
        amounts = np.zeros((len(rows), width), np.int64)
        for i, amount in enumerate(self._coming.values()):
            amounts[i, : len(amount)] = amount
        return rows, -amounts

    # --- is there room? ---

    def find_room(
        self,
        workload: Workload,
        demands: Sequence[Demand],
        legality: Legality,
        quota: QuotaTest | None = None,
        may_evict: bool = True,
    ) -> Room | Shortfall:
        """Places for every demand: now, once others have left, or at the price of victims."""
        with self._as_seen_by(workload):
            now = self.placer.place(demands)
            if not isinstance(now, Shortfall) and (quota is None or quota.fits(frozenset())):
                return Room(placement=now)
            gone = quota.once_they_are_gone() if quota is not None else nullcontext()
            with self._once_they_are_gone(), gone:
                soon = self.placer.place(demands)
                if not isinstance(soon, Shortfall) and (quota is None or quota.fits(frozenset())):
                    return Room(placement=soon, later=True)
                if not may_evict or not workload.preempts:
                    return _short(now, demands)
                by_waiting = self._room_by_waiting(workload, demands, quota)
                if by_waiting is not None:
                    return by_waiting
                legal = self._banded(legality(workload, self.roster))
                victims = self._victims(workload, demands, legal, quota)
                if victims is None:
                    return _short(now, demands)
                return Room(
                    placement=victims.placement,
                    victims=victims.chosen,
                    rules={v.workload.id: legal.rule(v.workload.id) for v in victims.chosen},
                    later=True,
                    loss_ms=victims.loss_ms,
                    bound_ms=victims.bound_ms,
                    steps=victims.steps,
                )

    def _room_by_waiting(
        self, workload: Workload, demands: Sequence[Demand], quota: QuotaTest | None
    ) -> Room | None:
        """Who would rather wait than evict: the earliest moment at which enough others will have ended by themselves."""
        patience = workload.checkpoint.patience_s
        if patience <= 0 or (quota is not None and not quota.fits(frozenset())):
            return None
        ending = self._ending_by(self.now + patience)
        return self._room_after_ends(demands, ending)

    def _ending_by(self, latest: float) -> list[tuple[float, Pod]]:
        """Pods that said how long they run and end by then; who has overrun its word is not believed."""
        ending = []
        for workload_id, members in self.occupancy.by_workload.items():
            workload = self.workloads.get(workload_id)
            if workload is None or workload.checkpoint.expected_runtime_s is None:
                continue
            for pod in members.values():
                if occupies(pod) and pod.started_at is not None and pod.gone_by is None:
                    end = pod.started_at + workload.checkpoint.expected_runtime_s
                    if self.now < end <= latest:
                        ending.append((end, pod))
        return sorted(ending, key=lambda item: (item[0], item[1].id))

    def _room_after_ends(
        self, demands: Sequence[Demand], ending: Sequence[tuple[float, Pod]]
    ) -> Room | None:
        moments = sorted({end for end, _ in ending})
        best: Room | None = None
        low, high = 0, len(moments) - 1
        while low <= high:  # later is never worse, so halving finds the earliest
            middle = (low + high) // 2
            gone = [pod for end, pod in ending if end <= moments[middle]]
            with self.table.what_if():
                for pod in gone:
                    self._lift(pod)
                placement = self.placer.place(demands)
            if isinstance(placement, Shortfall):
                low = middle + 1
            else:
                names = tuple(sorted({pod.workload for pod in gone}))
                best = Room(
                    placement=placement, later=True, comes_at=moments[middle], comes_from=names
                )
                high = middle - 1
        return best

    def room_without(
        self, workload: Workload, demands: Sequence[Demand], victims: Sequence[Candidate]
    ) -> Room | None:
        """Where the demands go once these victims, and everybody who is leaving, are gone."""
        with self._as_seen_by(workload), self._once_they_are_gone():
            for victim in victims:
                lift(self.table, victim)
            placement = self.placer.place(demands)
        if isinstance(placement, Shortfall):
            return None
        loss_ms = sum(victim.loss_ms for victim in victims)
        return Room(placement=placement, victims=tuple(victims), later=True, loss_ms=loss_ms)

    def _victims(
        self,
        workload: Workload,
        demands: Sequence[Demand],
        legal: least_loss.Legal,
        quota: QuotaTest | None,
    ) -> least_loss.Victims | None:
        roster = self.roster
        mask = legal.mask & ~self._already_fallen(roster) & ~self._displacers(workload, roster)
        if (
            self.policy.victims == "kube"
            and quota is None
            and len(demands) == 1
            and demands[0].count == 1
        ):
            return kube.find(
                self.placer,
                roster,
                demands[0],
                msgspec.structs.replace(legal, mask=mask),
                self.budgets,
                self.now,
                self._surplus,
            )
        return least_loss.find(
            self.placer,
            roster,
            demands,
            msgspec.structs.replace(legal, mask=mask),
            quota=quota,
            surplus=self._surplus,
            budgets={b.id: b.allowed for b in self.budgets.values()}
            if self.policy.budgets_are_hard
            else None,
            budget=self.policy.search_budget,
        )

    def _displacers(
        self, workload: Workload, roster: Roster
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Who made it fall, or made those fall who did: it does not displace them in turn."""
        mask = np.zeros(len(roster), np.bool_)
        for key in self.out_of_bounds(workload):
            mask[roster.by_workload.get(key, [])] = True
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

    def _banded(self, legal: least_loss.Legal) -> least_loss.Legal:
        if not self.policy.bands:
            return legal
        band = np.array([self.policy.band_of(p) for p in legal.band.tolist()], np.int64)
        return msgspec.structs.replace(legal, band=band)

    def _leave(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            if pod.id not in self.going:
                self.going[pod.id] = pod
                self._going_order.append(pod.id)

    def _already_fallen(self, roster: Roster) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        mask = np.zeros(len(roster), np.bool_)
        mask[self._fallen_units] = True
        return mask

    def _fall(self, victim: Candidate) -> None:
        """It goes, and with it every unit that shares a pod with it."""
        pods = {pod.id for pod in victim.pods}
        self.fallen.add((victim.workload.id, () if victim.whole else tuple(sorted(pods))))
        for unit in self.roster.by_workload.get(victim.workload.id, ()):
            if victim.whole or any(p.id in pods for p in self.roster.candidates[unit].pods):
                self._fallen_units.append(unit)
        self._leave(victim.pods)
        self._unpromised += victim.promised

    def place_some(self, workload: Workload, demands: Sequence[Demand]) -> tuple[Placed, ...]:
        """As many of these independent pods as there is room for now."""
        placed: list[Placed] = []
        with self._as_seen_by(workload):
            for demand in demands:
                result = self.placer.place([demand])
                if isinstance(result, Shortfall) and result.placed:
                    result = self.placer.place(
                        [msgspec.structs.replace(demand, count=result.placed)]
                    )
                if not isinstance(result, Shortfall):
                    placed += result
                    self.take_rooms(demand.shape, result)
        return tuple(placed)

    def take_rooms(self, shape: PodShape, placement: Sequence[Placed], sign: int = 1) -> None:
        """Count these places as taken for the rest of the cycle (-1: given back)."""
        for place in placement:
            need = self.table.need(shape) * (place.count * sign)
            self.table.take(self.table.row_of[place.node], need)

    # --- who could fall ---

    @property
    def has_looked_for_victims(self) -> bool:
        return self._roster is not None

    @property
    def roster(self) -> Roster:
        if self._roster is None:
            self._surplus: dict[WorkloadId, int] = {}
            self._roster = Roster(self.table, list(self._candidates()))
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
            # What holds quota gives it back whole: its surplus pods stay with it.
            spare = gang.surplus_of(workload, there) if workload.admission is None else 0
            if spare:
                self._surplus[workload_id] = spare
                for pod in there:
                    yield self._candidate(workload, (pod,), whole=False)

    def _holding_quota_only(self) -> Iterator[Workload]:
        """Admitted, and none of its pods exists yet."""
        for workload in self.workloads.values():
            if workload.admission is None or workload.id in self.occupancy.by_workload:
                continue
            if workload.evicted_at is None and not workload.finished and workload.active:
                yield workload

    def _candidate(self, workload: Workload, pods: tuple[Pod, ...], *, whole: bool) -> Candidate:
        past = self.history.get(owner_of(workload)) if self.history else None
        loss = loss_of(
            workload,
            pods,
            self.now,
            usual_interval_s=self.usual_interval(workload),
            save_s=past.save_s if past is not None else None,
            cores_per_gpu=self.policy.cores_per_gpu,
        )
        protected = ""
        if self.policy.victims == "least-loss":
            grant = self.grant(workload)
            protected, until = protection_of(workload, pods, self.now, grant, past)
            if until is not None:
                self._look_again(until)
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
            loss_ms=round(loss * 1000),
            started_at=started,
            promised=tuple(self.occupancy.promised.get(workload.id, ())) if whole else (),
            budgets=drawn,
            protected=protected,
        )

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
            return [self._take_if_free(workload, demands, pods, quota)]
        room = self.find_room(workload, demands, legality, quota, may_evict=may_evict)
        if isinstance(room, Shortfall) or (room.later and not may_evict):
            shortfall = (
                room if isinstance(room, Shortfall) else Shortfall(demand=demands[0], placed=0)
            )
            reserved = self._reserve(workload, demands, pods) if may_evict else []
            why = self.why_not(workload, shortfall)
            return [*reserved, Wait(workload=workload.id, reason=why, parked=not reserved)]
        binds = gang.binds_of(demands, pods, room.placement)
        if not room.later:
            return [self._admit(workload, binds)]
        if self.policy.victims == "kube" and not room.victims:
            # kube-scheduler promises nothing to who evicts nobody: it looks again when they have left.
            why = self.why_not(workload, Shortfall(demand=demands[0], placed=0))
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
            fits = quota is None or quota.fits(frozenset())
        if isinstance(found, Shortfall) or not fits:
            return Wait(workload=workload.id, reason=self.waiting_for_victims(workload))
        return self._admit(workload, gang.binds_of(demands, pods, found))

    def waits_for_room(self, workload: Workload) -> bool:
        """Room is on its way to it; what it merely keeps together while it waits is no promise of that."""
        hold = self.holds.get(workload.id)
        return hold is not None and hold.rule != RESERVATION

    def _reserve(
        self, workload: Workload, demands: Sequence[Demand], pods: Sequence[Pod]
    ) -> list[Decision]:
        """Large gangs do not starve: who has waited long keeps the places it could have, until it can have all."""
        waited = self.now - workload.created_at
        if waited < self.policy.reserve_after_s:
            self._look_again(workload.created_at + self.policy.reserve_after_s)
            return []
        if len(pods) < 2 or any(
            h.rule == RESERVATION and w != workload.id for w, h in self.holds.items()
        ):
            return []  # one at a time, the first in line
        if not self._could_ever_fit(demands):
            return []
        with self.table.what_if():
            kept = self.place_some(workload, demands)
        nominations = gang.binds_of(demands, pods, kept)
        if not nominations:
            return []  # nothing is free yet
        start = self._room_after_ends(demands, self._ending_by(float("inf")))
        until = (
            start.comes_at
            if start is not None and start.comes_at is not None
            else self.now + self.policy.reserve_after_s
        )
        before = self.holds.get(workload.id)
        if before is not None and before.nominations == nominations:
            return []
        self.end_hold(workload.id)
        hold = Hold(workload=workload.id, nominations=nominations, until=until, rule=RESERVATION)
        self.holds[workload.id] = hold
        self._file(hold)
        self._take_hold(hold, 1)
        self._look_again(until)
        return [hold]

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
            # The promise itself is counted as taken: the room is really free when nothing is overdrawn.
            free_now = free_now and bool((self.table.free[self.table.row_of[node]] >= 0).all())
        if not free_now:
            return [Wait(workload=workload.id, reason=self._waiting_for_room(workload))]
        self._keep_promise(workload, binds)
        return [Admit(workload=workload.id, binds=tuple(binds))]

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
            verdicts=self._refusals(self._pending_shape(workload)),
            nodes_total=int(self.table.live.sum()),
            holders=tuple(Holder(workload=w) for w in leaving),
        )

    def take_places(self, binds: Sequence[Bind]) -> None:
        for bind in binds:
            pod = self.occupancy.pods[bind.pod]
            self.table.put(
                msgspec.structs.replace(pod, node=bind.node), self.table.row_of[bind.node]
            )

    def end_hold(self, workload: WorkloadId) -> None:
        hold = self.holds.pop(workload, None)
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
        evicts: list[Decision] = []
        longest = 0.0
        for victim in room.victims:
            notice = notice_of(victim.workload, victim.pods, self.policy.max_notice_s)
            longest = max(longest, notice)
            evicts.append(
                Evict(
                    workload=victim.workload.id,
                    pods=() if victim.whole else tuple(pod.id for pod in victim.pods),
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
        gone_by = max([self.now + longest, *(pod.gone_by or 0.0 for pod in self.going.values())])
        self.end_hold(workload.id)
        hold = Hold(
            workload=workload.id,
            placement=placement,
            nominations=nominations,
            victims=tuple(dict.fromkeys(victim.workload.id for victim in room.victims))
            or room.comes_from,
            until=gone_by + self.policy.hold_s,
            loss=room.loss_ms / 1000,
            bound=room.bound_ms / 1000,
            steps=room.steps,
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
            verdicts=self._refusals(self._pending_shape(workload)),
            nodes_total=int(self.table.live.sum()),
            holders=tuple(
                Holder(workload=w, priority=self.workloads[w].priority)
                for w in hold.victims
                if w in self.workloads
            ),
            loss=hold.loss,
            until=hold.until,
        )

    # --- why not ---

    def why_not(self, workload: Workload, shortfall: Shortfall) -> Reason:
        """What no node has, in kube-scheduler's words, and why evicting does not help."""
        shape = shortfall.demand.shape
        key = (shape, workload.rank)
        known = self._verdicts.get(key)
        if known is None:
            known = self._verdicts[key] = self._explain_shape(workload, shape)
        if shortfall.demand.count == 1:
            return known
        verdicts = known.verdicts or self._refusals_beyond(workload, shortfall)
        return msgspec.structs.replace(
            known,
            verdicts=verdicts,
            shortages=(
                Shortage(
                    resource="pods",
                    missing=shortfall.demand.count - shortfall.placed,
                    requested=shortfall.demand.count,
                    free=shortfall.placed,
                    nodes=int(self.table.live.sum()),
                ),
            ),
        )

    def _refusals_beyond(self, workload: Workload, shortfall: Shortfall) -> tuple[NodeVerdict, ...]:
        """One of them would fit anywhere: what stops the next when as many as fit are in place."""
        demand = msgspec.structs.replace(shortfall.demand, count=shortfall.placed)
        with self.table.what_if(), self._as_seen_by(workload):
            if demand.count:
                found = self.placer.place([demand])
                if not isinstance(found, Shortfall):
                    self.take_rooms(demand.shape, found)
            return filters.verdicts(self.table, demand.shape)

    def _refusals(self, shape: PodShape) -> tuple[NodeVerdict, ...]:
        """Worked out once a cycle for each shape."""
        known = self._refused.get(shape)
        if known is None:
            known = self._refused[shape] = filters.verdicts(self.table, shape)
        return known

    def _pending_shape(self, workload: Workload) -> PodShape:
        for pod in self.occupancy.members(workload.id):
            if waits(pod):
                return pod.shape
        return workload.pod_sets[0].shape if workload.pod_sets else PodShape()

    def _explain_shape(self, workload: Workload, shape: PodShape) -> Reason:
        total = int(self.table.live.sum())
        if shape.blocked:
            return Reason(kind="no-nodes-fit", message=shape.blocked, nodes_total=total)
        reason = Reason(kind="no-nodes-fit", verdicts=self._refusals(shape), nodes_total=total)
        if not workload.preempts:
            return msgspec.structs.replace(
                reason,
                kind="never-preempts",
                not_eligible="not eligible due to preemptionPolicy=Never.",
            )
        safe = {pod.id for c in self.roster.candidates if c.protected for pod in c.pods}
        return msgspec.structs.replace(
            reason,
            even_after=kube.why_evicting_does_not_help(self.table, shape, workload.rank, safe),
        )


def _short(found: tuple[Placed, ...] | Shortfall, demands: Sequence[Demand]) -> Shortfall:
    """What is missing is not on the nodes: then none of it is placed."""
    if isinstance(found, Shortfall):
        return found
    nothing = Demand(pod_set="", shape=PodShape(), count=0)
    return Shortfall(demand=demands[0] if demands else nothing, placed=0)


def _grant(state: State, policy: Policy, workload: Workload) -> Grant:
    held = state.ledger.get(workload.id)
    if held is None:
        return grant_of(None, policy, borrows=False)
    borrows = state.ledger.queue(held.queue).is_borrowing(held.usage)
    return grant_of(state.queues.get(QueueName(held.queue)), policy, borrows=borrows)


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


def _alike(pods: Sequence[Pod]) -> list[list[Pod]]:
    groups: dict[tuple[str, PodShape], list[Pod]] = {}
    for pod in pods:
        groups.setdefault((pod.pod_set, pod.shape), []).append(pod)
    return list(groups.values())


def incomplete(ask: gang.Ask) -> Reason:
    return Reason(
        kind="gang-incomplete",
        shortages=(
            Shortage(
                resource="pods",
                missing=ask.missing,
                requested=ask.minimum,
                free=ask.minimum - ask.missing,
            ),
        ),
    )


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
