"""Victims for many equal pods at once: each node by itself has a price for taking one pod, two pods, …; then the cheapest mix.

Where every unit lives on one node this is exact: a small knapsack a node, and a dynamic program over the nodes. Units that
span nodes (gangs) enter with their price divided among their nodes; whoever evicts one pays at least that, so the result is a
lower bound, and the units it names are a good first set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from makeway.engine.nodes import Mask, Rows, Vector
from makeway.engine.victims.roster import Roster

_IMPOSSIBLE = 1 << 60
_OTHERS = 3  # nodes that are named beside the best
_TOLLS = 6  # tried between none and one that no loss makes up for
_COUNT_BITS = 16  # the low bits of a price count units, so that equal loss prefers fewer


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    units: tuple[int, ...]
    bound_ms: int
    exact: bool


def capacity(roster: Roster, need: Vector, suits: Mask, gone: Mask) -> Rows:
    """How many pods fit on each row once these units are gone."""
    asked = np.flatnonzero(need)
    free = roster.table.free[:, asked] + roster.freed(gone, asked)
    counts = np.maximum((free // need[asked]).min(axis=1), 0)
    return np.where(suits, counts, 0)


class Ceiling(NamedTuple):
    """The units up to a priority, and how many pods fit on each row with them gone."""

    allowed: Mask
    room: Rows


def lowest_ceiling(
    roster: Roster, need: Vector, suits: Mask, legal: Mask, bands_of: Vector, count: int
) -> Ceiling | None:
    """The legal units up to the lowest priority with which `count` pods fit; None if not even all of them suffice."""
    if not legal.any():
        return None
    found = Ceiling(legal, capacity(roster, need, suits, legal))
    if not _enough(found, count):
        return None
    of_legal = bands_of[legal]
    if of_legal.min() == of_legal.max():
        return found
    bands = np.unique(of_legal)
    low, high = 0, len(bands) - 1
    while low < high:
        middle = (low + high) // 2
        allowed = legal & (bands_of <= bands[middle])
        lower = Ceiling(allowed, capacity(roster, need, suits, allowed))
        if _enough(lower, count):
            found, high = lower, middle
        else:
            low = middle + 1
    return found


def _enough(ceiling: Ceiling, count: int) -> bool:
    return int(np.minimum(ceiling.room, count).sum()) >= count


def propose(
    roster: Roster, need: Vector, suits: Mask, allowed: Mask, count: int
) -> Proposal | None:
    """The cheapest units out of `allowed` that make room for `count` pods."""
    ceiling = Ceiling(allowed, capacity(roster, need, suits, allowed))
    return Market(roster, need, suits, ceiling, count).propose()


class Market:
    """One demand, and what every node charges for its pods."""

    def __init__(
        self, roster: Roster, need: Vector, suits: Mask, ceiling: Ceiling, count: int
    ) -> None:
        self.roster = roster
        self.need = need
        self.allowed = ceiling.allowed
        asked = np.flatnonzero(need)
        now = np.maximum((roster.table.free[:, asked] // need[asked]).min(axis=1), 0)
        self.already = np.minimum(np.where(suits, now, 0), count)
        self.most = np.minimum(ceiling.room, count)
        self.short = count - int(self.already.sum())
        self.enough = int(self.most.sum()) >= count
        rows = np.flatnonzero(self.most > self.already)
        self.rows = rows[np.argsort(roster.table.rank[rows])]
        self._prices: Rows | None = None  # per row, of 0, 1, 2, … further pods

    @cached_property
    def shops(self) -> _Shops:
        return _Shops(self.roster, self.need, self.allowed)

    @cached_property
    def one_more(self) -> _OneMore:
        return _OneMore(self.shops, self.rows, self.already)

    def propose(self, toll_ms: int = 0) -> Proposal | None:
        """`toll_ms`: added to the price of every unit."""
        if self.short <= 0:
            return Proposal(units=(), bound_ms=0, exact=True)
        if not self.enough:
            return None
        shops = _Shops(self.roster, self.need, self.allowed, toll_ms) if toll_ms else self.shops
        if self.short == 1:
            one = _OneMore(shops, self.rows, self.already) if toll_ms else self.one_more
            return one.cheapest()
        already = self.already[self.rows]
        room = np.minimum(self.most[self.rows] - already, self.short)
        prices = shops.all_prices(self.rows, already, room)
        self._prices = self._prices if toll_ms else prices
        steps = np.diff(prices, axis=1)
        if (np.diff(np.minimum(steps, _IMPOSSIBLE), axis=1) >= 0).all():
            taken = _cheapest_steps(steps, self.short)
        else:
            taken = _best_mix(prices, self.short)
        if taken is None:
            return None
        units: list[int] = []
        price = 0
        for i, pods in taken:
            price += int(prices[i, pods])
            units += shops.price(int(self.rows[i]), int(already[i]) + pods)[1]
        return _proposal(self.roster, price, units)

    def others(self) -> list[tuple[int, ...]]:
        """What the next nodes would have charged, as far as one node could have done."""
        if self.short == 1:
            return self.one_more.next_best(_OTHERS)
        if self._prices is None or self._prices.shape[1] <= self.short:
            return []
        alone = self._prices[:, self.short]
        first = np.argsort(alone, kind="stable")[: _OTHERS + 1].tolist()
        pods = self.already[self.rows] + self.short
        return [
            self.shops.price(int(self.rows[i]), int(pods[i]))[1]
            for i in first
            if alone[i] < _IMPOSSIBLE
        ]

    # --- within a step of loss ---

    def in_step(
        self, least: Sequence[int], most_of: Callable[[int], int]
    ) -> tuple[int, ...] | None:
        """Fewer victims than `least`, or younger ones, that lose no more than counts the same; None where there are none."""
        loss_ms = self._loss(least)
        most_ms = most_of(loss_ms)
        if most_ms == loss_ms:
            return None
        chosen = tuple(least)
        if len(least) > self._fewest():
            chosen = self._fewer(chosen, most_ms)
        if self.short == 1:
            chosen = self.one_more.youngest(chosen, most_ms)
        chosen = self._younger(chosen, most_ms)
        return None if set(chosen) == set(least) else tuple(sorted(chosen))

    def _loss(self, units: Sequence[int]) -> int:
        return int(self.roster.loss_ms[list(units)].sum())

    def _fewest(self) -> int:
        """No set is smaller: each node as if all its units were as large as the largest."""
        if self.short == 1:
            return int(self.one_more.fewest.min())
        already = self.already[self.rows]
        room = np.minimum(self.most[self.rows] - already, self.short)
        counts = np.full((len(self.rows), int(room.max()) + 1), _IMPOSSIBLE, np.int64)
        counts[:, 0] = 0
        for pods in range(1, counts.shape[1]):
            here = np.flatnonzero(room >= pods)
            counts[here, pods] = self.shops.fewest(self.rows[here], already[here] + pods)
        further = np.sort(np.diff(counts, axis=1).ravel())[: self.short]
        return int(further.sum())

    def _fewer(self, least: tuple[int, ...], most_ms: int) -> tuple[int, ...]:
        """With a toll on every victim above what may be lost more, the cheapest set is the smallest, if it stays below the limit.

        Where it does not, a lower toll may find one in between.
        """
        best = least
        low, high = 0, most_ms - self._loss(least) + 1
        toll = high
        for _ in range(_TOLLS):
            found = self.propose(toll)
            if found is None or not found.exact or len(found.units) >= len(best):
                break  # a lower toll asks for no fewer
            if self._loss(found.units) > most_ms:
                high = toll
            elif toll > most_ms - self._loss(least):
                return found.units
            else:
                best, low = found.units, toll
            if high - low < 2:
                break
            toll = (low + high) // 2
        return best

    def _younger(self, chosen: tuple[int, ...], most_ms: int) -> tuple[int, ...]:
        """One after the other, the oldest first, is exchanged for the youngest of its node that gives as much."""
        roster = self.roster
        slack = most_ms - self._loss(chosen)
        asked = self.shops.asked
        kept = set(chosen)
        rows = set(roster.row_of_unit[list(chosen)].tolist())
        there = sum(int(roster.row_start[row + 1] - roster.row_start[row]) for row in rows)
        if there == len(chosen):
            return chosen  # whole nodes: nobody else is there
        for unit in sorted(chosen, reverse=True):
            row = int(roster.row_of_unit[unit])
            here = slice(int(roster.row_start[row]), int(roster.row_start[row + 1]))
            units = roster.entry_unit[here].tolist()
            others = [u for u in units if u < unit and u not in kept]
            if not others:
                continue
            amounts = roster.entry_amount[here][:, asked]
            gains = dict(zip(units, amounts, strict=True))
            for other in sorted(others):
                dearer = int(roster.loss_ms[other] - roster.loss_ms[unit])
                if (
                    dearer <= slack
                    and self.allowed[other]
                    and roster.rows_of_unit[other] == 1
                    and roster.parts[other] == 1
                    and (gains[other] >= gains[unit]).all()
                ):
                    slack -= dearer
                    kept.remove(unit)
                    kept.add(other)
                    break
        return tuple(kept)


class _OneMore:
    """One more pod is wanted: what each node charges for it, at least."""

    def __init__(self, shops: _Shops, rows: Rows, already: Rows) -> None:
        self.shops = shops
        self.rows = rows
        self.pods = already[rows] + 1
        self.fewest = shops.fewest(rows, self.pods)
        self.floors, self.ages = shops.floors_and_ages(rows, self.fewest)
        self.known = shops.floor_is_price(rows, self.pods)

    def cheapest(self) -> Proposal | None:
        """Floors spare us a closer look at nodes that cannot be it."""
        shops, floors, known = self.shops, self.floors, self.known
        # Equal prices: the youngest fall; a unit's position in the roster says how young it is.
        best: tuple[int, int, int] = (_IMPOSSIBLE, 0, 0)
        if known.any():
            tied = np.flatnonzero(known & (floors == floors[known].min()))
            ages = self.ages[tied]
            first = int(ages.argmin())
            best = (int(floors[tied[first]]), int(ages[first]), int(tied[first]))
        open_rows = np.flatnonzero(~known)
        for i in open_rows[np.argsort(floors[open_rows], kind="stable")].tolist():
            if floors[i] > best[0]:
                break
            price, units = self._price(i)
            best = min(best, (price, sum(units), i))
        if best[0] >= _IMPOSSIBLE:
            return None
        price, units = self._price(best[2])
        return _proposal(shops.roster, price, list(units))

    def _price(self, i: int) -> tuple[int, tuple[int, ...]]:
        if not self.known[i]:
            return self.shops.price(int(self.rows[i]), int(self.pods[i]))
        first = int(self.shops.start[self.rows[i]])
        entries = self.shops.entries[first : first + int(self.fewest[i])]
        units = self.shops.roster.entry_unit[entries].tolist()
        return int(self.floors[i]), tuple(sorted(units))

    def next_best(self, count: int) -> list[tuple[int, ...]]:
        """The first is the best itself; nodes without a price of their own are left out."""
        rows = np.flatnonzero(self.known & (self.floors < _IMPOSSIBLE))
        first = rows[np.argsort(self.floors[rows], kind="stable")[: count + 1]]
        return [self._price(i)[1] for i in first.tolist()]

    def youngest(self, found: tuple[int, ...], most_ms: int) -> tuple[int, ...]:
        """Of the nodes that charge as many victims and no more loss, the one with the youngest."""
        same = (
            self.known
            & (self.floors >> _COUNT_BITS <= most_ms)
            & (self.floors & ((1 << _COUNT_BITS) - 1) == len(found))
            & (self.ages < sum(found))
        )
        if not same.any():
            return found
        return self._price(int(np.where(same, self.ages, _IMPOSSIBLE).argmin()))[1]


def _cheapest_steps(steps: Rows, short: int) -> list[tuple[int, int]] | None:
    """Where each further pod on a node costs at least what the one before did, the cheapest single steps are the best."""
    flat = steps.ravel()
    picked = np.argsort(flat, kind="stable")[:short]
    if len(picked) < short or flat[picked[-1]] >= _IMPOSSIBLE // 2:
        return None
    pods = np.bincount(picked // steps.shape[1], minlength=len(steps))
    return [(i, int(pods[i])) for i in np.flatnonzero(pods).tolist()]


def _best_mix(prices: Rows, short: int) -> list[tuple[int, int]] | None:
    """A dynamic program over the nodes: the least price for 0..short further pods."""
    best = np.full(short + 1, _IMPOSSIBLE, np.int64)
    best[0] = 0
    choices: list[Rows] = []
    for of_node in prices:
        options = np.full((len(of_node), short + 1), _IMPOSSIBLE, np.int64)
        for pods, price in enumerate(of_node.tolist()[: short + 1]):
            if price < _IMPOSSIBLE:
                options[pods, pods:] = best[: short + 1 - pods] + price
        choice = options.argmin(axis=0)
        best = np.minimum(options[choice, np.arange(short + 1)], _IMPOSSIBLE)
        choices.append(choice)
    if best[short] >= _IMPOSSIBLE:
        return None
    taken: list[tuple[int, int]] = []
    left = short
    for i in range(len(prices) - 1, -1, -1):
        pods = int(choices[i][left])
        if pods:
            taken.append((i, pods))
            left -= pods
    return taken


def _proposal(roster: Roster, price: int, units: list[int]) -> Proposal:
    chosen = tuple(sorted(set(units)))
    exact = bool((roster.rows_of_unit[list(chosen)] <= 1).all()) if chosen else True
    return Proposal(units=chosen, bound_ms=price >> _COUNT_BITS, exact=exact)


def nearby_units(
    roster: Roster, need: Vector, suits: Mask, allowed: Mask, count: int, most: int
) -> list[int]:
    """At most about `most` units, those of the rows that would be cheapest to clear, enough of them for the demand."""
    shops = _Shops(roster, need, allowed)
    room = capacity(roster, need, suits, allowed)
    rows = np.flatnonzero(room > 0)
    floors = shops.floors(rows, np.minimum(room[rows], count))
    units: dict[int, None] = {}
    made = 0
    for i in np.lexsort((roster.table.rank[rows], floors)).tolist():
        if made >= count and len(units) >= most:
            break
        row = int(rows[i])
        units.update(dict.fromkeys(shops.units_on(row)))
        made += int(room[row])
    return sorted(units)


class _Shops:
    """What each node charges: the cheapest units there that make room for so many pods."""

    def __init__(self, roster: Roster, need: Vector, allowed: Mask, toll_ms: int = 0) -> None:
        self.roster = roster
        self.need = need
        self.asked = np.flatnonzero(need)
        usable = np.flatnonzero(allowed[roster.entry_unit])
        single = roster.rows_of_unit[roster.entry_unit[usable]] == 1
        self.entries = usable
        shares = roster.entry_share[usable]
        if toll_ms:
            units = roster.entry_unit[usable]
            shares = shares + toll_ms * roster.parts[units] // np.maximum(
                roster.rows_of_unit[units], 1
            )
        self.price_of_entry = (shares << _COUNT_BITS) + np.where(single, 1, 0)
        self.rows = roster.entry_row[self.entries]
        self.start = np.searchsorted(self.rows, np.arange(len(roster.table.live) + 1))
        self.running = np.concatenate([[0], np.cumsum(self.price_of_entry)])
        self.running_units = np.concatenate([[0], np.cumsum(roster.entry_unit[usable])])
        self.in_order = np.ones(len(roster.table.live), np.bool_)
        falls = np.flatnonzero((np.diff(self.price_of_entry) < 0) & (np.diff(self.rows) == 0))
        self.in_order[self.rows[falls]] = False
        gains = roster.entry_amount[self.entries][:, self.asked]
        self.most_gain = np.zeros((len(roster.table.live), len(self.asked)), np.int64)
        self.least_gain = np.full_like(self.most_gain, _IMPOSSIBLE)
        if len(self.entries):
            filled = np.flatnonzero(self.start[1:] > self.start[:-1])
            self.most_gain[filled] = np.maximum.reduceat(gains, self.start[filled], axis=0)
            self.least_gain[filled] = np.minimum.reduceat(gains, self.start[filled], axis=0)
        self._prices: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}

    def _missing(self, rows: Rows, pods: Rows) -> Rows:
        free = self.roster.table.free[rows][:, self.asked]
        missing: Rows = np.maximum(self.need[self.asked] * pods[:, None] - free, 0)
        return missing

    def floors(self, rows: Rows, pods: Rows) -> Rows:
        """No set of units of the row costs less: so many of its cheapest as the largest gain would need."""
        return self.floors_and_ages(rows, self.fewest(rows, pods))[0]

    def floors_and_ages(self, rows: Rows, fewest: Rows) -> tuple[Rows, Rows]:
        """And the positions in the roster, added up, of the units that the floor stands for."""
        first, last = self.start[rows], self.start[rows + 1]
        enough = fewest <= last - first
        stop = np.where(enough, first + np.minimum(fewest, last - first), first)
        floors: Rows = np.where(enough, self.running[stop] - self.running[first], _IMPOSSIBLE)
        ages: Rows = self.running_units[stop] - self.running_units[first]
        return floors, ages

    def fewest(self, rows: Rows, pods: Rows) -> Rows:
        """So many units at least, if each were as large as the largest of its row."""
        units = -(-self._missing(rows, pods) // np.maximum(self.most_gain[rows], 1))
        most = np.where(self.most_gain[rows] > 0, units, np.where(units > 0, _IMPOSSIBLE, 0))
        result: Rows = most.max(axis=1)
        return result

    def floor_is_price(self, rows: Rows, pods: Rows) -> Mask:
        """Where the cheapest entries of the row are the answer, with no other set to compare them with."""
        result: Mask = self._equal_gains(rows, pods) & self.in_order[rows]
        return result

    def all_prices(self, rows: Rows, already: Rows, room: Rows) -> Rows:
        """Per row the price of 0, 1, 2, … further pods, as far as there is room for them."""
        width = int(room.max()) + 1
        prices = np.full((len(rows), width), _IMPOSSIBLE, np.int64)
        prices[:, 0] = 0
        for pods in range(1, width):
            here = np.flatnonzero(room >= pods)
            prices[here, pods] = self.floors(rows[here], already[here] + pods)
            for i in here[~self._equal_gains(rows[here], already[here] + pods)].tolist():
                prices[i, pods] = self.price(int(rows[i]), int(already[i]) + pods)[0]
        return prices

    def _equal_gains(self, rows: Rows, pods: Rows) -> Mask:
        """Where the floor is the price: one resource is short, and every unit gives the same amount of it."""
        short = self._missing(rows, pods) > 0
        equal = (self.most_gain[rows] == self.least_gain[rows]) | ~short
        result: Mask = (short.sum(axis=1) <= 1) & equal.all(axis=1)
        return result

    def units_on(self, row: int) -> list[int]:
        entries = self.entries[self.start[row] : self.start[row + 1]]
        units: list[int] = self.roster.entry_unit[entries].tolist()
        return units

    def price(self, row: int, pods: int) -> tuple[int, tuple[int, ...]]:
        """The least price for `pods` pods in all on this row, and the units that it takes."""
        known = self._prices.get((row, pods))
        if known is None:
            known = self._prices[row, pods] = self._cheapest(row, pods)
        return known

    def _cheapest(self, row: int, pods: int) -> tuple[int, tuple[int, ...]]:
        entries = self.entries[self.start[row] : self.start[row + 1]]  # cheapest first
        prices = self.price_of_entry[self.start[row] : self.start[row + 1]]
        free = self.roster.table.free[row, self.asked]
        missing = self.need[self.asked] * pods - free
        short = missing > 0
        gains = self.roster.entry_amount[entries][:, self.asked[short]]
        units = self.roster.entry_unit[entries]
        picked = cheapest_cover(missing[short], gains, prices)
        if picked is None:
            return _IMPOSSIBLE, ()
        return int(prices[picked].sum()), tuple(int(units[i]) for i in picked)


def cheapest_cover(missing: Vector, gains: Rows, prices: Vector) -> list[int] | None:
    """Positions of the cheapest items whose gains cover what is missing in every column; None if none do."""
    if not len(missing):
        return []
    if len(prices) == 0 or (gains.sum(axis=0) < missing).any():
        return None
    # Order by price and then position, so that equal sets come out the same whatever order they came in.
    order = np.lexsort((np.arange(len(prices)), prices))
    if len(missing) == 1:
        column = gains[:, 0]
        first = column[order[0]]
        if (column == first).all():
            return (
                sorted(order[: -(-int(missing[0]) // int(first))].tolist()) if first > 0 else None
            )
    if (gains.sum(axis=0) - gains.min(axis=0) < missing).any() and len(prices) <= 1:
        return list(range(len(prices)))
    return _cover_by_search(missing.tolist(), gains.tolist(), prices.tolist(), order.tolist())


_COVER_STEPS = 20_000


def _cover_by_search(
    missing: list[int], gains: list[list[int]], prices: list[int], order: list[int]
) -> list[int] | None:
    """Depth first over items from dear to cheap, sparing first, bounded by the fractional price of what is missing."""
    dear = order[::-1]
    best_price = sum(prices) + 1
    best: list[int] | None = None
    suffix = [[0] * len(missing) for _ in range(len(dear) + 1)]
    for depth in range(len(dear) - 1, -1, -1):
        suffix[depth] = [s + g for s, g in zip(suffix[depth + 1], gains[dear[depth]], strict=True)]
    by_price = [
        sorted((i for i in dear if gains[i][c] > 0), key=lambda i: prices[i] / gains[i][c])
        for c in range(len(missing))
    ]
    place = {item: depth for depth, item in enumerate(dear)}
    steps = 0
    stack: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = [(0, 0, tuple(missing), ())]
    while stack:
        depth, price, left, taken = stack.pop()
        steps += 1
        if all(amount <= 0 for amount in left):
            if price < best_price:
                best_price, best = price, list(taken)
            continue
        if depth == len(dear) or any(
            amount > have for amount, have in zip(left, suffix[depth], strict=True)
        ):
            continue
        floor = max(
            _least(amount, by_price[c], c, gains, prices, place, depth)
            for c, amount in enumerate(left)
        )
        if price + floor >= best_price or (steps > _COVER_STEPS and best is not None):
            continue
        item = dear[depth]
        stack.append(
            (
                depth + 1,
                price + prices[item],
                tuple(a - g for a, g in zip(left, gains[item], strict=True)),
                (*taken, item),
            )
        )
        stack.append((depth + 1, price, left, taken))
    return sorted(best) if best is not None else None


def _least(
    amount: int,
    by_price: list[int],
    column: int,
    gains: list[list[int]],
    prices: list[int],
    place: dict[int, int],
    depth: int,
) -> int:
    """The fractional price of covering one column with what is still undecided."""
    total = 0
    for item in by_price:
        if amount <= 0:
            break
        if place[item] < depth:
            continue
        gain = gains[item][column]
        if gain >= amount:
            return total + prices[item] * amount // gain
        total += prices[item]
        amount -= gain
    return total
