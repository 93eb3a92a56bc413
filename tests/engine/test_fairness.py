"""Shares: what a queue borrows, measured against what could be lent, by weight."""

from __future__ import annotations

import pytest

from makeway.engine.fairness import NONE, Share, share
from tests.engine.build import cohort, queue, running, state


def test_a_share_is_the_borrowed_part_in_thousandths() -> None:
    world = state(
        queue("a", "3", cohort="all"),
        queue("b", "3", cohort="all"),
        queue("c", "3", cohort="all"),
        running("b1", "b", 6),
    )
    assert share(world.ledger.queue("b")).value == pytest.approx(333.333, abs=0.001)
    assert share(world.ledger.queue("a")) == NONE
    assert share(world.ledger.queue("b")).rounded() == 334


def test_weight_divides_and_zero_weight_is_above_everybody() -> None:
    world = state(
        queue("a", "3", cohort="all", weight=3.0),
        queue("b", "3", cohort="all", weight=0.0),
        running("a1", "a", 4),
        running("b1", "b", 4),
    )
    a, b = share(world.ledger.queue("a")), share(world.ledger.queue("b"))
    assert a.value == pytest.approx(1000 / 6 / 3)
    assert b > a
    assert b.rounded() == 2**63 - 1
    assert Share(True, 1.0) < Share(True, 2.0)


def test_who_has_no_parent_borrows_from_nobody() -> None:
    world = state(queue("alone", "1"), running("w", "alone", 9))
    assert share(world.ledger.queue("alone")) == NONE


def test_a_cohort_has_a_share_too() -> None:
    world = state(
        cohort("root", "10"),
        cohort("team", parent="root"),
        queue("a", "2", cohort="team"),
        running("w", "a", 5),
    )
    assert share(world.ledger.tree.cohorts["team"]).value == pytest.approx(3000 / 12)
