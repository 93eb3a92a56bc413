"""batch/v1 Job: how many pods it wants, whether they run, and how it is started and stopped.

A queued Job is suspended until its Workload is admitted; then it gets the flavors' node labels and tolerations, and runs. To
stop it, it is suspended again, and its template is put back as the Workload remembers it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from makeway.kinds import composing, conditions
from makeway.kinds.metadata import (
    COMPLETIONS_EQUAL_PARALLELISM,
    MIN_PARALLELISM,
    QUEUE_NAME,
    STOPPING,
    Json,
    Object,
    annotations_of,
    integer,
    labels,
    spec,
    status,
)
from makeway.kinds.queued import Find, QueuedKind, Slot, Stop

API_VERSION: Final = "batch/v1"
KIND: Final = "Job"
TRACKING: Final = (
    "batch.kubernetes.io/job-tracking"  # the finalizer of pods that are still to be counted
)
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_INTERVAL: Final = re.compile(r"(\d+)(?:-(\d+))?")


def queue_name(job: Json) -> str:
    return labels(job).get(QUEUE_NAME, "")


def suspended(job: Json) -> bool:
    return bool(spec(job).get("suspend"))


def indexed(job: Json) -> bool:
    return spec(job).get("completionMode") == "Indexed"


def parallelism(job: Json) -> int:
    value = spec(job).get("parallelism")
    return 1 if value is None else int(value)


def completions(job: Json) -> int | None:
    value = spec(job).get("completions")
    return None if value is None else int(value)


def pod_count(job: Json) -> int:
    """Pods that run together: never more than there is work for."""
    wanted = completions(job)
    return parallelism(job) if wanted is None else min(parallelism(job), wanted)


def min_count(job: Json) -> int | None:
    """Partial admission may go down to this."""
    return integer(annotations_of(job).get(MIN_PARALLELISM, ""))


def active(job: Json) -> bool:
    """Pods that are being stopped do not count: their quota is free before they are gone."""
    return bool(status(job).get("active"))


def finished(job: Json) -> tuple[str, str] | None:
    """Reason and message for the Workload, once the Job is over."""
    return conditions.outcome(job, ("Complete", "Succeeded"), ("Failed", "Failed"))


def succeeded(job: Json) -> int:
    uncounted = status(job).get("uncountedTerminatedPods") or {}
    return int(status(job).get("succeeded") or 0) + len(uncounted.get("succeeded") or [])


def pods_ready(job: Json, count: int) -> bool:
    return succeeded(job) + int(status(job).get("ready") or 0) >= count


def reclaimable(job: Json) -> int:
    """Pods that need no quota any more, because fewer completions are left than run together."""
    together, wanted = parallelism(job), completions(job)
    if together <= 1 or wanted is None:
        return 0
    counted = int(status(job).get("succeeded") or 0)
    done = _ended_indexes(job, wanted) if indexed(job) else counted
    left = max(wanted - done, 0)
    return together - left if done and left < together else 0


def _ended_indexes(job: Json, wanted: int) -> int:
    ended = _indexes(status(job).get("completedIndexes"), wanted)
    return len(ended | _indexes(status(job).get("failedIndexes"), wanted))


def _indexes(text: str | None, below: int) -> set[int]:
    """`0-2,5` as a set."""
    found: set[int] = set()
    for first, last in _INTERVAL.findall(text or ""):
        found.update(range(int(first), min(int(last or first), below - 1) + 1))
    return {index for index in found if index < below}


def start_patch(job: Json, update: Json, count: int) -> Object:
    """Let it run: `update` is what admission adds to its template (labels, annotations, nodeSelector, tolerations)."""
    template: Object = {"metadata": {}, "spec": {}}
    for field in ("labels", "annotations"):
        if update.get(field):
            template["metadata"][field] = dict(update[field])
    if update.get("nodeSelector"):
        template["spec"]["nodeSelector"] = dict(update["nodeSelector"])
    if update.get("tolerations"):
        present = _template_spec(job).get("tolerations") or []
        added = [t for t in update["tolerations"] if t not in present]
        template["spec"]["tolerations"] = present + added
    if update.get("schedulingGates"):
        template["spec"]["schedulingGates"] = list(update["schedulingGates"])
    patch: Object = {"suspend": False, "template": {k: v for k, v in template.items() if v}}
    if count != parallelism(job) and count < pod_count(job):
        patch["parallelism"] = count
        if annotations_of(job).get(COMPLETIONS_EQUAL_PARALLELISM) == "true":
            patch["completions"] = count
    return {"spec": patch}


def suspend_patch() -> Object:
    return {"metadata": {"annotations": {STOPPING: "true"}}, "spec": {"suspend": True}}


def restore_patch(job: Json, pod_set: Json | None) -> Object:
    """Back to what the user wrote, as the Workload's pod set remembers it; nothing to restore gives an empty patch."""
    patch: Object = {}
    if STOPPING in annotations_of(job):
        patch["metadata"] = {"annotations": {STOPPING: None}}
    restored = _restored_spec(job, pod_set) if pod_set else {}
    if restored:
        patch["spec"] = restored
    return patch


def _restored_spec(job: Json, pod_set: Json) -> Object:
    original = pod_set["template"]
    present = spec(job).get("template") or {}
    template: Object = {}
    metadata = _map_changes(
        present.get("metadata") or {}, original.get("metadata") or {}, ("labels", "annotations")
    )
    if metadata:
        template["metadata"] = metadata
    now, then = present.get("spec") or {}, original.get("spec") or {}
    pod_spec = _map_changes(now, then, ("nodeSelector",))
    for field in ("tolerations", "schedulingGates"):
        if (now.get(field) or []) != (then.get(field) or []):
            pod_spec[field] = then.get(field)
    if pod_spec:
        template["spec"] = pod_spec
    restored: Object = {"template": template} if template else {}
    if pod_count(job) < int(pod_set.get("count", 1)):
        restored["parallelism"] = int(pod_set["count"])
        if annotations_of(job).get(COMPLETIONS_EQUAL_PARALLELISM) == "true":
            restored["completions"] = int(pod_set["count"])
    return restored


def _map_changes(now: Json, then: Json, fields: tuple[str, ...]) -> Object:
    """A merge patch that turns these maps of `now` into those of `then`."""
    changes: Object = {}
    for field in fields:
        have, want = now.get(field) or {}, then.get(field) or {}
        kept = composing.CONTROLLER_LABELS if field == "labels" else ()
        patch = {key: None for key in have if key not in want and key not in kept}
        patch |= {key: value for key, value in want.items() if have.get(key) != value}
        if patch:
            changes[field] = patch
    return changes


def _template_spec(job: Json) -> Json:
    template: Json = spec(job).get("template") or {}
    found: Json = template.get("spec") or {}
    return found


class QueuedJob(QueuedKind):
    """A Job stops in two steps: suspended, and once its pods are told, put back as it was."""

    kind = KIND
    api_version = API_VERSION
    plural = "jobs"

    def slots(self, job: Json, find: Find) -> list[Slot]:
        return [
            Slot(
                name="main",
                count=pod_count(job),
                min_count=min_count(job),
                template=spec(job).get("template") or {},
                topology={"podIndexLabel": COMPLETION_INDEX},
            )
        ]

    def together(self, job: Json) -> bool:
        return indexed(job)

    def stopping(self, job: Json) -> bool:
        return STOPPING in annotations_of(job)

    def active(self, job: Json) -> bool:
        return active(job)

    def finished(self, job: Json) -> tuple[str, str] | None:
        return finished(job)

    def pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        return pods_ready(job, counts.get("main", pod_count(job)))

    def reclaimable(self, job: Json) -> list[tuple[str, int]]:
        return [("main", reclaimable(job))]

    def start_patch(
        self, job: Json, updates: Mapping[str, Json], counts: Mapping[str, int], find: Find
    ) -> Object:
        return start_patch(job, updates["main"], counts.get("main", pod_count(job)))

    def lowers(self, job: Json) -> bool:
        """Not where completions follow parallelism: then the last indexes would have to go, whatever they cost."""
        return annotations_of(job).get(COMPLETIONS_EQUAL_PARALLELISM) != "true"

    def lower_patch(self, job: Json, count: int) -> Object:
        return {"spec": {"parallelism": count}} if parallelism(job) > count else {}

    def suspend_patch(self) -> Object:
        return suspend_patch()

    def stop(self, job: Json, pod_sets: Iterable[Json], find: Find) -> Stop:
        if not suspended(job):
            return Stop(patch=suspend_patch())
        if active(job):
            return Stop()
        known = next(iter(pod_sets), None)
        return Stop(patch=restore_patch(job, known), done=STOPPING in annotations_of(job))
