"""From a job to its Workload object: names, priorities, owners."""

from __future__ import annotations

from typing import Any

import pytest

from makeway.kinds import composing
from makeway.kinds.composing import Classes, PriorityClass, UnknownClass

Object = dict[str, Any]


def job(labels: dict[str, str] | None = None, **annotations: str) -> Object:
    meta = {
        "name": "train",
        "namespace": "team",
        "uid": "uid-1",
        "labels": labels or {},
        "annotations": annotations,
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta}


def pod_set(**spec: Any) -> Object:
    return {"name": "main", "count": 1, "template": {"metadata": {}, "spec": spec}}


def classes(*, default: tuple[tuple[str, int], ...] = ()) -> Classes:
    found = Classes(
        workload={"prod": PriorityClass(name="prod", value=1000)},
        pod={"fast": PriorityClass(name="fast", value=50)},
    )
    for name, value in default:
        found.pod[name] = PriorityClass(name=name, value=value, global_default=True)
    return found


def test_names_are_those_of_kueue() -> None:
    assert composing.workload_name("Job", "batch", "name", "uid") == "job-name-ef3a1"


def test_a_long_name_is_cut_before_its_hash() -> None:
    name = composing.workload_name("Job", "batch", "x" * 300, "uid")
    assert len(name) == 253
    assert name.startswith("job-xxx")
    assert name[-6] == "-"


def test_the_label_names_a_workload_priority_class() -> None:
    wanted = job({"kueue.x-k8s.io/priority-class": "prod"})
    found = composing.resolve_priority(wanted, [pod_set(priorityClassName="fast")], classes())
    assert found.as_json() == {
        "priority": 1000,
        "priorityClassRef": {
            "group": "kueue.x-k8s.io",
            "kind": "WorkloadPriorityClass",
            "name": "prod",
        },
    }


def test_without_the_label_the_first_template_that_names_a_class_decides() -> None:
    sets = [pod_set(), pod_set(priorityClassName="fast")]
    assert composing.resolve_priority(job(), sets, classes()).value == 50


def test_of_several_global_defaults_the_lowest_counts() -> None:
    known = classes(default=(("big", 500), ("small", 5)))
    found = composing.resolve_priority(job(), [pod_set()], known)
    assert (found.value, found.ref) == (5, ("scheduling.k8s.io", "PriorityClass", "small"))


def test_nobody_says_anything() -> None:
    assert composing.resolve_priority(job(), [pod_set()], classes()).as_json() == {"priority": 0}


@pytest.mark.parametrize(
    ("labels", "spec", "kind"),
    [
        ({"kueue.x-k8s.io/priority-class": "no"}, {}, "WorkloadPriorityClass"),
        ({}, {"priorityClassName": "no"}, "PriorityClass"),
    ],
)
def test_a_class_that_does_not_exist_is_named(
    labels: dict[str, str], spec: Object, kind: str
) -> None:
    with pytest.raises(UnknownClass, match=f'{kind} "no" not found'):
        composing.resolve_priority(job(labels), [pod_set(**spec)], classes())


def test_the_workload_carries_its_owner_queue_limit_and_promises() -> None:
    wanted = job(
        {"kueue.x-k8s.io/queue-name": "queue", "kueue.x-k8s.io/max-exec-time-seconds": "60"},
        **{"makeway.dev/checkpoint-every": "10m", "other": "x"},
    )
    made = composing.compose(wanted, [pod_set()], composing.Priority(value=3))
    assert made["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": "train",
            "uid": "uid-1",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert made["metadata"]["labels"] == {"kueue.x-k8s.io/job-uid": "uid-1"}
    assert made["metadata"]["annotations"] == {"makeway.dev/checkpoint-every": "10m"}
    assert made["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
    assert made["spec"]["queueName"] == "queue"
    assert made["spec"]["maximumExecutionTimeSeconds"] == 60
    assert made["spec"]["active"] is True


def test_a_variable_named_twice_keeps_its_last_value() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "A", "value": "3"}]
    made = composing.template_from({}, {"containers": [{"name": "app", "env": env}]})
    assert made["spec"]["containers"][0]["env"] == [
        {"name": "A", "value": "3"},
        {"name": "B", "value": "2"},
    ]
