"""A Job's pods: made from its template, marked so that their end is counted, and read again when they have ended."""

from __future__ import annotations

from makeway.client.resource import PODS, Object
from makeway.control.clock import parse_timestamp
from makeway.embedded.controllers.indexes import INDEX
from makeway.embedded.controllers.plan import Patch
from makeway.embedded.objects import name_of, namespace_of, owned_by, status_of, uid_of

FINALIZER = "batch.kubernetes.io/job-tracking"
FAILURE_COUNT = "batch.kubernetes.io/job-index-failure-count"


def make_pod(job: Object) -> Object:
    template = job["spec"]["template"]
    metadata = template.get("metadata") or {}
    name, uid = name_of(job), uid_of(job)
    labels = {
        **(metadata.get("labels") or {}),
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{name}-",
            "namespace": namespace_of(job),
            "labels": labels,
            "annotations": dict(metadata.get("annotations") or {}),
            "finalizers": [*(metadata.get("finalizers") or []), FINALIZER],
            "ownerReferences": owned_by(job, "batch/v1", "Job"),
        },
        "spec": template["spec"],
    }


def make_indexed_pod(job: Object, index: int, failures: int | None) -> Object:
    """`failures`: how often this index failed before, where that is counted for each by itself."""
    pod = make_pod(job)
    metadata = pod["metadata"]
    metadata["generateName"] = f"{name_of(job)}-{index}-"
    metadata["annotations"][INDEX] = str(index)
    metadata["labels"][INDEX] = str(index)
    if failures is not None:
        metadata["annotations"][FAILURE_COUNT] = str(failures)
    spec = dict(pod["spec"])
    spec.setdefault("hostname", f"{name_of(job)}-{index}")
    for part in ("initContainers", "containers"):
        if spec.get(part):
            spec[part] = [_knows_its_index(container) for container in spec[part]]
    pod["spec"] = spec
    return pod


def tracked(pod: Object) -> bool:
    return FINALIZER in (pod["metadata"].get("finalizers") or ())


def release(pod: Object) -> Patch:
    kept = [each for each in pod["metadata"].get("finalizers") or [] if each != FINALIZER]
    return Patch(PODS, pod, {"metadata": {"finalizers": kept or None}})


def ended_at(pod: Object, now: float) -> float:
    ends = [
        parse_timestamp(ended["finishedAt"])
        for container in status_of(pod).get("containerStatuses") or []
        if (ended := (container.get("state") or {}).get("terminated")) and ended.get("finishedAt")
    ]
    return max(ends, default=now)


def failures_before(pod: Object) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(FAILURE_COUNT, "0")
    return int(text) if text.isdigit() else 0


def restarts(pod: Object) -> int:
    status = status_of(pod)
    everyone = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    return sum(int(container.get("restartCount") or 0) for container in everyone)


def _knows_its_index(container: Object) -> Object:
    """The index as an environment variable, unless the template sets it itself."""
    given = container.get("env") or []
    if any(variable["name"] == "JOB_COMPLETION_INDEX" for variable in given):
        return container
    source = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    return {**container, "env": [*given, {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}]}
