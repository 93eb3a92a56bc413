"""Admission fair sharing: inside a queue that asks for it, the local queue that used least goes first."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest

from makeway.engine.cycle import decide
from makeway.engine.policy import Policy, UsageOrder
from makeway.engine.why import why
from makeway.model.queue import LocalQueue
from makeway.model.workload import WorkloadId
from makeway.testing import GPU, Harness

HOUR = 3600.0
WEEK = 168 * HOUR


def two_teams(
    *,
    gpus: int = 8,
    half_life_s: float = HOUR,
    sampling_s: float = 300.0,
    weights: dict[str, float] | None = None,
    doors: dict[str, float] | None = None,
    victims: str = "least-loss",
    **queue: Any,
) -> Harness:
    """Local queues `blue` and `green` share one queue and its GPUs."""
    rule = UsageOrder(
        half_life_s=half_life_s,
        sampling_s=sampling_s,
        weights=tuple((weights or {}).items()),
    )
    h = Harness(Policy(usage_order=rule, victims=victims))  # type: ignore[arg-type]
    h.nodes(4, gpus=8)
    h.queue("shared", gpus=gpus, doors=doors or {"blue": 1.0, "green": 1.0}, **queue)
    h.cycle()
    return h


def door(h: Harness, name: str) -> LocalQueue:
    return h.state.local_queues[f"default/{name}"]


def consumed(h: Harness, name: str) -> dict[str, float]:
    return dict(door(h, name).consumed)


def used(h: Harness, name: str) -> float:
    """What it counts for now."""
    h.state.usage.look(h.policy.usage_order, h.now)
    return h.state.usage.of(f"default/{name}")


def say_used(h: Harness, name: str, **amounts: float) -> None:
    """Its status says so, as of now."""
    spent = tuple((GPU if k == "gpus" else k, v) for k, v in sorted(amounts.items()))
    h.put(msgspec.structs.replace(door(h, name), consumed=spent, sampled_at=math.floor(h.now)))


def run_for(h: Harness, name: str, seconds: float, **job: Any) -> None:
    h.submit(name, **job)
    h.settle()
    assert name in h.admitted
    for _ in range(10):
        h.advance(seconds / 10)
        h.cycle()
    h.finish(name)


# -- who goes first --------------------------------------------------------------------------------------------------


def test_who_has_used_much_waits_for_a_later_job_of_who_has_used_nothing() -> None:
    h = two_teams()
    run_for(h, "long", HOUR, queue="blue", gpus=8)
    h.submit("blue-first", queue="blue", gpus=8)
    h.advance(60)
    h.submit("green-later", queue="green", gpus=8)
    h.cycle()
    assert h.admitted == ["green-later"]


def test_the_same_two_jobs_go_by_age_where_the_queue_does_not_ask_for_it() -> None:
    h = two_teams()
    queue = h.state.queues["shared"]  # type: ignore[index]
    h.put(msgspec.structs.replace(queue, usage_based_fair_sharing=False))
    say_used(h, "blue", gpus=100.0)
    h.submit("blue-first", queue="blue", gpus=8)
    h.submit("green-later", queue="green", gpus=8)
    h.cycle()
    assert h.admitted == ["blue-first"]


def test_the_same_two_jobs_go_by_age_where_nothing_is_configured() -> None:
    h = two_teams()
    h.policy = Policy()
    say_used(h, "blue", gpus=100.0)
    h.submit("blue-first", queue="blue", gpus=8)
    h.submit("green-later", queue="green", gpus=8)
    h.cycle()
    assert h.admitted == ["blue-first"]


def test_usage_goes_before_priority_and_inside_a_local_queue_priority_counts() -> None:
    h = two_teams()
    say_used(h, "blue", gpus=1.0)
    h.submit("urgent", queue="blue", priority=100, gpus=8)
    h.submit("low", queue="green", priority=0, gpus=8)
    h.submit("high", queue="green", priority=5, gpus=8)
    h.policy = msgspec.structs.replace(h.policy, victims="kueue")
    h.cycle(rounds=1)
    assert h.admitted == ["high"]


def test_in_a_strict_queue_the_head_of_who_used_least_blocks_the_others() -> None:
    h = two_teams(strategy="StrictFIFO")
    say_used(h, "blue", gpus=1.0)
    h.submit("runs", queue="green", gpus=4)
    h.cycle()
    say_used(h, "green")
    h.submit("small", queue="blue", gpus=1)
    h.submit("large", queue="green", gpus=8)
    h.cycle()
    assert h.admitted == ["runs"]


def test_usage_fades_and_the_older_job_is_first_again() -> None:
    h = two_teams(half_life_s=HOUR)
    run_for(h, "long", 2 * HOUR, queue="blue", gpus=8)
    assert used(h, "blue") == pytest.approx(8 * 0.75, rel=0.05)
    h.advance(HOUR)
    assert used(h, "blue") == pytest.approx(8 * 0.375, rel=0.05)
    h.advance(30 * HOUR)
    say_used(h, "green", gpus=0.001)  # about as much as blue has left
    h.submit("blue-first", queue="blue", gpus=8)
    h.submit("green-later", queue="green", gpus=8)
    h.cycle()
    assert h.admitted == ["blue-first"]


# -- entry penalties -------------------------------------------------------------------------------------------------


def test_who_gets_in_counts_at_once_so_that_two_jobs_of_one_team_do_not_get_in_together() -> None:
    h = two_teams(gpus=16)
    h.submit("blue-1", queue="blue", gpus=8)
    h.submit("blue-2", queue="blue", gpus=8)
    h.submit("green-1", queue="green", gpus=8)
    h.cycle()
    assert h.admitted == ["blue-1", "green-1"]


def test_the_penalty_is_what_one_sampling_interval_would_have_added() -> None:
    h = two_teams(half_life_s=HOUR, sampling_s=300.0)
    h.submit("job", queue="blue", gpus=8)
    h.cycle()
    assert used(h, "blue") == pytest.approx(8 * (1 - 0.5 ** (300 / HOUR)))


def test_a_penalty_is_counted_once_whatever_is_sampled_when() -> None:
    h = two_teams(half_life_s=WEEK)
    penalty = 8 * (1 - 0.5 ** (300 / WEEK))
    h.submit("job", queue="blue", gpus=8)
    h.cycle()
    for _ in range(3):
        assert used(h, "blue") == pytest.approx(penalty, rel=0.02)
        h.advance(1.4)
        h.cycle()
    assert consumed(h, "blue")[GPU] == pytest.approx(penalty, rel=0.02)


def test_a_job_that_is_over_before_anybody_measured_still_counts() -> None:
    h = two_teams(half_life_s=HOUR)
    h.submit("short", queue="blue", gpus=8)
    h.cycle()
    short = h.state.workloads[WorkloadId("default/short")]
    h.put(msgspec.structs.replace(short, finished=True))
    h.advance(2.0)
    h.cycle()
    assert consumed(h, "blue")[GPU] == pytest.approx(8 * (1 - 0.5 ** (300 / HOUR)), rel=0.01)


def test_a_reservation_counts_while_its_checks_are_open_and_is_forgotten_if_they_refuse() -> None:
    h = two_teams(half_life_s=HOUR, checks=["budget"])
    h.submit("job", queue="blue", gpus=8)
    h.cycle()
    penalty = 8 * (1 - 0.5 ** (300 / HOUR))
    h.advance(400)
    h.cycle()
    assert consumed(h, "blue") == {}
    assert used(h, "blue") == pytest.approx(penalty)
    h.answer_checks("Retry")
    h.cycle()
    h.let_them_leave()
    assert used(h, "blue") == 0.0


def test_with_checks_the_penalty_is_settled_when_the_last_is_ready() -> None:
    h = two_teams(half_life_s=WEEK, checks=["budget"])
    h.submit("job", queue="blue", gpus=8)
    h.cycle()
    h.advance(400)
    h.answer_checks()
    h.cycle()
    h.advance(2)
    h.cycle()
    assert consumed(h, "blue")[GPU] == pytest.approx(8 * (1 - 0.5 ** (300 / WEEK)), rel=0.02)
    assert used(h, "blue") == pytest.approx(consumed(h, "blue")[GPU], rel=0.02)


def test_who_is_promised_room_counts_so_that_the_next_promise_goes_to_the_others() -> None:
    h = two_teams(gpus=16)
    h.submit("old-1", queue="green", gpus=8)
    h.submit("old-2", queue="green", gpus=8)
    h.settle()
    say_used(h, "green")
    h.advance(HOUR)
    h.submit("blue-1", queue="blue", priority=5, gpus=8)
    h.submit("blue-2", queue="blue", priority=5, gpus=8)
    h.submit("other", queue="green", priority=5, gpus=8)
    say_used(h, "blue")
    say_used(h, "green", gpus=0.01)
    h.settle()
    assert h.admitted == ["blue-1", "other"]


# -- weights ---------------------------------------------------------------------------------------------------------


def test_a_local_queue_of_double_weight_counts_half_of_what_it_used() -> None:
    h = two_teams(doors={"blue": 2.0, "green": 1.0})
    say_used(h, "blue", gpus=6.0)
    say_used(h, "green", gpus=4.0)
    assert (used(h, "blue"), used(h, "green")) == (3.0, 4.0)


def test_a_local_queue_of_weight_0_comes_last_whatever_it_used() -> None:
    h = two_teams(doors={"blue": 0.0, "green": 1.0})
    say_used(h, "green", gpus=1000.0)
    h.submit("blue-first", queue="blue", priority=9, gpus=8)
    h.submit("green-later", queue="green", gpus=8, preempts=False)
    h.cycle(rounds=1)
    assert h.admitted == ["green-later"]


def test_resources_count_by_their_weight_and_by_1_where_none_is_named() -> None:
    h = two_teams(weights={GPU: 100.0, "memory": 0.0})
    say_used(h, "blue", gpus=2.0, cpu=7.0, memory=1e12)
    assert used(h, "blue") == 207.0


def test_cores_are_counted_as_cores() -> None:
    h = two_teams(half_life_s=HOUR, sampling_s=HOUR)
    h.submit("job", queue="blue", gpus=0, cpus=4)
    h.cycle()
    assert used(h, "blue") == pytest.approx(2.0)


def test_with_a_half_life_of_0_all_is_forgotten_at_once() -> None:
    h = two_teams(half_life_s=0.0)
    say_used(h, "blue", gpus=100.0)
    assert used(h, "blue") == 0.0
    h.submit("blue-first", queue="blue", gpus=8)
    h.submit("green-later", queue="green", gpus=8)
    h.advance(301)
    h.cycle()
    assert h.admitted == ["blue-first"]
    assert consumed(h, "blue") == {GPU: 0.0}


# -- samples ---------------------------------------------------------------------------------------------------------


def test_sampling_often_and_sampling_once_come_to_the_same() -> None:
    often, once = (two_teams(half_life_s=HOUR, sampling_s=s) for s in (60.0, 7 * HOUR))
    for h in (often, once):
        h.submit("job", queue="blue", gpus=8)
        h.settle()
        say_used(h, "blue", gpus=1.0)
        h.advance(1)
        say_used(h, "blue", gpus=1.0)
    for _ in range(120):
        often.advance(60)
        often.cycle()
    once.advance(120 * 60)
    once.cycle()
    assert used(often, "blue") == pytest.approx(used(once, "blue"), rel=1e-9)
    assert used(once, "blue") == pytest.approx(1.0 / 4 + 8 * 3 / 4, rel=1e-3)


def test_a_sample_is_due_after_an_interval_or_when_somebody_got_in_and_not_before() -> None:
    h = two_teams(sampling_s=300.0)
    began = door(h, "blue").sampled_at
    h.advance(299)
    h.cycle()
    assert door(h, "blue").sampled_at == began
    assert h.state.usage.next_due_at() == h.now + 1
    h.submit("job", queue="blue", gpus=1)
    h.cycle()
    h.advance(1.5)
    h.cycle()
    assert door(h, "blue").sampled_at == math.floor(h.now)


def test_a_restart_forgets_nothing() -> None:
    h = two_teams()
    run_for(h, "long", HOUR, queue="blue", gpus=8)
    h.submit("now", queue="green", gpus=4)
    h.cycle()
    h.submit("blue-first", queue="blue", gpus=4)
    h.submit("green-later", queue="green", gpus=4)
    before = [used(h, "blue"), used(h, "green")]
    fresh = h.rebuilt(random.Random(7).shuffle)
    fresh.usage.look(h.policy.usage_order, h.now)
    assert [fresh.usage.of("default/blue"), fresh.usage.of("default/green")] == before
    assert decide(fresh, h.now, h.policy) == decide(h.state, h.now, h.policy)


def test_turning_it_on_for_a_queue_counts_those_who_run_there_already() -> None:
    h = two_teams(half_life_s=HOUR, sampling_s=HOUR)
    queue = h.state.queues["shared"]  # type: ignore[index]
    h.put(msgspec.structs.replace(queue, usage_based_fair_sharing=False))
    h.submit("job", queue="blue", gpus=8)
    h.settle()
    h.put(queue)
    assert used(h, "blue") == pytest.approx(4.0)


def test_the_first_sample_counts_nobody_twice_who_got_in_in_the_same_second() -> None:
    h = two_teams(half_life_s=HOUR, sampling_s=HOUR)
    h.submit("job", queue="blue", gpus=8)
    h.cycle()
    h.put(msgspec.structs.replace(door(h, "blue"), consumed=(), sampled_at=None))
    h.cycle()
    assert door(h, "blue").sampled_at == h.now
    assert used(h, "blue") == pytest.approx(4.0)


def test_a_sample_leaves_everybody_where_they_stand_in_line() -> None:
    h = two_teams()
    h.submit("runs", queue="green", gpus=8)
    h.submit("waits", queue="blue", gpus=8)
    assert h.cycle().waits
    say_used(h, "blue", gpus=1.0)
    assert "default/waits" not in h.state.unexplained
    assert h.cycle().waits == ()


# -- victims ---------------------------------------------------------------------------------------------------------


def test_kueues_policy_takes_from_the_local_queue_that_used_most_even_at_higher_priority() -> None:
    h = two_teams(victims="kueue")
    h.submit("blue-high", queue="blue", priority=3, gpus=4)
    h.submit("green-low", queue="green", priority=1, gpus=4)
    h.settle()
    h.advance(5)
    h.cycle()
    say_used(h, "blue", gpus=50.0)
    say_used(h, "green", gpus=5.0)
    h.submit("urgent", queue="green", priority=9, gpus=4)
    h.cycle()
    assert h.preempted == ["blue-high"]


def test_the_least_loss_falls_and_only_among_equals_who_used_most() -> None:
    for equal, fallen in ((True, "blue-old"), (False, "green-young")):
        h = two_teams()
        h.submit("blue-old", queue="blue", gpus=4)
        h.submit("green-young", queue="green", gpus=4)
        h.settle()
        h.advance(HOUR)
        h.cycle()
        h.put_started("blue-old", h.now - (10 if equal else HOUR))
        h.put_started("green-young", h.now - 10)
        say_used(h, "blue", gpus=50.0)
        say_used(h, "green", gpus=5.0)
        h.submit("urgent", queue="green", priority=9, gpus=4)
        h.cycle()
        assert h.preempted == [fallen]


def test_under_fair_sharing_too_who_used_most_falls_first_inside_the_queue() -> None:
    h = two_teams(victims="kueue", cohort="all")
    h.policy = msgspec.structs.replace(h.policy, fair_sharing=True)
    h.submit("blue-high", queue="blue", priority=3, gpus=4)
    h.submit("green-low", queue="green", priority=1, gpus=4)
    h.settle()
    h.advance(5)
    h.cycle()
    say_used(h, "blue", gpus=50.0)
    h.submit("urgent", queue="green", priority=9, gpus=4)
    h.cycle()
    assert h.preempted == ["blue-high"]


def test_what_local_queues_of_different_queues_used_is_not_compared() -> None:
    h = two_teams(victims="kueue", gpus=4, cohort="all")
    h.queue("other", gpus=0, cohort="all", doors={"red": 1.0})
    h.queue("third", gpus=0, cohort="all", doors={"gray": 1.0})
    h.submit("red-job", queue="red", priority=3, gpus=2)
    h.submit("gray-job", queue="gray", priority=1, gpus=2)
    h.settle()
    h.advance(5)
    h.cycle()
    say_used(h, "red", gpus=500.0)
    h.submit("owner", queue="blue", priority=9, gpus=2)
    h.cycle()
    assert h.preempted == ["gray-job"]


# -- reasons ---------------------------------------------------------------------------------------------------------


def test_who_waits_behind_is_told_what_both_have_used() -> None:
    h = two_teams(strategy="StrictFIFO")
    say_used(h, "blue", gpus=12.5)
    say_used(h, "green", gpus=3.0)
    h.submit("runs", queue="green", gpus=4)
    h.cycle()
    h.advance(1)
    h.submit("blue-first", queue="blue", gpus=1)
    h.submit("large", queue="green", gpus=8)
    h.cycle()
    said = h.why("blue-first")
    assert said.startswith("default/large is ahead of it in ClusterQueue shared and waits. ")
    assert "LocalQueue default/blue has used 12.4" in said
    assert "LocalQueue default/green 3.2" in said
    asked = why(h.state, WorkloadId("default/blue-first"), h.now, h.policy)
    assert asked is not None
    assert asked.goes_first.startswith("default/large has its turn first: LocalQueue default/blue")


def test_weight_0_is_told_as_such() -> None:
    h = two_teams(doors={"blue": 0.0, "green": 1.0}, strategy="StrictFIFO")
    h.submit("runs", queue="green", gpus=4)
    h.cycle()
    h.submit("blue-first", queue="blue", gpus=1)
    h.submit("large", queue="green", gpus=8)
    h.cycle()
    assert "LocalQueue default/blue has weight 0 and comes after LocalQueue default/green" in h.why(
        "blue-first"
    )
