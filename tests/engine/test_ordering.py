"""Who goes next, and whom to ask first to step aside."""

from __future__ import annotations

from makeway.engine.ordering import candidate_key, entry_key, pending_key, queue_timestamp
from makeway.engine.policy import Policy
from makeway.model.workload import Workload
from tests.engine.build import running, workload

P = Policy()


def in_line(*workloads: Workload) -> list[str]:
    return [w.name for w in sorted(workloads, key=lambda w: pending_key(w, P))]


def test_priority_outranks_age_and_age_outranks_the_name() -> None:
    line = in_line(
        workload("b", 1, 0, created=5),
        workload("a", 1, 0, created=5),
        workload("old", 1, 0, created=1),
        workload("vip", 1, 9, created=9),
    )
    assert line == ["vip", "old", "a", "b"]


def test_an_eviction_for_slow_pods_sends_to_the_back_if_so_configured() -> None:
    slow = workload("w", 1, created=5, evicted_at=50.0, evicted_reason="PodsReadyTimeout")
    assert queue_timestamp(slow, P) == 50
    assert queue_timestamp(slow, Policy(requeuing_timestamp="Creation")) == 5


def test_a_failed_check_sends_to_the_back_and_preemption_does_not() -> None:
    for reason, expected in (("AdmissionCheck", 50.0), ("Preempted", 5.0)):
        evicted = workload("w", 1, created=5, evicted_at=50.0, evicted_reason=reason)
        assert queue_timestamp(evicted, Policy(requeuing_timestamp="Creation")) == expected


def test_without_priorities_a_reclaimed_borrower_queues_behind_its_reclaimer() -> None:
    lost = workload(
        "w",
        1,
        created=5,
        last_preemption_at=50.0,
        last_preemption_reason="InCohortReclaimWhileBorrowing",
    )
    assert queue_timestamp(lost, P) == 5
    assert queue_timestamp(lost, Policy(priority_within_cohort=False)) == 50.001


def test_entries_that_borrow_less_go_first() -> None:
    def key(name: str, borrowing: int, priority: int, second: bool = False) -> object:
        return entry_key(
            workload(name, 1, priority),
            P,
            borrowing=borrowing,
            second_pass=second,
            preemptor=False,
        )

    keys = [key("own", 0, 0), key("borrows", 1, 9), key("holds", 2, 0, second=True)]
    assert sorted(keys) == [keys[2], keys[0], keys[1]]  # type: ignore[type-var]


def test_candidates_leaving_others_low_young() -> None:
    def key(w: Workload, own: bool) -> object:
        return candidate_key(w, own_queue=own)

    ordered = [
        key(running("leaving", "q", 1, 9, 1, evicted_at=5.0), True),
        key(running("other", "v", 1, 9, 1), False),
        key(running("low", "q", 1, 1, 1), True),
        key(running("young", "q", 1, 2, 9), True),
        key(running("old", "q", 1, 2, 1), True),
    ]
    assert sorted(ordered) == ordered  # type: ignore[type-var]
