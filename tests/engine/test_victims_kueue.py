"""Kueue's victims: fill-back, reclaim, borrowing while preempting, hierarchy, fair sharing."""

from __future__ import annotations

import pytest

from makeway.engine.policy import Policy
from makeway.engine.state import State
from tests.engine.build import FAIR, KUEUE, cohort, queue, running, state, victims


def names(found: list[tuple[str, str]]) -> list[str]:
    return [name for name, _ in found]


@pytest.mark.parametrize(
    ("size", "priority", "expected"),
    [(5, 9, ["w1", "w2"]), (6, 9, ["w1", "w3"]), (8, 9, ["w3", "w2"]), (6, 3, [])],
)
def test_who_was_not_needed_is_spared(size: int, priority: int, expected: list[str]) -> None:
    single = state(
        queue("s", "10", within_queue="LowerPriority"),
        running("w1", "s", 2, 1, 10),
        running("w2", "s", 3, 2, 11),
        running("w3", "s", 5, 3, 12),
    )
    assert names(victims(single, "s", size, priority)) == expected


@pytest.mark.parametrize(("size", "expected"), [(2, ["v3"]), (4, ["v3", "v2"]), (5, [])])
def test_lent_quota_is_reclaimed_down_to_nominal(size: int, expected: list[str]) -> None:
    lent = state(
        queue("p", "4", cohort="all", reclaim="Any"),
        queue("v", "4", cohort="all"),
        running("v1", "v", 3, 5, 1),
        running("v2", "v", 3, 1, 2),
        running("v3", "v", 2, 0, 3),
    )
    found = victims(lent, "p", size)
    assert names(found) == expected
    assert {rule for _, rule in found} <= {"InCohortReclamation"}


def borrowers(*workloads: object) -> State:
    return state(
        queue(
            "p",
            "2",
            cohort="all",
            reclaim="LowerPriority",
            borrow="LowerPriority",
            borrow_max_priority=0,
        ),
        queue("v", "0", cohort="all"),
        queue("shared", "8", cohort="all"),
        *workloads,  # type: ignore[arg-type]
    )


def test_while_borrowing_only_up_to_the_threshold() -> None:
    busy = borrowers(
        running("p1", "p", 2, 50, 1), running("v1", "v", 4, -5, 2), running("v2", "v", 4, 10, 3)
    )
    assert victims(busy, "p", 4, 100) == [("v1", "InCohortReclaimWhileBorrowing")]
    assert victims(busy, "p", 6, 100) == []


@pytest.mark.parametrize("priority", [100, 0])
def test_own_quota_is_reclaimed_without_borrowing(priority: int) -> None:
    busy = borrowers(running("v1", "v", 4, -5, 2), running("v2", "v", 6, 10, 3))
    assert victims(busy, "p", 2, priority) == [("v1", "InCohortReclamation")]


@pytest.mark.parametrize(
    ("created", "size", "expected"), [(20, 3, ["new"]), (20, 6, []), (60, 3, [])]
)
def test_newer_of_equal_priority_steps_aside(
    created: float, size: int, expected: list[str]
) -> None:
    equals = state(
        queue("s", "6", within_queue="LowerOrNewerEqualPriority"),
        running("old", "s", 3, 0, 5),
        running("new", "s", 3, 0, 50),
    )
    assert names(victims(equals, "s", size, 0, created=created)) == expected


def test_a_teams_quota_is_nearer_to_its_members() -> None:
    nested = state(
        cohort("root"),
        cohort("team", "4", parent="root"),
        queue("a", "0", cohort="team", reclaim="Any"),
        queue("b", "0", cohort="team"),
        queue("x", "0", cohort="root"),
        running("b1", "b", 1, 9, 1),
        running("x1", "x", 3, 9, 2),
    )
    assert victims(nested, "a", 3) == [("x1", "InCohortReclamation")]
    assert victims(nested, "a", 4) == []


def sharers(weight: float = 1.0) -> State:
    policies = {"within_queue": "LowerPriority", "reclaim": "Any"}
    return state(
        queue("a", "3", cohort="all", **policies),
        queue("b", "3", cohort="all", weight=weight, **policies),
        queue("c", "3", cohort="all", **policies),
        running("a1", "a", 3, 0, 1),
        *(running(f"b{i}", "b", 1, 0, i) for i in range(1, 7)),
    )


def test_fair_sharing_evens_out_but_does_not_turn_the_tables() -> None:
    assert victims(sharers(), "a", 1, policy=FAIR) == [("b6", "InCohortFairSharing")]
    assert victims(sharers(), "a", 2, policy=FAIR) == []


def test_fair_sharing_gives_back_what_one_owns() -> None:
    expected = [(f"b{i}", "InCohortReclamation") for i in (6, 5, 4)]
    assert victims(sharers(), "c", 3, policy=FAIR) == expected


def test_a_heavier_queue_may_borrow_more() -> None:
    assert victims(sharers(weight=3.0), "a", 1, policy=FAIR) == []


def test_the_search_alone_knows_no_nominal_gate() -> None:
    """Flavor assignment refuses such a request before victims are asked for; see test_cycle."""
    gate = state(
        queue("cq1", "2", cohort="all", within_queue="LowerPriority", reclaim="Any"),
        queue("cq2", "2", cohort="all"),
        running("low", "cq1", 4, 0, 1),
    )
    assert names(victims(gate, "cq1", 4, 10)) == ["low"]


def test_the_ledger_is_untouched_by_the_search() -> None:
    for policy in (KUEUE, FAIR):
        world = sharers()
        before = {n: dict(q.usage) for n, q in world.ledger.tree.queues.items()}
        victims(world, "c", 3, policy=policy)
        assert {n: dict(q.usage) for n, q in world.ledger.tree.queues.items()} == before


def test_one_strategy_alone() -> None:
    final = Policy(fair_sharing=True, fair_strategies=("LessThanOrEqualToFinalShare",))
    initial = Policy(fair_sharing=True, fair_strategies=("LessThanInitialShare",))
    huge = state(
        queue("a", "4", cohort="all", reclaim="Any"),
        queue("b", "4", cohort="all", reclaim="Any"),
        running("a1", "a", 4, 0, 1),
        running("b1", "b", 4, 0, 1),
    )
    assert victims(huge, "a", 1, policy=initial) == []
    wide = state(
        queue("a", "1", cohort="all", reclaim="Any"),
        queue("b", "1", cohort="all", reclaim="Any"),
        queue("idle", "6", cohort="all"),
        running("a1", "a", 1, 0, 1),
        running("b1", "b", 7, 0, 1),
    )
    # Afterwards a would borrow 2 and b nothing: not fair by the final share, fair by the initial one (2 < 6).
    assert victims(wide, "a", 2, policy=final) == []
    assert victims(wide, "a", 2, policy=initial) == [("b1", "InCohortFairSharing")]
