"""The sentences that Kueue's users know."""

from __future__ import annotations

from makeway.control import explain
from makeway.engine.cycle import decide
from makeway.model.decision import Considered
from makeway.model.event import Upsert
from makeway.model.queue import AdmissionCheck, QueueCheck
from makeway.model.workload import WorkloadId
from tests.engine.build import KUEUE, cohort, queue, running, state, workload

NOW = 1000.0


def test_a_preemption_tells_victim_and_preemptor() -> None:
    world = state(
        cohort("root"),
        cohort("team", parent="root"),
        queue("q", "2", cohort="team", within_queue="LowerPriority"),
        running("low", "q", 2, 1),
        workload("high", 2, 9, queue="q", owner_uid="job-1"),
    )
    plan = decide(world, NOW, KUEUE)
    message = (
        "Preempted to accommodate a workload (UID: high, JobUID: job-1) due to prioritization in the"
        " ClusterQueue; preemptor path: /root/team/q; preemptee path: /root/team/q"
    )
    priorities = (
        "preemptor effective priority: 9 (base: 9, boost: 0);"
        " preemptee effective priority: 1 (base: 1, boost: 0)"
    )
    found = [(e.workload, e.type, e.reason, e.message) for e in explain.events(plan, world, NOW)]
    assert found == [
        ("ns/low", "Normal", "EvictedDueToPreempted", message),
        ("ns/low", "Normal", "Preempted", f"{message}; {priorities}"),
        (
            "ns/high",
            "Normal",
            "PreemptedWorkload",
            f"Preempted workload ns/low (UID: low) in ClusterQueue q; {priorities}",
        ),
        (
            "ns/high",
            "Warning",
            "WaitingForPreemptedWorkloads",
            "couldn't assign flavors to pod set main: insufficient unused quota for x in flavor f,"
            " 2 more needed. Pending the preemption of 1 workload(s)",
        ),
    ]
    written = explain.conditions(plan, world)[WorkloadId("ns/low")]
    assert [(c.type, c.status, c.reason, c.message) for c in written] == [
        ("Evicted", "True", "Preempted", message),
        ("Preempted", "True", "InClusterQueue", message),
    ]


def test_an_admission_tells_how_long_it_took() -> None:
    world = state(queue("q", "2"), workload("w", 1, created=NOW - 90, queue="q"))
    plan = decide(world, NOW, KUEUE)
    assert [e.message for e in explain.events(plan, world, NOW)] == [
        "Quota reserved in ClusterQueue q, wait time since queued was 90s",
        "Admitted by ClusterQueue q, wait time since reservation was 0s",
    ]


def test_open_checks_hold_the_admission() -> None:
    world = state(queue("q", "2", checks=(QueueCheck(name="c"),)), workload("w", 1, queue="q"))
    world.apply(Upsert(obj=AdmissionCheck(name="c")))
    plan = decide(world, NOW, KUEUE)
    assert [e.reason for e in explain.events(plan, world, NOW)] == ["QuotaReserved"]
    written = explain.conditions(plan, world)[WorkloadId("ns/w")]
    assert [(c.type, c.status, c.reason) for c in written] == [
        ("QuotaReserved", "True", "QuotaReserved"),
        ("Admitted", "False", "UnsatisfiedAdmissionChecks"),
    ]


def test_flavors_that_were_passed_over() -> None:
    considered = (
        Considered(pod_set="a", flavor="one", mode="Reclaim", borrow=1, reasons=("r1", "r2")),
        Considered(pod_set="a", flavor="two", mode="NoFit"),
        Considered(pod_set="b", flavor="one", mode="Fit", borrow=2),
    )
    assert explain.flavors_considered(considered) == (
        "a: one(preemptionMode=Reclaim;borrow=1;r1;r2), two(NoFit) | b: one(Fit;borrow=2)"
    )


def test_a_victim_that_was_told_before_is_not_told_again() -> None:
    world = state(
        queue("q", "2", within_queue="LowerPriority"),
        running("low", "q", 2, 1, evicted_at=1.0),
        workload("high", 2, 9, queue="q"),
    )
    plan = decide(world, NOW, KUEUE)
    assert [e.reason for e in explain.events(plan, world, NOW)] == ["WaitingForPreemptedWorkloads"]
    assert list(explain.conditions(plan, world)) == ["ns/high"]


def test_a_stopped_queue_says_so() -> None:
    world = state(queue("q", "2", stop="HoldAndDrain"), running("w", "q", 1))
    plan = decide(world, NOW, KUEUE)
    assert [(e.reason, e.message) for e in explain.events(plan, world, NOW)] == [
        ("EvictedDueToClusterQueueStopped", "The ClusterQueue is stopped")
    ]
