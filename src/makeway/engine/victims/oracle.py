"""Does the preemptor fit once these are gone? Nodes and quota in one answer, so that nothing falls in vain.

For many equal pods without rules about neighbours the nodes' part is one array expression. Otherwise the victims' pods are
lifted off the table (what-if) and the whole demand is placed anew: never on a placement fixed before the victims were known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import numpy as np

from makeway.engine.filters import depends_on_neighbours
from makeway.engine.nodes import Mask
from makeway.engine.placement import Demand, Placer, Shortfall
from makeway.engine.victims import separable
from makeway.engine.victims.roster import Roster, lift
from makeway.engine.victims.search import Chosen, Cover
from makeway.model.workload import Placed, WorkloadId


class Gone(NamedTuple):
    """What a set of units comes to for the queues."""

    whole: frozenset[WorkloadId] = frozenset()
    # Jobs that are lowered, and by how many pods: their part of the quota comes back.
    lowered: tuple[tuple[WorkloadId, int], ...] = ()
    singly: frozenset[WorkloadId] = frozenset()  # they lose pods and keep their quota


NOBODY = Gone()


class QuotaTest(Protocol):
    """The quota half of the question."""

    def once_they_are_gone(self) -> AbstractContextManager[None]:
        """As it will be when everybody who was told to stop has left."""

    def fits(self, gone: Gone = NOBODY) -> bool: ...

    def legal(self, gone: Gone) -> bool:
        """Whether in some order each may fall at its turn; who loses single pods does so by the same rules."""

    def covers(self, units: Sequence[Gone]) -> Sequence[tuple[int, tuple[int, ...]]]:
        """Necessary conditions: (need, gain of each of these units)."""


class RoomOracle:
    def __init__(
        self,
        placer: Placer,
        roster: Roster,
        units: Sequence[int],
        demands: Sequence[Demand],
        quota: QuotaTest | None = None,
        surplus: Mapping[WorkloadId, int] | None = None,
        budgets: Mapping[str, int] | None = None,
    ) -> None:
        self.placer = placer
        self.table = placer.table
        self.roster = roster
        self.units = units  # positions in the roster; the search counts from 0 in this list
        self.demands = demands
        self.quota = quota
        self.surplus = surplus or {}  # pods that each gang can give up
        self.budgets = budgets or {}  # disruptions that each budget still allows; absent: not asked
        self.plain = (
            len(demands) == 1
            and demands[0].topology is None
            and not depends_on_neighbours(self.table, demands[0].shape)
        )
        if self.plain:
            view = placer.view(demands[0].shape)
            self.need, self.suits = view.need, view.suits.copy()

    def restricted_to(self, units: Sequence[int]) -> RoomOracle:
        """The same questions about some of the units."""
        return RoomOracle(
            self.placer, self.roster, units, self.demands, self.quota, self.surplus, self.budgets
        )

    # --- the search's questions ---

    def fits(self, gone: Chosen) -> bool:
        if self.quota is not None and not self.quota.fits(self._gone(gone)):
            return False
        if not self.demands:
            return True
        if self.plain:
            counts = separable.capacity(self.roster, self.need, self.suits, self._mask(gone))
            return int(np.minimum(counts, self.demands[0].count).sum()) >= self.demands[0].count
        return not isinstance(self.place_without(gone), Shortfall)

    def place_without(self, gone: Chosen) -> tuple[Placed, ...] | Shortfall:
        """Where the demand goes once these are gone."""
        with self.table.what_if():
            for i in self._outermost(gone):
                lift(self.table, self.roster.candidates[self.units[i]])
            return self.placer.place(self.demands)

    def legal(self, gone: Chosen) -> bool:
        taken: Counter[WorkloadId] = Counter()
        drawn: Counter[str] = Counter()
        for i in self._outermost(gone):
            candidate = self.roster.candidates[self.units[i]]
            drawn.update(candidate.budgets)
            if self.roster.part_of[self.units[i]] is not None:
                taken[candidate.workload.id] += len(candidate.pods)
        if any(count > self.surplus.get(workload, 0) for workload, count in taken.items()):
            return False
        if any(count > self.budgets.get(budget, count) for budget, count in drawn.items()):
            return False
        return self.quota is None or self.quota.legal(self._gone(gone))

    def covers(self) -> Sequence[Cover]:
        return [*self._room_covers(), *self._quota_covers()]

    def propose(self, allowed: Chosen) -> tuple[Chosen, int] | None:
        if not self.plain:
            return None
        proposal = separable.propose(
            self.roster, self.need, self.suits, self._mask(allowed), self.demands[0].count
        )
        if proposal is None:
            return None
        position = {unit: i for i, unit in enumerate(self.units)}
        return frozenset(position[unit] for unit in proposal.units), proposal.bound_ms

    # --- helpers ---

    def _mask(self, gone: Chosen) -> Mask:
        mask = np.zeros(len(self.roster), np.bool_)
        mask[[self.units[i] for i in self._outermost(gone)]] = True
        return mask

    def _outermost(self, gone: Chosen) -> list[int]:
        """Without surplus pods whose whole workload is gone too: their room must not count twice."""
        whole = {self.units[i] for i in gone}
        return [i for i in gone if self.roster.part_of[self.units[i]] not in whole]

    def _gone(self, gone: Iterable[int]) -> Gone:
        candidates = [self.roster.candidates[self.units[i]] for i in gone]
        whole = frozenset(c.workload.id for c in candidates if c.whole)
        parts = [c for c in candidates if not c.whole and c.workload.id not in whole]
        lowered = Counter(c.workload.id for c in parts if c.lowers)
        return Gone(
            whole=whole,
            lowered=tuple(sorted(lowered.items())),
            singly=frozenset(c.workload.id for c in parts if not c.lowers),
        )

    def _room_covers(self) -> list[Cover]:
        """All rows that any demand may use together: what is asked for, less what is free there, must be freed."""
        if not self.demands:
            return []
        suits = np.zeros(len(self.table.live), np.bool_)
        asked = np.zeros(len(self.table.columns), np.int64)
        for demand in self.demands:
            view = self.placer.view(demand.shape)
            suits |= view.suits
            asked += view.need[: len(asked)] * demand.count
        free = np.maximum(self.table.free[suits], 0).sum(axis=0)
        position = {unit: i for i, unit in enumerate(self.units)}
        gains = np.zeros((len(self.units), len(asked)), np.int64)
        for unit, row, amount in zip(
            self.roster.entry_unit.tolist(),
            self.roster.entry_row.tolist(),
            self.roster.entry_amount,
            strict=True,
        ):
            if unit in position and suits[row]:
                gains[position[unit], : len(amount)] += amount
        return [
            Cover(need=int(asked[c] - free[c]), gains=tuple(gains[:, c].tolist()))
            for c in range(len(asked))
            if asked[c] > free[c]
        ]

    def _quota_covers(self) -> list[Cover]:
        if self.quota is None:
            return []
        each = [self._gone((i,)) for i in range(len(self.units))]
        return [Cover(need=need, gains=gains) for need, gains in self.quota.covers(each)]
