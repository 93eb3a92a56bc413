"""With admission checks, nodes are chosen when the last is Ready; the quota stays reserved meanwhile."""

from __future__ import annotations

import pytest

from makeway.model.workload import WorkloadId
from makeway.testing import Harness


@pytest.fixture
def h() -> Harness:
    h = Harness()
    h.nodes(2, gpus=8)
    h.queue("research", gpus=32, checks=["provisioned"])
    return h


def reserved(h: Harness, name: str) -> bool:
    return h.state.workloads[WorkloadId(f"default/{name}")].admission is not None


def runs(h: Harness, name: str) -> bool:
    return bool(h.placed(name))


def test_quota_is_reserved_at_once_and_nodes_are_chosen_when_the_check_is_ready(h: Harness) -> None:
    h.submit("train", queue="research", pods=2, gpus=8)

    h.cycle()
    h.cycle()
    assert reserved(h, "train")
    assert h.state.occupancy.promised == {}

    h.answer_checks()
    admit = h.cycle().admits[0]
    assert admit.admission is not None
    assert admit.admission.admitted
    assert sorted(place.node for place in admit.placement) == ["node-0", "node-1"]


def test_who_passed_its_checks_and_does_not_fit_the_nodes_waits_and_keeps_its_quota(
    h: Harness,
) -> None:
    h.submit("busy", gpus=8, priority=9)
    h.cycle()
    h.submit("train", queue="research", pods=2, gpus=8)
    h.cycle()
    h.answer_checks()

    h.cycle()
    assert reserved(h, "train")
    assert not runs(h, "train")
    assert h.why("train") == (
        "needs 2 pods at once, and 2 nodes have room for 1;"
        " 0/2 nodes are available: 1 Insufficient nvidia.com/gpu;"
        " evicting does not help: 2 No preemption victims found for incoming pod"
    )

    h.finish("busy")
    h.settle()
    assert h.placed("train") == ["node-0", "node-1"]


def test_who_passed_its_checks_may_find_victims_and_gets_their_nodes(h: Harness) -> None:
    h.submit("low", gpus=8, pods=2, priority=1)
    h.cycle()
    h.submit("train", queue="research", pods=2, gpus=8, priority=5)
    h.cycle()
    assert h.preempted == []  # not before its check has spoken

    h.answer_checks()
    h.settle()
    assert h.preempted == ["low"]
    assert h.placed("train") == ["node-0", "node-1"]


def test_a_stronger_head_takes_the_nodes_before_who_only_now_passes_its_checks(h: Harness) -> None:
    h.queue("urgent", gpus=16)
    h.submit("train", queue="research", pods=2, gpus=8, priority=1)
    h.cycle()
    h.answer_checks()
    h.submit("fire", queue="urgent", pods=2, gpus=8, priority=9)

    h.settle()
    assert runs(h, "fire")
    assert not runs(h, "train")
    assert reserved(h, "train")


def test_a_refused_check_sends_it_back_although_its_nodes_are_free(h: Harness) -> None:
    h.submit("train", queue="research", pods=2, gpus=8)
    h.cycle()
    h.answer_checks("Retry")

    evicted = h.cycle().evicts
    assert [e.reason.kueue for e in evicted] == ["AdmissionCheck"]
    assert not runs(h, "train")
