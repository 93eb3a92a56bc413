"""From a job to its Workload object: the name, the priority, the owner, the JSON as Kueue's users know it.

Every kind brings its own pod sets; what is alike for all of them is here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from makeway.kinds.metadata import (
    ADMISSION_GATED_BY,
    JOB_UID,
    MAX_EXEC_TIME,
    PRIORITY_CLASS,
    QUEUE_NAME,
    RESOURCE_IN_USE,
    Json,
    Object,
    annotations_of,
    group_of,
    integer,
    labels,
    name,
    namespace,
    uid,
)
from makeway.kinds.promises import PREFIX

API_VERSION: Final = "kueue.x-k8s.io/v1beta2"
KIND: Final = "Workload"
MAX_NAME: Final = 253
HASH_LENGTH: Final = 5
PROVISIONING_PREFIX: Final = "provreq.kueue.x-k8s.io/"
# Set by the job controller on its template; they name the job, not its shape.
CONTROLLER_LABELS: Final = ("controller-uid", "batch.kubernetes.io/controller-uid", "job-name")


class PriorityClass(msgspec.Struct, frozen=True, kw_only=True):
    """A PriorityClass or a WorkloadPriorityClass."""

    name: str
    value: int
    global_default: bool = False


class Classes(msgspec.Struct, kw_only=True):
    """The classes there are: two kinds, two separate name spaces."""

    workload: dict[str, PriorityClass] = {}
    pod: dict[str, PriorityClass] = {}

    def default(self) -> PriorityClass | None:
        """The global default; of several the one with the lowest value."""
        defaults = [c for c in self.pod.values() if c.global_default]
        return min(defaults, key=lambda c: (c.value, c.name), default=None)


class Priority(msgspec.Struct, frozen=True, kw_only=True):
    value: int = 0
    ref: tuple[str, str, str] | None = None  # group, kind, name

    def as_json(self) -> Object:
        if self.ref is None:
            return {"priority": self.value}
        group, kind, class_name = self.ref
        reference = {"group": group, "kind": kind, "name": class_name}
        return {"priority": self.value, "priorityClassRef": reference}


class UnknownClass(Exception):
    """A priority class that does not exist: the Workload waits for it to be created."""

    def __init__(self, kind: str, class_name: str) -> None:
        self.kind = kind
        self.class_name = class_name
        super().__init__(f'{kind} "{class_name}" not found')


def priority_class_from(obj: Json) -> PriorityClass:
    return PriorityClass(
        name=name(obj),
        value=integer(obj.get("value", 0)) or 0,
        global_default=bool(obj.get("globalDefault")),
    )


def resolve_priority(
    job: Json, pod_sets: Iterable[Json], classes: Classes, own_class: str = ""
) -> Priority:
    """The class the job names, else that of its kind's own field, the first template's, the global default, or 0."""
    wanted = labels(job).get(PRIORITY_CLASS)
    if wanted:
        if wanted not in classes.workload:
            raise UnknownClass("WorkloadPriorityClass", wanted)
        ref = ("kueue.x-k8s.io", "WorkloadPriorityClass", wanted)
        return Priority(value=classes.workload[wanted].value, ref=ref)
    templates = (pod_set["template"].get("spec") or {} for pod_set in pod_sets)
    named = own_class or next(
        (s["priorityClassName"] for s in templates if s.get("priorityClassName")), None
    )
    found = classes.pod.get(named) if named else classes.default()
    if found is None:
        if named:
            raise UnknownClass("PriorityClass", named)
        return Priority()
    return Priority(value=found.value, ref=("scheduling.k8s.io", "PriorityClass", found.name))


def workload_name(kind: str, group: str, owner_name: str, owner_uid: str) -> str:
    """`job-train-1a2b3`: readable, and never the same for two jobs that had the same name."""
    digest = hashlib.sha1(
        f"{kind}\n{group}\n{owner_name}\n{owner_uid}".encode(), usedforsecurity=False
    ).hexdigest()[:HASH_LENGTH]
    prefix = f"{kind.lower()}-{owner_name}"[: MAX_NAME - HASH_LENGTH - 1]
    return f"{prefix}-{digest}"


def workload_name_of(job: Json) -> str:
    return workload_name(
        str(job.get("kind")), group_of(str(job.get("apiVersion", ""))), name(job), uid(job)
    )


def copied_annotations(job: Json) -> dict[str, str]:
    """What the Workload carries on from its job, so that it can be read alone."""
    return {
        key: value
        for key, value in annotations_of(job).items()
        if key.startswith((PROVISIONING_PREFIX, PREFIX)) or key == ADMISSION_GATED_BY
    }


def owner_reference(job: Json, *, controls: bool) -> Object:
    reference: Object = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": name(job),
        "uid": uid(job),
    }
    return reference | {"controller": True, "blockOwnerDeletion": True} if controls else reference


def max_execution_seconds(job: Json) -> int | None:
    return integer(labels(job).get(MAX_EXEC_TIME, ""))


def compose(job: Json, pod_sets: list[Object], priority: Priority, *, wl_name: str = "") -> Object:
    """The Workload of one job."""
    spec: Object = {
        "podSets": pod_sets,
        "queueName": labels(job).get(QUEUE_NAME, ""),
        "active": True,
    } | priority.as_json()
    limit = max_execution_seconds(job)
    if limit is not None:
        spec["maximumExecutionTimeSeconds"] = limit
    metadata: Object = {
        "name": wl_name or workload_name_of(job),
        "namespace": namespace(job),
        "labels": {JOB_UID: uid(job)},
        "finalizers": [RESOURCE_IN_USE],
        "ownerReferences": [owner_reference(job, controls=True)],
    }
    copied = copied_annotations(job)
    if copied:
        metadata["annotations"] = copied
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def template_from(metadata: Json, spec: Json, *, keep_labels: bool = True) -> Object:
    """A pod template as it stands in a pod set: labels and annotations, and the pod spec."""
    kept: Object = {}
    if keep_labels:
        shown = {
            k: v for k, v in (metadata.get("labels") or {}).items() if k not in CONTROLLER_LABELS
        }
        if shown:
            kept["labels"] = shown
        if metadata.get("annotations"):
            kept["annotations"] = dict(metadata["annotations"])
    return {"metadata": kept, "spec": without_repeated_env(dict(spec))}


def without_repeated_env(spec: Object) -> Object:
    """A variable that a container names twice keeps its last value; two would not fit a list keyed by name."""
    for field in ("initContainers", "containers"):
        if any(_repeats(container) for container in spec.get(field) or []):
            spec[field] = [_last_env(container) for container in spec[field]]
    return spec


def _repeats(container: Json) -> bool:
    names = [entry.get("name") for entry in container.get("env") or []]
    return len(names) != len(set(names))


def _last_env(container: Object) -> Object:
    last: dict[str, Any] = {entry["name"]: entry for entry in container.get("env") or []}
    return {**container, "env": list(last.values())} if last else container
