"""Whoever waits can read what is missing, who has it, what keeps them safe, and what would help."""

from __future__ import annotations

from makeway.engine.state import State
from makeway.engine.why import why
from makeway.model.reason import Reason
from makeway.model.workload import WorkloadId
from tests.engine.build import KUEUE, queue, running, state, workload


def ask(world: State) -> Reason:
    reason = why(world, WorkloadId("ns/w"), 100.0, KUEUE)
    assert reason is not None
    return reason


def test_the_holders_and_what_keeps_them_safe() -> None:
    world = state(
        queue("q", "6", cohort="all", within_queue="LowerPriority", reclaim="LowerPriority"),
        queue("owner", "2", cohort="all"),
        queue("guest", "0", cohort="all"),
        running("equal", "q", 3, 5),
        running("owned", "owner", 2, 0),
        running("borrowed", "guest", 3, 7),
        workload("w", 4, 5, queue="q"),
    )
    reason = ask(world)
    assert reason.kueue == "WaitingForQuota"
    assert [(s.resource, s.missing, s.free) for s in reason.shortages] == [("x", 4, 0)]
    assert [(h.workload, h.safe_because) for h in reason.holders] == [
        ("ns/borrowed", "its priority 7 is not below 5"),
        ("ns/equal", "its priority 5 is not below 5"),
        ("ns/owned", "ClusterQueue owner is within its nominal quota"),
    ]
    assert reason.cheapest == "a priority of 8 would let it preempt ns/borrowed, ns/equal"


def test_fewer_pods_are_the_cheapest() -> None:
    world = state(queue("q", "5"), running("r", "q", 2), workload("w", 1, pods=6, queue="q"))
    assert ask(world).cheapest == "3 of its 6 pods would fit now"


def test_where_nothing_else_helps_it_takes_quota() -> None:
    world = state(queue("q", "5"), workload("w", 7, queue="q"))
    reason = ask(world)
    assert reason.kueue == "ExceedsMaxQuota"
    assert reason.cheapest == "2 more x in flavor f for ClusterQueue q"


def test_borrowing_by_force_needs_a_permission() -> None:
    world = state(
        queue("q", "1", cohort="all", reclaim="Any"),
        queue("guest", "2", cohort="all"),
        running("r", "guest", 3),
        workload("w", 2, 9, queue="q"),
    )
    assert [h.safe_because for h in ask(world).holders] == [
        "ClusterQueue q would have to borrow, and borrowWithinCohort is Never"
    ]


def test_who_fits_waits_for_its_turn_and_who_preempts_says_whom() -> None:
    assert ask(state(queue("q", "5"), workload("w", 1, queue="q"))).kind == "fits"
    world = state(
        queue("q", "2", within_queue="LowerPriority"),
        running("low", "q", 2),
        workload("w", 2, 9, queue="q"),
    )
    assert ask(world).message == "It would get in by preempting ns/low."


def test_a_queue_problem_comes_first() -> None:
    world = state(queue("q", "5", stop="Hold"), workload("w", 1, queue="q"))
    assert ask(world).message == "ClusterQueue q is stopped"
    done = state(queue("q", "5"), running("w", "q", 1))
    assert why(done, WorkloadId("ns/w"), 0.0, KUEUE) is None
