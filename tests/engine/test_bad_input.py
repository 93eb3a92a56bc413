"""What an administrator or an owner got wrong is named with object, field and remedy; nothing else is affected."""

from __future__ import annotations

import msgspec

from makeway.control.explain import explain
from makeway.model.queue import FlavorName, QueueName
from makeway.model.workload import WorkloadId
from makeway.testing import Harness


def remedy(h: Harness, name: str) -> str:
    reason = explain(h.state, WorkloadId(f"default/{name}"), h.now, h.policy).reason
    assert reason is not None
    return reason.cheapest


def beside_a_good_queue() -> Harness:
    h = Harness()
    h.nodes(1, gpus=8)
    h.queue("good", gpus=8)
    h.submit("fine", queue="good", gpus=1)
    return h


def test_a_circle_of_cohorts_stops_only_the_queues_below_it() -> None:
    h = beside_a_good_queue()
    h.cohort("left", parent="right")
    h.cohort("right", parent="left")
    h.queue("stuck", gpus=8, cohort="left")
    h.submit("train", queue="stuck", gpus=1)
    h.settle()

    assert h.admitted == ["fine"]
    assert remedy(h, "train") == (
        "spec.cohortName of ClusterQueue stuck leads into a circle of Cohorts (left → right → left):"
        " change spec.parentName of one of them"
    )
    h.cohort("right")
    h.settle()
    assert h.admitted == ["fine", "train"]


def test_an_unknown_flavor_stops_only_the_queue_that_names_it() -> None:
    h = beside_a_good_queue()
    h.queue("odd", gpus=8)
    queue = h.state.queues[QueueName("odd")]
    group = queue.resource_groups[0]
    flavors = (msgspec.structs.replace(group.flavors[0], flavor=FlavorName("spot")),)
    odd = (msgspec.structs.replace(group, flavors=flavors),)
    h.put(msgspec.structs.replace(queue, resource_groups=odd))
    h.submit("train", queue="odd", gpus=1)
    h.settle()

    assert h.admitted == ["fine"]
    assert remedy(h, "train") == (
        "create ResourceFlavor spot, or take it out of spec.resourceGroups of ClusterQueue odd"
    )


def test_a_gang_whose_minimum_is_above_its_size_waits_for_pods_and_holds_nothing() -> None:
    h = beside_a_good_queue()
    h.submit("train", pods=2, gpus=1, gang=5)
    h.settle()

    assert h.admitted == ["fine"]
    assert h.state.holds == {}
    answer = explain(h.state, WorkloadId("default/train"), h.now, h.policy)
    assert answer.why == "2 of 5 pods exist; 3 more must be created before it can start"


def test_a_queue_that_does_not_exist_is_named() -> None:
    h = beside_a_good_queue()
    h.submit("train", queue="nowhere", gpus=1)
    h.settle()
    answer = explain(h.state, WorkloadId("default/train"), h.now, h.policy)
    assert answer.why == "LocalQueue nowhere doesn't exist"
