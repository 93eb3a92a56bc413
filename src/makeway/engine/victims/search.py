"""The cheapest set of victims that makes room, with a proof of how good it is.

Comes in: units (what can be evicted, what each costs) and an oracle that says whether the preemptor fits once some of them are
gone. Goes out: the best set found, a lower bound of its loss, and how many steps were spent. The order of work:

1. feasible at all with every unit gone? (else nobody is touched)
2. the lowest priority ceiling that still fits;
3. a good set fast: whatever the oracle proposes, or the dearest units spared first;
4. improvement to a proven optimum by branch and bound, within a budget of steps (never of seconds);
5. the minimality pass: leave any one out and it no longer fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

STEP_MS = 60_000  # losses are compared in steps of 60 GPU-seconds
BUDGET = 4_000
_FEW_STEPS = 100
OTHERS = 3  # sets that are named beside the best


def in_steps(loss_ms: int) -> int:
    """Rounded up: what loses nothing is better than what loses a little."""
    return -(-loss_ms // STEP_MS)


def most_in_step(loss_ms: int) -> int:
    """The largest loss that counts the same."""
    return in_steps(loss_ms) * STEP_MS


Chosen = frozenset[int]  # positions in the list of units


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """What falls together: a workload, or one pod."""

    band: int  # its priority, or the band that holds it
    loss_ms: int
    rank: int = 0  # ties: small falls first (the youngest, then the name that sorts last)
    violations: int = 0  # disruption budgets that its eviction would overdraw
    part_of: int | None = None  # a surplus pod: the unit of its whole workload
    workload: str = ""  # units of one workload count as one victim; "": its own
    whole: bool = True  # False: its workload goes on without it


class Cover(msgspec.Struct, frozen=True, kw_only=True):
    """A necessary condition: the gains of the chosen units add up to at least `need`."""

    need: int
    gains: tuple[int, ...]


class Oracle(Protocol):
    def fits(self, gone: Chosen) -> bool:
        """Whether the preemptor has its room once these are gone; more gone never hurts."""

    def legal(self, gone: Chosen) -> bool:
        """Whether there is an order in which each of these may be evicted at its turn."""

    def covers(self) -> Sequence[Cover]:
        """Necessary conditions, for the bound."""

    def propose(self, allowed: Chosen) -> tuple[Chosen, int] | None:
        """A good set out of these, if the oracle knows a quick way, and a lower bound of the loss of any."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    chosen: tuple[int, ...]
    loss_ms: int
    bound_ms: int  # no legal set loses less, in steps; equal to loss_ms: proven optimal
    steps: int
    others: tuple[tuple[int, ...], ...] = ()  # legal sets that were looked at, the next best first

    @property
    def optimal(self) -> bool:
        return self.bound_ms >= self.loss_ms


# Violations, loss in steps, workloads, of which stopped whole, ties.
Key = tuple[int, int, int, int, int]


def cheapest(units: Sequence[Unit], oracle: Oracle, budget: int = BUDGET) -> Found | None:
    """The best legal set found, or None when no set of units makes room."""
    search = _Search(units, oracle, budget)
    everything = frozenset(range(len(units)))
    if not units or not search.fits(everything):
        return None
    for allowed in search.rising_ceilings():
        best, floor_ms = search.good_set(allowed)
        best, bound_ms = search.improve(allowed, best)
        if best is not None:
            search.look_beside(allowed, best)
            loss_ms = search.loss(best)
            return Found(
                chosen=tuple(sorted(best, key=lambda i: units[i].rank)),
                loss_ms=loss_ms,
                bound_ms=min(max(floor_ms, bound_ms), loss_ms),
                steps=search.steps,
                others=search.others(best),
            )
    return None


class _Search:
    def __init__(self, units: Sequence[Unit], oracle: Oracle, budget: int) -> None:
        self.units = units
        self.oracle = oracle
        self.budget = budget
        self.steps = 0
        self.covers = list(oracle.covers())
        self._known: dict[Chosen, bool] = {}
        self._seen: dict[Chosen, Key] = {}  # minimal, legal, and room enough

    # --- costs ---

    def effective(self, chosen: Chosen) -> list[int]:
        """Without surplus pods whose whole workload falls too."""
        return [i for i in chosen if self.units[i].part_of not in chosen]

    def loss(self, chosen: Chosen) -> int:
        return sum(self.units[i].loss_ms for i in self.effective(chosen))

    def key(self, chosen: Chosen) -> Key:
        taken = [self.units[i] for i in self.effective(chosen)]
        return (
            sum(u.violations for u in taken),
            in_steps(sum(u.loss_ms for u in taken)),
            self.workloads(chosen),
            sum(u.whole for u in taken),
            sum(u.rank for u in taken),
        )

    def workloads(self, chosen: Chosen) -> int:
        return len({self.units[i].workload or i for i in chosen})

    def fits(self, chosen: Chosen) -> bool:
        known = self._known.get(chosen)
        if known is None:
            self.steps += 1
            known = self._known[chosen] = self.oracle.fits(chosen)
        return known

    def judge(self, chosen: Chosen) -> Key:
        """Of a legal set that makes room; remembered, for who asks what else there was."""
        key = self._seen[chosen] = self.key(chosen)
        return key

    def look_beside(self, allowed: Chosen, best: Chosen) -> None:
        """Who would have to fall if its dearest victims were spared; where the search was short, lest it costs more than that."""
        spent = self.steps
        for i in sorted(best, key=self._dearness, reverse=True)[:OTHERS]:
            if len(self._seen) > OTHERS or self.steps > spent + _FEW_STEPS or spent > _FEW_STEPS:
                break
            rest = allowed - {i}
            if self.fits(rest):
                other = self._spare_the_dearest(rest)
                if self.oracle.legal(other):
                    self.judge(other)

    def others(self, best: Chosen) -> tuple[tuple[int, ...], ...]:
        found = sorted(
            (key, sorted(chosen)) for chosen, key in self._seen.items() if chosen != best
        )
        return tuple(tuple(chosen) for _, chosen in found[:OTHERS])

    # --- the steps ---

    def rising_ceilings(self) -> Iterator[Chosen]:
        """All units up to the lowest priority with which it fits, then up to the next: where the sets that fit are not legal."""
        bands = sorted({unit.band for unit in self.units})
        low, high = 0, len(bands) - 1
        while low < high:  # fitting is monotone, so halving finds it
            middle = (low + high) // 2
            if self.fits(self._up_to(bands[middle])):
                high = middle
            else:
                low = middle + 1
        for band in bands[low:]:
            yield self._up_to(band)

    def _up_to(self, band: int) -> Chosen:
        return frozenset(i for i, unit in enumerate(self.units) if unit.band <= band)

    def good_set(self, allowed: Chosen) -> tuple[Chosen | None, int]:
        """The better of what the oracle proposes and of sparing the dearest, and a lower bound."""
        proposal = self.oracle.propose(allowed)
        floor_ms = 0
        candidates: list[Chosen] = []
        if proposal is not None:
            proposed, floor_ms = proposal
            if self.fits(proposed):
                candidates.append(self.minimal(proposed))
        candidates.append(self._spare_the_dearest(allowed))
        legal = [candidate for candidate in candidates if self.oracle.legal(candidate)]
        return min(legal, key=self.judge, default=None), floor_ms

    def _spare_the_dearest(self, allowed: Chosen) -> Chosen:
        # Many units at once while that works, then one by one: a logarithm of tests instead of one a unit.
        order = sorted(allowed, key=self._dearness, reverse=True)
        gone, block = set(allowed), max(1, len(order) // 4)
        while block:
            kept: list[int] = []
            for start in range(0, len(order), block):
                part = order[start : start + block]
                if self.fits(frozenset(gone.difference(part))):
                    gone.difference_update(part)
                else:
                    kept += part
            order = kept
            block //= 4
        return self.minimal(frozenset(gone))

    def _dearness(self, i: int) -> tuple[int, int, int, int]:
        unit = self.units[i]
        return (unit.violations, unit.loss_ms, 0 if unit.part_of is None else -1, unit.rank)

    def minimal(self, chosen: Chosen) -> Chosen:
        """Without every unit that is not needed, the dearest spared first. A legal set stays legal on the way."""
        was_legal = self.oracle.legal(chosen)
        for i in sorted(chosen, key=self._dearness, reverse=True):
            without = chosen - {i}
            if self.fits(without) and (not was_legal or self.oracle.legal(without)):
                chosen = without
        return frozenset(self.effective(chosen))

    # --- branch and bound ---

    def improve(self, allowed: Chosen, best: Chosen | None) -> tuple[Chosen | None, int]:
        """The best set and a lower bound of the loss; they meet when the budget lasts."""
        order = sorted(allowed, key=self._dearness, reverse=True)
        best_key = self.key(best) if best is not None else None
        open_bound: list[int] = []  # bounds of branches the budget left unexplored
        stack: list[tuple[int, Chosen, Chosen]] = [(0, frozenset(), allowed)]
        while stack:
            depth, taken, gone = stack.pop()
            bound = self._bound(order[depth:], taken)
            if bound is None:
                continue
            if best_key is not None and not _promises(bound, best_key):
                continue
            if self.steps >= self.budget:
                open_bound.append(bound[1])
                continue
            if not self.fits(gone):
                continue
            if self.fits(taken):
                candidate = self.minimal(taken)
                if self.oracle.legal(candidate):
                    key = self.judge(candidate)
                    if best_key is None or key < best_key:
                        best, best_key = candidate, key
                    continue
            if depth == len(order):
                continue
            unit = order[depth]
            # Popped first: sparing the dear one, the more promising branch.
            stack.append((depth + 1, taken | {unit}, gone))
            stack.append((depth + 1, taken, gone - {unit}))
        found = self.loss(best) if best is not None else 0
        return best, min([found, *open_bound])

    def _bound(self, undecided: Sequence[int], taken: Chosen) -> tuple[int, int, int] | None:
        """At least so many violations, so much loss and so many units; None when the covers cannot be met."""
        violations = sum(self.units[i].violations for i in taken)
        loss = sum(self.units[i].loss_ms for i in self.effective(taken))
        more_loss = more_count = 0
        for cover in self.covers:
            missing = cover.need - sum(cover.gains[i] for i in taken)
            if missing <= 0:
                continue
            relaxed = _fractional(
                missing, [(self.units[i].loss_ms, cover.gains[i]) for i in undecided]
            )
            if relaxed is None:
                return None
            more_loss = max(more_loss, relaxed)
            more_count = max(more_count, self._fewest(missing, undecided, taken, cover))
        return violations, loss + more_loss, self.workloads(taken) + more_count

    def _fewest(self, missing: int, undecided: Sequence[int], taken: Chosen, cover: Cover) -> int:
        """At least so many further workloads, if each gave all that its units could."""
        gains: dict[str | int, int] = {}
        for i in undecided:
            of = self.units[i].workload or i
            gains[of] = gains.get(of, 0) + cover.gains[i]
        for i in taken:
            missing -= gains.pop(self.units[i].workload or i, 0)
        fewest = 0
        for gain in sorted(gains.values(), reverse=True):
            if missing <= 0:
                break
            missing -= gain
            fewest += 1
        return fewest


def _promises(bound: tuple[int, int, int], best: Key) -> bool:
    """Whether a branch could beat the best in violations, steps of loss or number of workloads."""
    return (bound[0], in_steps(bound[1]), bound[2]) < best[:3]


def _fractional(missing: int, items: Sequence[tuple[int, int]]) -> int | None:
    """The least loss that covers `missing` if units could be split; None if not even all of them do."""
    by_price = sorted((item for item in items if item[1] > 0), key=_price)
    left, loss = missing, 0
    for cost, gain in by_price:
        if gain >= left:
            return loss + cost * left // gain
        loss += cost
        left -= gain
    return None


def _price(item: tuple[int, int]) -> float:
    return item[0] / item[1]
