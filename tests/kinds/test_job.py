"""batch/v1 Job: counts, progress, and the patches that start and stop it."""

from __future__ import annotations

from typing import Any

import pytest

from makeway.kinds import job

Object = dict[str, Any]


def nothing(kind: str, key: str) -> None:
    """A Job needs no other object to be read."""


def made(status: Object | None = None, notes: dict[str, str] | None = None, **spec: Any) -> Object:
    template = {
        "metadata": {"labels": {"app": "x", "job-name": "train", "controller-uid": "u"}},
        "spec": {"containers": [{"name": "app"}], "nodeSelector": {"zone": "a"}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "team", "annotations": notes or {}},
        "spec": {"template": template, **spec},
        "status": status or {},
    }


def merged(target: Object, patch: Object) -> Object:
    """RFC 7386, as the API applies it."""
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merged(result.get(key) or {}, value)
        else:
            result[key] = value
    return result


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({}, 1),
        ({"parallelism": 4}, 4),
        ({"parallelism": 4, "completions": 3}, 3),
        ({"parallelism": 0, "completions": 3}, 0),
    ],
)
def test_never_more_pods_than_there_is_work_for(spec: Object, count: int) -> None:
    assert job.pod_count(made(**spec)) == count


@pytest.mark.parametrize(
    ("status", "spec", "spare"),
    [
        ({}, {"parallelism": 3, "completions": 5}, 0),
        ({"succeeded": 2}, {"parallelism": 3, "completions": 5}, 0),
        ({"succeeded": 3}, {"parallelism": 3, "completions": 5}, 1),
        ({"succeeded": 5}, {"parallelism": 3, "completions": 5}, 3),
        ({"succeeded": 1}, {"parallelism": 1, "completions": 2}, 0),
        (
            {"completedIndexes": "0-1", "failedIndexes": "1,3"},
            {"parallelism": 4, "completions": 4, "completionMode": "Indexed"},
            3,
        ),
    ],
)
def test_pods_that_need_no_quota_any_more(status: Object, spec: Object, spare: int) -> None:
    assert job.reclaimable(made(status, **spec)) == spare


def test_ready_counts_those_that_succeeded_too() -> None:
    status = {"succeeded": 1, "ready": 1, "uncountedTerminatedPods": {"succeeded": ["uid"]}}
    assert job.pods_ready(made(status), 3)
    assert not job.pods_ready(made(status), 4)


def test_labels_of_the_controller_are_not_part_of_the_pod_set() -> None:
    (pod_set,) = job.QueuedJob().pod_sets(made(parallelism=2), nothing)
    assert pod_set["template"]["metadata"] == {"labels": {"app": "x"}}
    assert pod_set["count"] == 2
    assert "minCount" not in pod_set


UPDATE = {
    "labels": {"kueue.x-k8s.io/podset": "main"},
    "annotations": {"kueue.x-k8s.io/workload": "job-train-1"},
    "nodeSelector": {"tier": "spot"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
}


def test_stopping_undoes_what_starting_did() -> None:
    before = made(suspend=True, parallelism=4, completions=8)
    (pod_set,) = job.QueuedJob().pod_sets(before, nothing)
    started = merged(before, job.start_patch(before, UPDATE, count=2))
    assert started["spec"]["parallelism"] == 2
    assert started["spec"]["template"]["spec"]["nodeSelector"] == {"zone": "a", "tier": "spot"}

    stopping = merged(started, job.suspend_patch())
    stopped = merged(stopping, job.restore_patch(stopping, pod_set))

    assert stopped["spec"]["suspend"] is True
    assert stopped["spec"]["parallelism"] == 4
    assert (
        stopped["spec"]["template"]["metadata"]["labels"]
        == before["spec"]["template"]["metadata"]["labels"]
    )
    assert stopped["spec"]["template"]["spec"] == before["spec"]["template"]["spec"]
    assert stopped["metadata"]["annotations"] == {}
    assert job.restore_patch(stopped, pod_set) == {}


def test_completions_follow_when_asked_to() -> None:
    tied = made(
        notes={"kueue.x-k8s.io/job-completions-equal-parallelism": "true"},
        parallelism=4,
        completions=4,
    )
    patch = job.start_patch(tied, UPDATE, count=3)
    assert (patch["spec"]["parallelism"], patch["spec"]["completions"]) == (3, 3)


@pytest.mark.parametrize(
    ("condition", "outcome"),
    [("Complete", ("Succeeded", "done")), ("Failed", ("Failed", "done")), ("Suspended", None)],
)
def test_how_it_ended(condition: str, outcome: tuple[str, str] | None) -> None:
    status = {"conditions": [{"type": condition, "status": "True", "message": "done"}]}
    assert job.finished(made(status)) == outcome
