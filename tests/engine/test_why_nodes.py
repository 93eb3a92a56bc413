"""Whom the nodes have no room for can read what is missing where, who is there, what keeps them safe, and what would help."""

from __future__ import annotations

import pytest

from makeway.control.explain import explain
from makeway.control.sentences import shortage_sentence
from makeway.model.reason import Reason
from makeway.model.selectors import LabelSelector, Requirement
from makeway.model.workload import Budget, PodShape, WorkloadId
from makeway.testing import Harness, amounts


@pytest.fixture
def h() -> Harness:
    h = Harness()
    h.nodes(2, gpus=8)
    return h


def ask(h: Harness, name: str) -> Reason:
    answer = explain(h.state, WorkloadId(f"default/{name}"), h.now, h.policy)
    assert answer.reason is not None
    return answer.reason


def test_a_gang_reads_how_much_is_missing_and_who_has_it(h: Harness) -> None:
    h.submit("busy", gpus=8, priority=9)
    h.cycle()
    h.submit("train", pods=2, gpus=8, priority=3)
    h.cycle()

    reason = ask(h, "train")
    assert [shortage_sentence(s) for s in reason.shortages] == [
        "needs 2 pods at once, and 2 nodes have room for 1",
        "8 nvidia.com/gpu missing: 16 asked for, 8 free on 2 nodes (which have 16)",
    ]
    assert [(x.workload, x.safe_because) for x in reason.holders] == [
        ("default/busy", "its priority 9 is not below 3")
    ]
    assert reason.cheapest == "1 of its 2 pods would fit now"


def test_one_pod_reads_that_no_single_node_is_free_enough(h: Harness) -> None:
    h.submit("left", gpus=5, priority=4)
    h.submit("right", gpus=5, priority=6)
    h.cycle()
    h.submit("train", gpus=4, priority=2)
    h.cycle()

    reason = ask(h, "train")
    assert [shortage_sentence(s) for s in reason.shortages] == [
        "1 nvidia.com/gpu missing: 4 asked for, 3 free on the freest node (the largest has 8)"
    ]
    assert reason.cheapest == "a priority of 5 would let it preempt default/left"


def test_what_no_node_could_hold_asks_for_larger_nodes(h: Harness) -> None:
    h.submit("huge", gpus=16)
    h.cycle()
    assert ask(h, "huge").cheapest == "a node that it may use with at least 16 nvidia.com/gpu"


def test_what_only_more_nodes_can_hold_says_how_many(h: Harness) -> None:
    h.submit("wide", pods=5, gpus=8)
    h.submit("busy", pods=2, gpus=8, priority=9)
    h.cycle()
    assert ask(h, "wide").cheapest == (
        "5 more nodes like those it may use, empty (8 nvidia.com/gpu for each pod)"
    )


def test_a_required_topology_in_the_way_is_named() -> None:
    h = Harness()
    h.nodes(1, gpus=8, labels={"rack": "a"})
    h.nodes(1, gpus=8, labels={"rack": "b"})
    h.submit("train", pods=2, gpus=8, topology="rack")
    h.cycle()

    reason = ask(h, "train")
    assert reason.kind == "topology"
    assert reason.cheapest == "it would fit now if rack were preferred instead of required"


def test_protections_budgets_and_a_policy_of_never_are_named(h: Harness) -> None:
    guarded = LabelSelector(requirements=(Requirement(key="app", operator="In", values=("web",)),))
    h.put(Budget(id="default/web", namespace="default", selector=guarded, allowed=0))
    web = PodShape(namespace="default", requests=amounts(gpus=8), labels=(("app", "web"),))
    h.submit("web", shape=web)
    h.submit("exempt", gpus=8, protected="the label x=y exempts it")
    h.cycle()
    h.submit("train", gpus=8, priority=5)
    h.submit("meek", gpus=8, priority=5, preempts=False)
    h.cycle()

    assert {x.workload: x.safe_because for x in ask(h, "train").holders} == {
        "default/exempt": "the label x=y exempts it",
        "default/web": "PodDisruptionBudget default/web allows 0 disruptions",
    }
    assert {x.safe_because for x in ask(h, "meek").holders} == {
        "default/meek has preemptionPolicy Never"
    }


def test_who_may_evict_but_never_does_reads_whom_it_would(h: Harness) -> None:
    h.submit("low", pods=2, gpus=8, priority=1)
    h.cycle()
    h.submit("meek", gpus=8, priority=5, preempts=False)
    h.cycle()
    assert ask(h, "meek").cheapest == "without preemptionPolicy Never it would preempt default/low"


def test_queued_work_reads_the_rule_of_the_queues_that_keeps_others_safe(h: Harness) -> None:
    h.queue("owner", gpus=16, cohort="all", reclaim="Never")
    h.queue("guest", gpus=0, cohort="all", within="Never")
    h.submit("loan", queue="guest", gpus=8)
    h.submit("other", gpus=8, priority=9)
    h.settle()
    h.submit("mine", queue="owner", gpus=8, priority=5)
    h.cycle()

    assert {x.workload: x.safe_because for x in ask(h, "mine").holders} == {
        "default/loan": "reclaimWithinCohort is Never",
        "default/other": "its priority 9 is not below 5",
    }


def test_open_checks_and_the_nodes_behind_them_are_told_apart(h: Harness) -> None:
    h.queue("research", gpus=32, checks=["provisioned"])
    h.submit("busy", pods=2, gpus=8, priority=9)
    h.cycle()
    h.submit("train", queue="research", gpus=8)
    h.cycle()

    assert ask(h, "train").message == (
        "Its quota is reserved in ClusterQueue research; waiting for AdmissionCheck provisioned"
    )
    h.answer_checks()
    assert ask(h, "train").cheapest == "a priority of 10 would let it preempt default/busy"


def test_asking_changes_nothing(h: Harness) -> None:
    h.submit("busy", gpus=8, pods=2, priority=9)
    h.cycle()
    h.submit("train", gpus=8)
    h.submit("next", gpus=8)
    before = h.rebuilt()
    ask(h, "train")
    assert h.state.occupancy.table.free.tolist() == before.occupancy.table.free.tolist()
    assert [w.workload for w in h.cycle().waits] == ["default/train", "default/next"]


def test_who_runs_or_has_finished_does_not_wait(h: Harness) -> None:
    h.submit("busy", gpus=8)
    h.cycle()
    answer = explain(h.state, WorkloadId("default/busy"), h.now, h.policy)
    assert (answer.waits, answer.why) == (False, "it runs on node-0")
