"""Large gangs do not starve, queued or not; and pods above a minimum fall before whole workloads do."""

from __future__ import annotations

import msgspec
import pytest

from makeway.engine.policy import Policy
from makeway.model.queue import QueueName
from makeway.model.workload import Checkpoint, WorkloadId
from makeway.testing import Harness

HOUR = 3_600.0


def trickle(h: Harness, queue: str | None, *, runs_for: float | None = None) -> None:
    """Two nodes of eight; a gang that needs both has waited for an hour, and small work comes all the time."""
    h.nodes(2, gpus=8)
    h.queue("research", gpus=100)
    h.submit("first", gpus=8, queue=queue)
    h.submit("second", gpus=8, queue=queue, checkpoint=Checkpoint(expected_runtime_s=3 * HOUR))
    h.settle()
    h.submit("gang", pods=2, gpus=8, queue=queue)
    h.settle()
    h.advance(HOUR + 1)
    h.finish("first")
    h.settle()
    said = Checkpoint(expected_runtime_s=runs_for)
    h.submit("small", gpus=8, queue=queue, checkpoint=said)
    h.settle()


@pytest.mark.parametrize("queue", [None, "research"])
def test_a_gang_that_waited_long_keeps_the_nodes_that_fall_free(queue: str | None) -> None:
    h = Harness()
    trickle(h, queue)
    assert h.placed("small") == []
    h.finish("second")
    h.settle()
    assert h.placed("gang") == ["node-0", "node-1"]


@pytest.mark.parametrize("queue", [None, "research"])
def test_who_says_that_it_ends_before_the_gang_could_start_passes(queue: str | None) -> None:
    h = Harness()
    trickle(h, queue, runs_for=600.0)
    assert len(h.placed("small")) == 1


def quota_trickle(h: Harness, *, runs_for: float | None = None, priority: int = 0) -> None:
    """Nodes are plenty and a queue has eight; a gang of eight has waited for an hour, and small work comes all the time."""
    h.nodes(4, gpus=8)
    h.queue("research", gpus=8)
    h.submit("first", gpus=4, queue="research")
    h.submit("second", gpus=4, queue="research", checkpoint=Checkpoint(expected_runtime_s=3 * HOUR))
    h.settle()
    h.submit("gang", pods=2, gpus=4, queue="research")
    h.settle()
    h.advance(HOUR + 1)
    h.finish("first")
    h.settle()
    said = Checkpoint(expected_runtime_s=runs_for)
    h.submit("small", gpus=4, queue="research", checkpoint=said, priority=priority)
    h.settle()


def test_a_gang_that_waited_long_keeps_the_quota_that_falls_free() -> None:
    h = Harness()
    quota_trickle(h)
    assert h.placed("small") == []
    assert "default/gang has waited long and keeps this quota" in h.why("small")
    h.finish("second")
    h.settle()
    assert len(h.placed("gang")) == 2
    assert h.state.holds == {}


@pytest.mark.parametrize("runs_for", [None, 600.0])
def test_what_a_gang_kept_is_over_in_the_cycle_in_which_it_starts(runs_for: float | None) -> None:
    h = Harness()
    h.nodes(4, gpus=8)
    h.queue("research", gpus=12)
    h.submit("first", gpus=6, queue="research")
    h.submit("second", gpus=6, queue="research", checkpoint=Checkpoint(expected_runtime_s=3 * HOUR))
    h.settle()
    said = Checkpoint(expected_runtime_s=runs_for)
    h.submit("gang", pods=2, gpus=4, queue="research", checkpoint=said)
    h.settle()
    h.advance(HOUR + 1)
    h.finish("first")
    h.settle()
    h.submit("small", gpus=4, queue="research")
    h.settle()
    assert h.placed("small") == []
    h.finish("second")
    plan = h.cycle()
    assert [admit.workload for admit in plan.admits] == ["default/gang", "default/small"]


def test_kept_quota_is_lent_to_who_ends_in_time_and_also_behind_who_does_not() -> None:
    h = Harness()
    quota_trickle(h)
    h.submit("quick", gpus=4, queue="research", checkpoint=Checkpoint(expected_runtime_s=600.0))
    h.settle()
    assert (h.placed("small"), len(h.placed("quick"))) == ([], 1)


def test_kept_quota_is_open_to_a_higher_priority() -> None:
    h = Harness()
    quota_trickle(h, priority=9)
    assert len(h.placed("small")) == 1
    assert h.preempted == []


def test_kept_quota_is_kept_from_borrowers_and_what_others_own_stays_theirs() -> None:
    h = Harness()
    h.nodes(4, gpus=8)
    h.queue("research", gpus=8, cohort="all", reclaim="Never")
    h.queue("other", gpus=4, cohort="all", reclaim="Never")
    h.submit("first", gpus=6, queue="research")
    h.settle()
    h.submit("gang", pods=2, gpus=4, queue="research")
    h.settle()
    h.advance(HOUR + 1)
    h.submit("poke", gpus=1, queue="research", priority=9)
    h.settle()
    h.finish("poke")
    h.settle()
    h.submit("own", gpus=4, queue="other")
    h.submit("borrows", gpus=1, queue="other")
    h.settle()
    assert (len(h.placed("own")), h.placed("borrows")) == (1, [])


def test_under_kueues_policy_quota_is_kept_for_nobody() -> None:
    h = Harness(Policy(victims="kueue"))
    quota_trickle(h)
    assert len(h.placed("small")) == 1


def test_a_queue_says_after_how_long() -> None:
    h = Harness(Policy(reserve_after_s=10 * HOUR))
    h.queue("research", gpus=100)
    queue = h.state.queues[QueueName("research")]
    h.put(msgspec.structs.replace(queue, reserve_after_s=60.0))
    h.nodes(2, gpus=8)
    h.submit("busy", gpus=8, priority=9)
    h.settle()
    h.submit("gang", pods=2, gpus=8, queue="research")
    h.cycle()
    assert h.state.holds == {}
    h.advance(61.0)
    h.remove_node("node-1")
    h.nodes(1, gpus=8, prefix="new-")
    h.cycle()
    assert [hold.rule for hold in h.state.holds.values()] == ["reservation"]


def test_a_gang_that_could_never_fit_keeps_nothing_from_others() -> None:
    h = Harness(Policy(reserve_after_s=60.0))
    h.nodes(2, gpus=8)
    h.submit("huge", pods=3, gpus=8)
    h.cycle()
    h.advance(61.0)
    h.cycle()
    assert h.state.holds == {}


# -- surplus pods of what holds quota --------------------------------------------------------------------------------


def test_a_queued_gang_gives_up_its_surplus_before_it_falls() -> None:
    h = Harness()
    h.nodes(2, gpus=4)
    h.queue("research", gpus=8)
    h.submit("elastic", queue="research", pods=8, gpus=1, gang=4)
    h.settle()
    h.submit("urgent", gpus=2, priority=9)
    plan = h.cycle()

    assert [len(evict.pods) for evict in plan.evicts] == [1, 1]
    h.settle()
    assert len(h.placed("urgent")) == 1
    assert len(h.placed("elastic")) == 6
    assert h.state.workloads[WorkloadId("default/elastic")].admission is not None


def test_of_independent_queued_pods_the_nodes_take_single_ones() -> None:
    h = Harness()
    h.nodes(1, gpus=4)
    h.queue("research", gpus=4)
    h.submit("sweep", queue="research", pods=4, gpus=1, gang=False)
    h.settle()
    h.submit("urgent", gpus=1, priority=9)
    h.settle()
    assert h.placed("urgent") == ["node-0"]
    assert len(h.placed("sweep")) == 3


def test_where_quota_is_short_the_whole_workload_falls() -> None:
    h = Harness()
    h.nodes(1, gpus=8)
    h.queue("research", gpus=4)
    h.submit("sweep", queue="research", pods=4, gpus=1, gang=False)
    h.settle()
    h.submit("urgent", queue="research", gpus=1, priority=9)
    plan = h.cycle()
    assert [(evict.workload, evict.pods) for evict in plan.evicts] == [("default/sweep", ())]
