"""Protections: granted by administrators, counted by owner, and never against the clock."""

from __future__ import annotations

import msgspec
import pytest

from makeway.engine.policy import Policy
from makeway.engine.protection import displacers_of
from makeway.engine.victims.loss import loss_of
from makeway.model.history import Eviction, Past
from makeway.model.node import NodeName
from makeway.model.queue import QueueName
from makeway.model.workload import Checkpoint, Pod, PodId, PodShape, Workload, WorkloadId
from makeway.testing import Harness, amounts


def owned(name: str) -> Workload:
    return Workload(id=WorkloadId(f"default/{name}"), uid=name)


def grants(h: Harness, queue: str, **granted: float) -> None:
    """As an administrator annotates the queue."""
    h.put(msgspec.structs.replace(h.state.queues[QueueName(queue)], **granted))


# -- a budget of preemptions a day -----------------------------------------------------------------------------------


def evicted_and_back(h: Harness, times: int) -> None:
    """`low` falls for one guest after the other, each of which ends a while later."""
    for i in range(times):
        h.submit(f"guest-{i}", gpus=8, priority=9)
        h.settle()
        assert h.placed("low") == []
        h.advance(4_000.0)  # longer than any peace
        h.finish(f"guest-{i}")
        h.settle()
        h.advance(4_000.0)


@pytest.mark.parametrize("by", ["configuration", "queue"])
def test_who_fell_as_often_as_a_day_allows_is_left_alone(by: str) -> None:
    h = Harness(Policy(preemptions_per_day=2 if by == "configuration" else None))
    h.nodes(1, gpus=8)
    h.queue("research", gpus=8)
    if by == "queue":
        grants(h, "research", preemptions_per_day=2)
    h.submit("low", queue="research", gpus=8, priority=1)
    h.settle()
    evicted_and_back(h, 2)

    h.submit("urgent", gpus=8, priority=9)
    h.settle()
    assert h.placed("low") == ["node-0"]

    h.advance(86_400.0)
    h.settle()
    assert h.placed("urgent") == ["node-0"]


def test_without_a_budget_it_falls_as_often_as_it_takes() -> None:
    h = Harness()
    h.nodes(1, gpus=8)
    h.submit("low", gpus=8, priority=1)
    h.settle()
    evicted_and_back(h, 4)


# -- a minimum runtime -----------------------------------------------------------------------------------------------


def borrower_of_eight(**granted: float) -> Harness:
    """`guest` borrows eight GPUs of `owner` and asks for half an hour in peace; then the owner comes."""
    h = Harness()
    h.nodes(1, gpus=8)
    h.queue("owner", gpus=8, cohort="all")
    h.queue("guest", gpus=0, cohort="all")
    if granted:
        grants(h, "guest", **granted)
    h.submit("loan", queue="guest", gpus=8, checkpoint=Checkpoint(min_runtime_s=1_800.0))
    h.settle()
    h.advance(60.0)
    h.submit("mine", queue="owner", gpus=8)
    h.settle()
    return h


def test_who_borrows_does_not_annotate_away_an_owners_reclaim() -> None:
    assert borrower_of_eight().placed("mine") == ["node-0"]


def test_an_administrator_may_grant_it_to_borrowers_too() -> None:
    h = borrower_of_eight(max_protection_s=600.0)
    assert h.placed("mine") == []
    h.advance(600.0)
    h.settle()
    assert h.placed("mine") == ["node-0"]


# -- measured facts --------------------------------------------------------------------------------------------------


def running(*, grace_s: float = 30.0, warmup_s: float | None = None) -> Pod:
    return Pod(
        id=PodId("default/w-0"),
        workload=WorkloadId("default/w"),
        shape=PodShape(requests=amounts(gpus=1)),
        phase="Running",
        node=NodeName("node-0"),
        started_at=0.0,
        grace_s=grace_s,
        warmup_s=warmup_s,
    )


def test_how_long_the_last_start_took_beats_what_its_owner_says() -> None:
    workload = msgspec.structs.replace(owned("w"), checkpoint=Checkpoint(restart_s=60.0))
    assert loss_of(workload, [running()], 100.0) == 160.0
    assert loss_of(workload, [running(warmup_s=300.0)], 100.0) == 400.0


def test_a_save_that_was_cut_off_before_is_not_counted_on_again() -> None:
    saver = msgspec.structs.replace(owned("w"), checkpoint=Checkpoint(on_term_s=10.0))
    assert loss_of(saver, [running(grace_s=30.0)], 100.0) == 60.0
    assert loss_of(saver, [running(grace_s=30.0)], 100.0, save_s=12.0) == 60.0
    assert loss_of(saver, [running(grace_s=30.0)], 100.0, save_s=30.0) == 160.0


# -- a victim cannot displace its displacer --------------------------------------------------------------------------


def test_displacers_are_found_through_others_and_forgotten_after_a_day() -> None:
    history = {
        "paper": Past(evictions=(Eviction(at=100.0, by="scissors"),)),
        "scissors": Past(evictions=(Eviction(at=50.0, by="rock"),)),
        "rock": Past(evictions=(Eviction(at=10.0, by="paper"),)),
    }
    assert displacers_of(owned("paper"), 200.0, history) == {"scissors", "rock"}
    assert displacers_of(owned("paper"), 86_430.0, history) == {"scissors", "rock"}
    assert displacers_of(owned("paper"), 86_470.0, history) == {"scissors"}
    assert displacers_of(owned("nobody"), 200.0, history) == set()


@pytest.mark.parametrize("victims", ["least-loss", "kube"])
def test_rock_paper_scissors_comes_to_an_end(victims: str) -> None:
    """A pod outranks the owner's job, the owner takes its quota from a borrower, the borrower outranks the pod."""
    h = Harness(Policy(victims=victims))  # type: ignore[arg-type]
    h.nodes(1, gpus=4)
    h.queue("owner", gpus=4, cohort="all")
    h.queue("guest", gpus=0, cohort="all")
    h.submit("borrower", queue="guest", gpus=4, priority=6)
    h.settle()
    h.submit("owner", queue="owner", gpus=4, priority=2)
    h.submit("pod", gpus=4, priority=3)
    for _ in range(12 * 60):
        h.cycle()
        h.advance(59.0)
        h.let_them_leave()
    assert len(h.evictions) <= 3
