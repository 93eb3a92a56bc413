"""What one cycle decides: admission, waiting with reasons, preemption, rounds."""

from __future__ import annotations

import msgspec
import pytest

from makeway.engine.assume import assume
from makeway.engine.cycle import decide
from makeway.engine.policy import Policy
from makeway.engine.state import State
from makeway.model.decision import Plan
from makeway.model.event import Namespace, Remove, Upsert
from makeway.model.queue import AdmissionCheck, QueueCheck
from makeway.model.workload import CheckState, Workload, WorkloadId
from tests.engine.build import FX, KUEUE, cohort, queue, running, state, workload

NOW = 1000.0
OURS = Policy(quota_only=True)


def admitted(plan: Plan) -> list[str]:
    return [a.workload.removeprefix("ns/") for a in plan.admits]


def evicted(plan: Plan) -> list[str]:
    return [e.workload.removeprefix("ns/") for e in plan.evicts]


def why(plan: Plan, name: str) -> str:
    return next(w.reason.message for w in plan.waits if w.workload == f"ns/{name}")


def kind(plan: Plan, name: str) -> str:
    return next(w.reason.kind for w in plan.waits if w.workload == f"ns/{name}")


def test_rounds_go_on_until_nothing_changes() -> None:
    world = state(queue("q", "3"), *(workload(f"w{i}", 1, created=i, queue="q") for i in range(5)))
    plan = decide(world, NOW, KUEUE)
    assert admitted(plan) == ["w0", "w1", "w2"]
    assert why(plan, "w3") == (
        "couldn't assign flavors to pod set main: insufficient unused quota for x in flavor f, 1 more needed"
    )


def test_one_round_takes_one_head_of_each_queue() -> None:
    world = state(
        queue("a", "3"),
        queue("b", "3"),
        *(workload(f"{q}{i}", 1, created=i, queue=q) for q in "ab" for i in range(2)),
    )
    assert admitted(decide(world, NOW, KUEUE, rounds=1)) == ["a0", "b0"]


def test_deciding_changes_nothing_but_the_plan() -> None:
    world = state(queue("q", "3"), workload("w", 2, queue="q"))
    first = decide(world, NOW, KUEUE)
    assert decide(world, NOW, KUEUE) == first
    assert world.ledger.queue("q").used(FX) == 0
    assert list(world.pending[world.queue_of(world.workloads[WorkloadId("ns/w")]) or "q"].active())  # type: ignore[index]


def test_what_was_assumed_is_not_asked_for_again() -> None:
    world = state(queue("q", "3"), workload("w", 2, queue="q"))
    assume(world, decide(world, NOW, KUEUE), NOW)
    assert world.ledger.queue("q").used(FX) == 2
    assert decide(world, NOW, KUEUE).decisions == ()


def test_strict_order_blocks_best_effort_goes_on() -> None:
    for strategy, expected in (("StrictFIFO", []), ("BestEffortFIFO", ["small"])):
        world = state(
            queue("q", "3", strategy=strategy),
            workload("big", 4, priority=1, queue="q"),
            workload("small", 1, queue="q"),
        )
        assert admitted(decide(world, NOW, KUEUE)) == expected


def test_the_nominal_gate() -> None:
    """Who asks for more than its queue owns may not preempt, not even inside the queue."""
    objects = (
        queue("cq1", "2", cohort="all", within_queue="LowerPriority", reclaim="Any"),
        queue("cq2", "2", cohort="all"),
        running("low", "cq1", 4, 0, 1),
    )
    plan = decide(state(*objects, workload("high", 4, 10, queue="cq1")), NOW, KUEUE)
    assert evicted(plan) == []
    plan = decide(state(*objects, workload("high", 2, 10, queue="cq1")), NOW, KUEUE)
    assert evicted(plan) == ["low"]


def test_a_preemptor_waits_for_its_victims_and_then_gets_in() -> None:
    world = state(
        queue("q", "4", within_queue="LowerPriority"),
        running("low", "q", 4),
        workload("high", 4, 9, queue="q"),
    )
    plan = decide(world, NOW, KUEUE)
    assert evicted(plan) == ["low"]
    assert kind(plan, "high") == "waiting-for-victims"
    assume(world, plan, NOW)

    again = decide(world, NOW, KUEUE)
    assert [e.already for e in again.evicts] == [True]

    world.apply(Remove(type=Workload, key="ns/low"))
    assert admitted(decide(world, NOW, KUEUE)) == ["high"]


def test_the_next_in_line_gets_its_own_victims() -> None:
    """Behind a preemptor whose room is on its way the queue goes on, except where Kueue would not."""

    def crowd() -> State:
        return state(
            queue("q", "4", within_queue="LowerPriority"),
            *(running(f"low{i}", "q", 1, 0, i) for i in range(4)),
            *(workload(f"high{i}", 2, 9, created=i, queue="q") for i in range(2)),
        )

    assert evicted(decide(crowd(), NOW, OURS)) == ["low3", "low2", "low1", "low0"]
    assert evicted(decide(crowd(), NOW, KUEUE)) == ["low3", "low2"]


def test_what_a_later_round_needs_is_taken_back() -> None:
    """Nobody who was admitted a moment ago is evicted: it simply was not admitted."""
    world = state(
        queue("owner", "4", cohort="all", reclaim="Any"),
        queue("guest", "0", cohort="all"),
        workload("first", 2, 5, queue="owner"),
        workload("second", 2, 4, queue="owner"),
        workload("borrower", 2, 9, queue="guest"),
    )
    plan = decide(world, NOW, OURS)
    assert admitted(plan) == ["first", "second"]
    assert evicted(plan) == []
    assert kind(plan, "borrower") == "taken-back"
    assert world.ledger.queue("guest").used(FX) == 0


def test_room_that_is_on_its_way_is_not_given_away() -> None:
    """A victim larger than its preemptor frees more than needed, but not yet."""
    world = state(
        queue("a", "10", cohort="all", within_queue="LowerPriority"),
        queue("b", "5", cohort="all"),
        queue("c", "0", cohort="all"),
        running("victim", "a", 10),
        workload("preemptor", 6, 9, queue="a"),
        workload("one", 5, 0, queue="b"),
        workload("two", 4, 0, queue="c"),
    )
    plan = decide(world, NOW, OURS)
    assert evicted(plan) == ["victim"]
    assert admitted(plan) == ["one"]
    assume(world, plan, NOW)
    assert world.ledger.tree.cohorts["all"].available(FX) == 0


@pytest.mark.parametrize("pods", [5, 3, 1])
def test_partial_admission_takes_what_fits(pods: int) -> None:
    world = state(queue("q", str(pods)), workload("w", 1, pods=6, min_count=2, queue="q"))
    plan = decide(world, NOW, KUEUE)
    counts = [a.admission.assignments[0].count for a in plan.admits if a.admission]
    assert counts == ([pods] if pods >= 2 else [])


def test_reclaimable_pods_need_no_quota() -> None:
    done = workload("w", 1, pods=4, queue="q", reclaimable=(("main", 2),))
    plan = decide(state(queue("q", "2"), done), NOW, KUEUE)
    assert admitted(plan) == ["w"]


def test_a_namespace_that_the_queue_does_not_want_waits_parked() -> None:
    world = state(queue("q", "2"), workload("w", 1, queue="q"))
    closed = msgspec.structs.replace(world.queues["q"], namespace_selector=None)  # type: ignore[index]
    world.apply(Upsert(obj=closed))
    plan = decide(world, NOW, KUEUE)
    assert why(plan, "w") == "workload namespace doesn't match ClusterQueue selector"
    assert list(world.pending["q"].parked()) == ["ns/w"]  # type: ignore[index]
    world.apply(Upsert(obj=world.queues["q"]))  # type: ignore[index]
    world.apply(Upsert(obj=Namespace(name="ns", labels={"a": "b"})))
    world.apply(Upsert(obj=queue("q", "2")))
    assert admitted(decide(world, NOW, KUEUE)) == ["w"]


def test_checks_stand_between_reserved_and_admitted() -> None:
    world = state(queue("q", "2", checks=(QueueCheck(name="budget"),)), workload("w", 1, queue="q"))
    world.apply(Upsert(obj=AdmissionCheck(name="budget")))
    plan = decide(world, NOW, KUEUE)
    assert [a.admission.admitted for a in plan.admits if a.admission] == [False]
    assume(world, plan, NOW)

    assert decide(world, NOW, KUEUE).decisions == ()
    ready = msgspec.structs.replace(
        world.workloads[WorkloadId("ns/w")], checks=(CheckState(name="budget", state="Ready"),)
    )
    world.apply(Upsert(obj=ready))
    plan = decide(world, NOW, KUEUE)
    assert [a.admission.admitted for a in plan.admits if a.admission] == [True]


def test_a_missing_check_makes_the_queue_inactive() -> None:
    world = state(queue("q", "2", checks=(QueueCheck(name="budget"),)), workload("w", 1, queue="q"))
    assert decide(world, NOW, KUEUE).decisions == ()
    assert world.inactive_because(world.queues["q"].name) == (  # type: ignore[index]
        "references missing AdmissionCheck(s): budget"
    )


@pytest.mark.parametrize(("stop", "expected"), [("Hold", []), ("HoldAndDrain", ["old"])])
def test_stopped_queues(stop: str, expected: list[str]) -> None:
    world = state(queue("q", "4", stop=stop), running("old", "q", 1), workload("new", 1, queue="q"))
    plan = decide(world, NOW, KUEUE)
    assert admitted(plan) == []
    assert evicted(plan) == expected


def test_backoff_ends_by_itself() -> None:
    world = state(queue("q", "2"), workload("w", 1, queue="q", requeue_at=NOW + 60))
    assert decide(world, NOW, KUEUE).decisions == ()
    assert admitted(decide(world, NOW + 60, KUEUE)) == ["w"]


def test_who_may_not_preempt_does_not() -> None:
    world = state(
        queue("q", "4", within_queue="LowerPriority"),
        running("low", "q", 4),
        workload("high", 4, 9, queue="q", preempts=False),
    )
    assert evicted(decide(world, NOW, KUEUE)) == []


def test_a_blocked_lender_keeps_its_room_unless_it_can_take_it_back() -> None:
    for reclaim, expected in (("Never", []), ("Any", ["borrower"])):
        world = state(
            queue("owner", "4", cohort="all", reclaim=reclaim, within_queue="LowerPriority"),
            queue("guest", "0", cohort="all"),
            running("mine", "owner", 2, 9),
            workload("waits", 3, 5, queue="owner"),
            workload("borrower", 2, 0, queue="guest"),
        )
        assert admitted(decide(world, NOW, KUEUE, rounds=1)) == expected


def test_overlapping_victims_are_looked_at_again() -> None:
    """Two heads want the same big victim: the second fits into what the first leaves over, later."""
    policies = {"within_queue": "LowerPriority", "reclaim": "Any"}
    world = state(
        cohort("all"),
        queue("a", "3", cohort="all", **policies),
        queue("b", "3", cohort="all", **policies),
        queue("guest", "0", cohort="all"),
        running("big", "guest", 6),
        workload("one", 3, 1, queue="a"),
        workload("two", 3, 0, queue="b"),
    )
    plan = decide(world, NOW, KUEUE, rounds=1)
    assert evicted(plan) == ["big"]
    assert kind(plan, "one") == "waiting-for-victims"
    assert kind(plan, "two") == "fits-after-victims"
    before = Policy(victims="kueue", recompute_overlaps=False)
    world.settle(NOW)
    plan = decide(world, NOW, before, rounds=1)
    assert kind(plan, "two") == "overlapping-victims"
    assert plan.skipped_preemptions == {"b": 1}


def held(*newcomers: Workload) -> State:
    """`waiting` displaced `low`, which is gone now; the room is held when the newcomers arrive."""
    world = state(
        queue("q", "4", cohort="all", within_queue="LowerPriority"),
        queue("guest", "0", cohort="all"),
        running("low", "q", 4),
        workload("waiting", 4, 5, queue="q"),
    )
    plan = decide(world, NOW, OURS)
    assert [h.victims for h in plan.holds] == [("ns/low",)]
    assume(world, plan, NOW)
    for newcomer in newcomers:
        world.apply(Upsert(obj=newcomer))
    return world


def test_held_room_is_closed_to_equal_and_lower_priority() -> None:
    world = held(workload("other", 1, 5, queue="guest"), workload("behind", 1, 4, queue="q"))
    plan = decide(world, NOW + 1, OURS)
    assert admitted(plan) == []
    assert evicted(plan) == []
    assert kind(plan, "waiting") == "hold"
    world.apply(Remove(type=Workload, key="ns/low"))
    assert admitted(decide(world, NOW + 2, OURS)) == ["waiting"]


def test_a_higher_priority_may_take_held_room() -> None:
    world = held(workload("vip", 4, 9, queue="q"))
    world.apply(Remove(type=Workload, key="ns/low"))
    plan = decide(world, NOW + 1, OURS)
    assert admitted(plan) == ["vip"]
    assert plan.ended_holds == ("ns/waiting",)


def test_a_hold_that_ran_out_is_planned_anew() -> None:
    world = held()
    later = NOW + OURS.hold_s + 1
    plan = decide(world, later, OURS)
    assert kind(plan, "waiting") == "waiting-for-victims"
    assert [h.until for h in plan.holds] == [later + OURS.hold_s]


@pytest.mark.parametrize(
    ("check", "rule", "message"),
    [
        ("Retry", "AdmissionCheck", 'Evicted due to AdmissionCheck in Retry state: "c" (later)'),
        (
            "Rejected",
            "DeactivatedDueToAdmissionCheck",
            'The workload is deactivated due to AdmissionCheck in Rejected state: "c" (later)',
        ),
    ],
)
def test_a_check_that_fails_sends_back_even_who_runs(check: str, rule: str, message: str) -> None:
    failed = CheckState(name="c", state=check, message="later")  # type: ignore[arg-type]
    plan = decide(state(queue("q", "2"), running("w", "q", 1, checks=(failed,))), NOW, KUEUE)
    assert [(e.workload, e.reason.kueue, e.reason.message) for e in plan.evicts] == [
        ("ns/w", rule, message)
    ]


def test_room_beside_a_hold_stays_free_for_all() -> None:
    world = state(
        queue("q", "6", within_queue="LowerPriority"),
        running("low", "q", 4),
        workload("waiting", 4, 5, queue="q"),
    )
    assume(world, decide(world, NOW, OURS), NOW)
    world.apply(Upsert(obj=workload("small", 2, 0, queue="q")))
    plan = decide(world, NOW + 1, OURS)
    assert admitted(plan) == ["small"]
    assert evicted(plan) == []
