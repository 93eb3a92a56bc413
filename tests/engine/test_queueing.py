"""Lines: heads, parking of equals, waking, the head that stays."""

from __future__ import annotations

from makeway.engine.policy import Policy
from makeway.engine.queueing import PendingQueue, Requeue
from makeway.model.workload import Workload
from tests.engine.build import workload

P = Policy(victims="kueue")


def line(*workloads: Workload, strict: bool = False) -> PendingQueue:
    result = PendingQueue("StrictFIFO" if strict else "BestEffortFIFO", P)
    for each in workloads:
        result.add(each)
    return result


def head(queue: PendingQueue) -> str | None:
    first = queue.head()
    return None if first is None else first.name


SMALL = [workload(f"s{i}", 1, created=i) for i in range(3)]
LARGE = [workload(f"l{i}", 9, created=10 + i) for i in range(2)]


def test_equals_are_parked_and_woken_together() -> None:
    queue = line(*SMALL, *LARGE)
    assert queue.requeue(SMALL[0], Requeue.NO_FIT)
    assert head(queue) == "l0"
    assert sorted(queue.parked()) == ["ns/s0", "ns/s1", "ns/s2"]
    queue.wake()
    assert head(queue) == "s0"


def test_an_equal_that_arrives_later_is_parked_too_until_the_next_wake_up() -> None:
    queue = line(SMALL[0])
    queue.requeue(SMALL[0], Requeue.NO_CANDIDATES)
    queue.remove(SMALL[0].id)
    queue.add(SMALL[1])
    assert head(queue) is None
    queue.wake()
    assert head(queue) == "s1"


def test_other_causes_park_one_alone() -> None:
    queue = line(*SMALL)
    queue.requeue(SMALL[0], Requeue.NOT_NOMINATED)
    assert head(queue) == "s1"
    queue.wake()
    assert head(queue) == "s0"


def test_a_strict_line_parks_only_strangers() -> None:
    queue = line(*SMALL, strict=True)
    for how in (Requeue.NO_FIT, Requeue.NO_CANDIDATES, Requeue.NOT_NOMINATED, Requeue.LOST):
        assert not queue.requeue(SMALL[0], how)
    assert head(queue) == "s0"
    assert queue.requeue(SMALL[0], Requeue.NAMESPACE_MISMATCH)
    assert head(queue) == "s1"


def test_who_lost_the_round_or_has_flavors_left_stays_in_line() -> None:
    queue = line(*SMALL)
    assert not queue.requeue(SMALL[0], Requeue.LOST)
    assert not queue.requeue(SMALL[0], Requeue.NO_CANDIDATES, untried_flavors=True)
    assert head(queue) == "s0"


def test_who_waits_for_its_victims_stays_the_head_even_before_higher_priority() -> None:
    queue = line(*SMALL)
    queue.requeue(SMALL[1], Requeue.PENDING_PREEMPTION)
    queue.add(workload("vip", 1, priority=9))
    assert head(queue) == "s1"
    queue.remove(SMALL[1].id)
    assert head(queue) == "vip"


def test_backing_off_is_not_woken_with_the_others() -> None:
    queue = line(workload("w", 1, requeue_at=100.0), workload("blocked", 1, requeue_blocked=True))
    queue.wake()
    assert head(queue) is None
    queue.wake_one(workload("w", 1).id)
    assert head(queue) == "w"


def test_a_changed_workload_takes_its_new_place() -> None:
    queue = line(*SMALL)
    queue.add(workload("s2", 1, priority=5, created=2))
    assert head(queue) == "s2"
    assert len(queue) == 3
    assert [w.name for w in queue.in_order()] == ["s2", "s0", "s1"]


USED = {"ns/much": 5.0, "ns/little": 1.0}
MUCH = [workload(f"m{i}", 1, created=i, queue="much") for i in range(2)]
LITTLE = [workload(f"n{i}", 1, created=10 + i, queue="little") for i in range(2)]


def by_usage(*workloads: Workload) -> PendingQueue:
    result = PendingQueue("BestEffortFIFO", P, USED.__getitem__)
    for each in workloads:
        result.add(each)
    return result


def test_where_usage_counts_the_local_queue_that_used_least_is_emptied_first() -> None:
    queue = by_usage(*MUCH, *LITTLE)
    gone = []
    while (first := queue.head()) is not None:
        gone.append(first.name)
        queue.remove(first.id)
    assert gone == ["n0", "n1", "m0", "m1"]
    assert [w.name for w in by_usage(*MUCH, *LITTLE).in_order()] == gone


def test_usage_goes_before_who_waits_for_its_victims_and_that_before_priority() -> None:
    queue = by_usage(*MUCH)
    queue.requeue(MUCH[1], Requeue.PENDING_PREEMPTION)
    queue.add(workload("vip", 1, priority=9, queue="much"))
    assert head(queue) == "m1"
    queue.add(LITTLE[0])
    assert head(queue) == "n0"


def test_equals_of_different_local_queues_are_parked_and_woken_together_too() -> None:
    queue = by_usage(*MUCH, *LITTLE)
    queue.requeue(LITTLE[0], Requeue.NO_FIT)
    assert head(queue) is None
    queue.add(workload("other", 2, queue="much"))
    assert head(queue) == "other"
    queue.wake()
    assert head(queue) == "n0"


def test_lanes_come_and_go_with_the_configuration() -> None:
    queue = by_usage(*MUCH, *LITTLE)
    queue.reorder(P, None)
    assert head(queue) == "m0"
    queue.reorder(P, USED.__getitem__)
    assert head(queue) == "n0"
