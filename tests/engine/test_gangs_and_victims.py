"""Gangs, nodes and victims: what Koordinator, Volcano and kube-scheduler get wrong, and we do not."""

from __future__ import annotations

import pytest

from makeway.engine.policy import Policy, VictimPolicy
from makeway.model.workload import Checkpoint, PodShape
from makeway.testing import Harness, amounts


def test_gang_waits_when_one_pod_does_not_fit(h: Harness) -> None:
    h.nodes(3, gpus=8)
    h.queue("research", gpus=32)
    h.submit("train", queue="research", pods=4, gpus=8)

    h.cycle()

    assert h.admitted == []
    assert h.why("train").startswith("needs 4 pods at once, and 3 nodes have room for 3")


def test_gang_without_a_queue_is_bound_whole(h: Harness) -> None:
    h.nodes(2, gpus=8)
    h.submit("train", pods=2, gpus=8)

    h.settle()

    assert h.placed("train") == ["node-0", "node-1"]


def test_three_members_over_two_nodes_of_which_one_holds_two(h: Harness) -> None:
    h.nodes(1, cpus=8)
    h.nodes(1, cpus=4)
    h.submit("low-1", cpus=8, priority=1)
    h.submit("low-2", cpus=4, priority=1)
    h.settle()
    h.submit("train", pods=3, cpus=4, priority=10)

    h.settle()

    assert h.placed("train") == ["node-0", "node-0", "node-1"]
    assert sorted(h.preempted) == ["low-1", "low-2"]


def test_only_one_node_can_be_freed_so_nobody_is_evicted(h: Harness) -> None:
    h.nodes(2, cpus=4)
    h.submit("low", cpus=4, priority=1)
    h.submit("equal", cpus=4, priority=10)
    h.settle()
    h.submit("train", pods=2, cpus=3, priority=10)

    h.settle()

    assert h.preempted == []
    assert h.admitted == ["equal", "low"]


def test_eight_cheap_victims_fall_rather_than_one_that_ranks_higher(h: Harness) -> None:
    _eight_against_one(h)

    h.settle()

    assert sorted(h.preempted) == [f"cheap-{i}" for i in range(8)]


def test_within_a_band_loss_decides_and_one_falls_instead_of_eight() -> None:
    h = Harness(Policy(bands=((0, 1999),)))
    _eight_against_one(h)

    h.cycle()

    assert h.preempted == ["dear"]


def _eight_against_one(h: Harness) -> None:
    h.nodes(2, gpus=8)
    for i in range(8):
        h.submit(f"cheap-{i}", gpus=1, priority=1000)
    h.submit("dear", gpus=8, priority=1001)
    h.settle()
    h.advance(60)
    h.put_started("dear", h.now)  # just (re)started: it has little to lose
    h.submit("train", gpus=8, priority=5000)


def test_a_victim_gang_falls_whole_wherever_its_pods_are(h: Harness) -> None:
    h.nodes(2, gpus=8)
    h.submit("sweep", pods=2, gpus=8, priority=1)
    h.settle()
    h.submit("urgent", gpus=8, priority=10)

    h.cycle()

    (evict,) = h.last.evicts
    assert evict.pods == ()
    assert {
        p.gone_by is not None for p in h.state.pods.values() if p.workload == "default/sweep"
    } == {True}


def test_a_gang_that_can_never_fit_evicts_nobody(h: Harness) -> None:
    h.nodes(2, gpus=8)
    for i in range(4):
        h.submit(f"low-{i}", gpus=4, priority=1)
    h.settle()
    h.submit("huge", pods=3, gpus=8, priority=100)

    h.settle()

    assert h.preempted == []


def test_surplus_pods_fall_before_the_whole_gang(h: Harness) -> None:
    h.nodes(1, gpus=8)
    h.submit("elastic", pods=8, gpus=1, gang=4, priority=1)
    h.settle()
    h.submit("urgent", gpus=2, priority=10)

    h.settle()

    pods = [p for p in h.state.pods.values() if p.workload == "default/elastic" and p.node]
    assert len(pods) == 6
    assert h.placed("urgent") == ["node-0"]


def test_least_loss_takes_who_saved_last(h: Harness) -> None:
    h.nodes(2, gpus=8)
    h.submit("saved", gpus=8, priority=1, checkpoint=Checkpoint(last_at=h.now + 3500))
    h.submit("unsaved", gpus=8, priority=1)
    h.settle()
    h.advance(3600)
    h.submit("urgent", gpus=8, priority=10)

    h.settle()

    assert h.preempted == ["saved"]


def test_victims_that_drain_at_different_speeds_do_not_lose_the_room(h: Harness) -> None:
    h.nodes(2, gpus=8)
    h.submit("quick", gpus=8, priority=1, grace=1)
    h.submit("slow", gpus=8, priority=1, grace=30)
    h.settle()
    h.submit("train", pods=2, gpus=8, priority=10)
    h.cycle()
    h.advance(2)
    h.settle()  # quick has left; it is recreated and wants its place back

    assert h.placed("quick") == []
    assert h.placed("train") == []
    h.advance(40)
    h.settle()
    assert h.placed("train") == ["node-0", "node-1"]


def test_five_extra_rounds_change_nothing(h: Harness) -> None:
    h.nodes(2, gpus=8)
    for i in range(4):
        h.submit(f"low-{i}", gpus=4, priority=1)
    h.settle()
    h.submit("train", pods=2, gpus=4, priority=10)
    h.settle()
    before = len(h.evictions)

    for _ in range(5):
        plan = h.cycle()
        assert plan.admits == ()
        assert plan.evicts == ()
    assert len(h.evictions) == before


@pytest.mark.parametrize("priority", [1, 10])
def test_equal_or_higher_priority_is_never_evicted(h: Harness, priority: int) -> None:
    h.nodes(1, gpus=8)
    h.submit("running", gpus=8, priority=10)
    h.settle()
    h.submit("late", gpus=8, priority=priority)

    h.settle()

    assert h.preempted == []


def test_never_preempts_says_so(h: Harness) -> None:
    h.nodes(1, gpus=8)
    h.submit("running", gpus=8, priority=1)
    h.settle()
    h.submit("polite", gpus=8, priority=10, preempts=False)

    h.settle()

    assert h.preempted == []
    assert "preemptionPolicy: Never" in h.why("polite")


def test_quota_reclaim_evicts_the_borrower_and_the_owner_gets_nodes(h: Harness) -> None:
    h.nodes(2, gpus=8)
    h.queue("owner", gpus=8, cohort="all")
    h.queue("guest", gpus=8, cohort="all")
    h.submit("a", queue="guest", gpus=8)
    h.submit("b", queue="guest", gpus=8)
    h.settle()
    assert h.admitted == ["a", "b"]
    h.submit("mine", queue="owner", gpus=8)

    h.settle()

    assert h.preempted == ["b"]
    assert "mine" in h.admitted
    assert len(h.placed("mine")) == 1


def test_quota_says_yes_but_nodes_say_no_so_it_waits(h: Harness) -> None:
    h.nodes(2, gpus=4)
    h.queue("research", gpus=32)
    h.submit("train", queue="research", gpus=8)

    h.settle()

    assert h.admitted == []
    assert "0/2 nodes are available: 2 Insufficient nvidia.com/gpu" in h.why("train")


def test_a_required_rack_holds_the_whole_gang(h: Harness) -> None:
    h.nodes(2, gpus=8, labels={"rack": "a"})
    h.nodes(3, gpus=8, labels={"rack": "b"})
    h.submit("train", pods=3, gpus=8, topology="rack")

    h.settle()

    assert h.placed("train") == ["node-2", "node-3", "node-4"]


def test_who_is_patient_waits_for_a_job_that_ends_soon(h: Harness) -> None:
    h.nodes(1, gpus=8)
    h.submit("short", gpus=8, priority=1, checkpoint=Checkpoint(expected_runtime_s=600))
    h.settle()
    h.advance(500)
    h.submit("patient", gpus=8, priority=10, checkpoint=Checkpoint(patience_s=300))
    h.cycle()
    assert h.preempted == []
    assert "waits for default/short to end" in h.why("patient")

    h.advance(100)
    h.finish("short")
    h.submit("late", gpus=8, priority=5)  # the room is held
    h.settle()
    assert h.placed("patient") == ["node-0"]


def test_of_independent_pods_those_that_fit_start_and_only_the_rest_is_patient(h: Harness) -> None:
    h.nodes(2, gpus=8)
    h.queue("research", gpus=16)
    h.submit("short", gpus=8, priority=1, checkpoint=Checkpoint(expected_runtime_s=600))
    h.settle()
    h.advance(500)
    patient = Checkpoint(patience_s=300)
    h.submit("sweep", pods=2, gpus=8, gang=False, priority=10, queue="research", checkpoint=patient)

    h.settle()

    assert h.preempted == []
    assert len(h.placed("sweep")) == 1


def test_a_job_that_overran_its_word_is_not_believed_again(h: Harness) -> None:
    h.nodes(1, gpus=8)
    h.submit("liar", gpus=8, priority=1, checkpoint=Checkpoint(expected_runtime_s=600))
    h.settle()
    h.advance(500)
    h.submit("patient", gpus=8, priority=10, checkpoint=Checkpoint(patience_s=300))
    h.cycle()
    h.advance(200)  # past its end, and past the hold

    h.settle()

    assert h.preempted == ["liar"]
    assert h.placed("patient") == ["node-0"]


def test_a_large_gang_that_waited_long_keeps_nodes_as_they_fall_free(h: Harness) -> None:
    h.nodes(3, gpus=8)
    for i in range(3):
        h.submit(f"small-{i}", gpus=8)
    h.settle()
    h.submit("large", pods=3, gpus=8)
    h.advance(3700)
    h.cycle()
    h.finish("small-0")
    h.cycle()
    h.submit("newcomer", gpus=8)  # would starve the gang for ever
    h.settle()
    assert h.placed("newcomer") == []

    h.submit(
        "quick", gpus=8, checkpoint=Checkpoint(expected_runtime_s=60)
    )  # ends before it could start
    h.settle()
    assert h.placed("quick") == ["node-0"]
    h.finish("quick")
    for i in (1, 2):
        h.finish(f"small-{i}")
    h.settle()
    assert h.placed("large") == ["node-0", "node-1", "node-2"]


@pytest.mark.parametrize(("policy", "promised"), [("kube", False), ("least-loss", True)])
def test_who_evicts_nobody_is_promised_leftovers_here_and_nothing_by_kube_scheduler(
    policy: VictimPolicy, promised: bool
) -> None:
    h = Harness(Policy(victims=policy))
    h.nodes(1, cpus=4)
    h.submit("low", cpus=4, priority=1)
    h.settle()
    h.submit("high", cpus=2, priority=10)
    h.cycle()
    h.submit("small", cpus=1, priority=1)

    h.cycle()

    assert h.preempted == ["low"]
    assert ("default/small" in h.state.holds) is promised


def test_within_a_step_of_sixty_gpu_seconds_one_falls_rather_than_two() -> None:
    """Two that lose 100 and 110 GPU-seconds against one that loses 215: the same step, and fewer fall."""
    h = Harness()
    h.nodes(1, gpus=4)
    quick = Checkpoint(restart_s=0.0)
    h.submit("pair", gpus=2, checkpoint=quick)
    h.cycle()
    for name, ago in (("a", 100.0), ("b", 110.0)):
        h.submit(name, gpus=1, checkpoint=quick)
        h.cycle()
        h.put_started(name, h.now - ago)
    h.put_started("pair", h.now - 107.5)

    h.submit("urgent", gpus=2, priority=9)
    assert [evict.workload for evict in h.cycle().evicts] == ["default/pair"]


def test_a_gang_of_which_some_would_fit_is_told_what_the_rest_lacks(h: Harness) -> None:
    h.nodes(2, cpus=4)
    h.submit("train", pods=3, cpus=3, priority=10)

    h.cycle()

    (wait,) = h.last.waits
    assert [(v.count, v.cause) for v in wait.reason.verdicts] == [(2, "Insufficient cpu")]


def test_who_ranks_higher_and_finds_no_nodes_takes_nobodys_room(h: Harness) -> None:
    h.nodes(1, gpus=4)
    h.queue("a", gpus=4, within="LowerPriority")
    h.submit("low", queue="a", gpus=2, priority=1, grace=30)
    h.settle()
    h.submit("middle", queue="a", gpus=4, priority=4)
    h.cycle()
    elsewhere = PodShape(
        namespace="default", requests=amounts(gpus=2), node_selector=(("zone", "nowhere"),)
    )
    h.submit("proud", queue="a", priority=6, shape=elsewhere, preempts=False)

    h.cycle()

    assert (h.last.ended_holds, h.last.lost_holds) == ((), ())
    h.advance(31)
    h.let_them_leave()
    h.settle()
    assert h.placed("middle") == ["node-0"]


def test_two_who_come_at_once_take_no_more_surplus_than_there_is(h: Harness) -> None:
    h.nodes(2, gpus=4)
    h.submit("solid", gpus=2, priority=10)
    h.settle()
    h.submit("pack", pods=3, gpus=2, gang=2, priority=4)
    h.settle()
    for name, priority in (("first", 9), ("second", 8)):
        h.submit(name, gpus=2, priority=priority)

    h.cycle()

    members = h.state.occupancy.members(h.submitted("default/pack").id)
    staying = [pod for pod in members if pod.node is not None and pod.gone_by is None]
    assert len(staying) in (0, 2)  # whole or absent, whoever came
    h.settle()
    assert len(h.placed("first")) == len(h.placed("second")) == 1
