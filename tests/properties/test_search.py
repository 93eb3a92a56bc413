"""Promises 2 and 4 of the search by itself: whatever is proposed to it and however few steps it has, every victim is needed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from makeway.engine.victims.search import BUDGET, Chosen, Cover, Unit, cheapest, in_steps
from tests.properties.life import many

_UNITS = 8


class Sums:
    """There is room when of each resource enough is given back. What it proposes is enough, and may be too much."""

    def __init__(self, covers: Sequence[Cover], proposed: Chosen) -> None:
        self._covers = covers
        self._proposed = proposed

    def fits(self, gone: Chosen) -> bool:
        return all(sum(c.gains[i] for i in gone) >= c.need for c in self._covers)

    def legal(self, gone: Chosen) -> bool:
        return True

    def covers(self) -> Sequence[Cover]:
        return self._covers

    def propose(self, allowed: Chosen) -> tuple[Chosen, int] | None:
        return self._proposed & allowed, 0


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Unit], list[Cover]]:
    written = draw(st.binary(min_size=4 * _UNITS + 2, max_size=4 * _UNITS + 2))
    count = 2 + written[-1] % (_UNITS - 1)
    rows = [written[4 * i : 4 * i + 4] for i in range(count)]
    units = [
        Unit(band=row[0] % 2, loss_ms=(row[1] % 40) * 10_000, rank=i) for i, row in enumerate(rows)
    ]
    gains = [tuple(1 + row[2] % 4 for row in rows), tuple(row[3] % 5 for row in rows)]
    covers = [
        Cover(need=sum(column) * (1 + written[-2] % 3) // 4, gains=column) for column in gains
    ]
    covers = [cover for cover in covers if cover.need > 0] or [Cover(need=1, gains=gains[0])]
    return units, covers


@many
@given(cases(), st.sampled_from([1, 30, BUDGET]), st.data())
def test_every_victim_is_needed_whatever_was_proposed(
    case: tuple[list[Unit], list[Cover]], budget: int, data: st.DataObject
) -> None:
    units, covers = case
    best = _best(units, covers)
    # What is cheapest, and one more that is of no use.
    proposed = best | {data.draw(st.integers(0, len(units) - 1))}
    oracle = Sums(covers, proposed)
    found = cheapest(units, oracle, budget)
    assert found is not None
    chosen = frozenset(found.chosen)
    assert oracle.fits(chosen)
    assert not any(oracle.fits(chosen - {i}) for i in chosen)
    assert _worth(units, chosen) == _worth(units, best)
    assert in_steps(found.bound_ms) <= in_steps(sum(units[i].loss_ms for i in best))


def _best(units: list[Unit], covers: list[Cover]) -> Chosen:
    """Of all sets, the lowest ceiling, then the least loss in steps, then the fewest."""
    oracle = Sums(covers, frozenset())
    every = (
        frozenset(each)
        for count in range(1, len(units) + 1)
        for each in itertools.combinations(range(len(units)), count)
    )
    return min((each for each in every if oracle.fits(each)), key=lambda each: _worth(units, each))


def _worth(units: list[Unit], chosen: Chosen) -> tuple[int, int, int]:
    taken = [units[i] for i in chosen]
    return max(u.band for u in taken), in_steps(sum(u.loss_ms for u in taken)), len(taken)
