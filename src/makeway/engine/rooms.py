"""Is there room on the nodes? Free now; free once those who are leaving are gone; free once somebody legal is evicted.

All of it is what-if work on the node table, undone when the cycle ends. Holds (room freed for somebody) count as taken for
everybody of equal or lower priority.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import msgspec
import numpy as np

from makeway.engine.eligible import Eligible
from makeway.engine.ledger import counted_pods
from makeway.engine.nodes import Rows, Vector
from makeway.engine.occupancy import occupies
from makeway.engine.placement import Demand, Shortfall
from makeway.engine.policy import Policy
from makeway.engine.state import State
from makeway.engine.victims import kube, least_loss
from makeway.engine.victims.oracle import QuotaTest
from makeway.engine.victims.roster import Candidate, Roster, lift
from makeway.model.decision import RESERVATION, Hold, Lowered
from makeway.model.node import NodeName
from makeway.model.reason import Alternative
from makeway.model.workload import Placed, Pod, PodId, PodShape, Workload, WorkloadId

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
    alternatives: tuple[Alternative, ...] = ()


class Rooms:
    def __init__(self, state: State, now: float, policy: Policy) -> None:
        self.occupancy = state.occupancy
        self.table = state.occupancy.table
        self.placer = state.occupancy.placer
        self.workloads = state.workloads
        self.budgets = state.budgets
        self.now = now
        self.policy = policy
        self.eligible = Eligible(state, now, policy)
        self.holds = dict(state.holds)
        self._held_by_rank: dict[int, dict[WorkloadId, Hold]] = {}
        for hold in state.holds.values():
            self._file(hold)
        self.going: dict[PodId, Pod] = {}  # who is leaving, those of this cycle included
        self._going_order: list[PodId] = []
        self._counted = 0
        self.gone_by = 0.0  # when the last of them has to be gone
        self._coming_at: dict[int, int] = {}  # node row -> line of what will be free there
        self._coming: Rows = np.zeros((0, 0), np.int64)
        self._unpromised: list[tuple[NodeName, Vector]] = []  # promises to those who fell
        self._leave(state.occupancy.leaving.values())
        # Pods that jobs were told to give up, in this cycle or before, and whose quota is still counted.
        self.giving_up: dict[WorkloadId, int] = {}
        self._keeps: dict[WorkloadId, int] = {}  # what those jobs go on with then
        for hold in state.holds.values():
            for lowered in hold.lowered:
                self._note_lowered(lowered)
        self.fallen: set[tuple[WorkloadId, tuple[PodId, ...]]] = set()
        self._fallen_units: list[int] = []
        self._wake_at = math.inf

    @property
    def wake_at(self) -> float | None:
        """When time alone could change the answer."""
        first = min(self._wake_at, self.eligible.protected_until)
        return None if first == math.inf else first

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
            self._wake_at = min(self._wake_at, when)

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
        return holder is not None and self.eligible.fell_for(workload, holder)

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
        while self._counted < len(self.going):
            pod = self.going[self._going_order[self._counted]]
            self._counted += 1
            row = self.table.row_of.get(pod.node) if pod.node is not None else None
            if row is not None:
                need = self.table.need(pod.shape)
                line = self._coming_at.setdefault(row, len(self._coming_at))
                self._make_lines(line + 1)
                self._coming[line, : len(need)] += need
        count = len(self._coming_at)
        self._make_lines(count)
        return np.fromiter(self._coming_at, np.int64, count), -self._coming[:count]

    def _make_lines(self, count: int) -> None:
        """Twice as many as there were, so that making them costs little however many leave."""
        lines, width = self._coming.shape
        columns = len(self.table.columns)
        if count > lines or columns > width:
            grown = np.zeros((max(count, 2 * lines) if count > lines else lines, columns), np.int64)
            grown[:lines, :width] = self._coming
            self._coming = grown

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
            if not isinstance(now, Shortfall) and (quota is None or quota.fits()):
                return Room(placement=now)
            gone = quota.once_they_are_gone() if quota is not None else nullcontext()
            with self._once_they_are_gone(), gone:
                soon = self.placer.place(demands)
                if not isinstance(soon, Shortfall) and (quota is None or quota.fits()):
                    return Room(placement=soon, later=True)
                if not may_evict or not workload.preempts:
                    return _short(now, demands)
                by_waiting = self._room_by_waiting(workload, demands, quota)
                if by_waiting is not None:
                    return by_waiting
                legal = self._banded(legality(workload, self.eligible.roster))
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
                    alternatives=victims.alternatives,
                )

    def _room_by_waiting(
        self, workload: Workload, demands: Sequence[Demand], quota: QuotaTest | None
    ) -> Room | None:
        """Who would rather wait than evict: the earliest moment at which enough others will have ended by themselves."""
        patience = workload.checkpoint.patience_s
        if patience <= 0 or (quota is not None and not quota.fits()):
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
        roster = self.eligible.roster
        mask = legal.mask & ~self._already_fallen(roster) & ~self.eligible.displacers(workload)
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
                self.eligible.surplus,
            )
        return least_loss.find(
            self.placer,
            roster,
            demands,
            msgspec.structs.replace(legal, mask=mask),
            quota=quota,
            surplus=self.eligible.surplus,
            budgets={b.id: b.allowed for b in self.budgets.values()}
            if self.policy.budgets_are_hard
            else None,
            budget=self.policy.search_budget,
        )

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
                self.gone_by = max(self.gone_by, pod.gone_by or 0.0)

    def _already_fallen(self, roster: Roster) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        mask = np.zeros(len(roster), np.bool_)
        mask[self._fallen_units] = True
        return mask

    def _fall(self, victim: Candidate) -> None:
        """It goes, and with it every unit that shares a pod with it."""
        pods = {pod.id for pod in victim.pods}
        self.fallen.add((victim.workload.id, () if victim.whole else tuple(sorted(pods))))
        none_left = victim.whole or not self._spare_after(victim)
        for unit in self.eligible.roster.by_workload.get(victim.workload.id, ()):
            if none_left or any(p.id in pods for p in self.eligible.roster.candidates[unit].pods):
                self._fallen_units.append(unit)
        self._leave(victim.pods)
        self._unpromised += victim.promised

    def _spare_after(self, victim: Candidate) -> bool:
        """Whether more of its single pods may be taken in this cycle; pods of no gang are each for themselves."""
        surplus = self.eligible.surplus
        if victim.workload.id in surplus:
            surplus[victim.workload.id] -= len(victim.pods)
        return surplus.get(victim.workload.id, 1) > 0

    def _note_lowered(self, lowered: Lowered) -> None:
        workload = self.workloads.get(lowered.workload)
        if workload is None or workload.admission is None:
            return
        if counted_pods(workload) > lowered.keeps:
            known = self._keeps.get(lowered.workload, lowered.keeps)
            self._keeps[lowered.workload] = min(known, lowered.keeps)
            before = self.giving_up.get(lowered.workload, 0)
            self.giving_up[lowered.workload] = before + lowered.gives

    def _lower(self, workload: Workload, gives: int) -> Lowered:
        """So many pods of it fall and are not replaced."""
        now = self._keeps.get(workload.id, counted_pods(workload))
        lowered = Lowered(workload=workload.id, gives=gives, keeps=now - gives)
        self._note_lowered(lowered)
        return lowered

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

    @contextmanager
    def filled_with(self, workload: Workload, demand: Demand) -> Iterator[None]:
        """As it would be with all of these in place, where there is room for them."""
        with self.table.what_if(), self._as_seen_by(workload):
            found = self.placer.place([demand]) if demand.count else ()
            if not isinstance(found, Shortfall):
                self.take_rooms(demand.shape, found)
            yield

    def take_rooms(self, shape: PodShape, placement: Sequence[Placed], sign: int = 1) -> None:
        """Count these places as taken for the rest of the cycle (-1: given back)."""
        for place in placement:
            need = self.table.need(shape) * (place.count * sign)
            self.table.take(self.table.row_of[place.node], need)


def _short(found: tuple[Placed, ...] | Shortfall, demands: Sequence[Demand]) -> Shortfall:
    """What is missing is not on the nodes: then none of it is placed."""
    if isinstance(found, Shortfall):
        return found
    nothing = Demand(pod_set="", shape=PodShape(), count=0)
    return Shortfall(demand=demands[0] if demands else nothing, placed=0)
