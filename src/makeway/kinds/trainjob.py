"""trainer.kubeflow.org TrainJob: its templates are those of the runtime that it names, with the trainer's own words on top.

What admission adds is written beside them, under `runtimePatches`, in an entry of Kueue's; stopping removes the entry.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

from makeway.kinds import conditions
from makeway.kinds.job import COMPLETION_INDEX
from makeway.kinds.jobset import JOB_INDEX
from makeway.kinds.metadata import Json, Object, namespace, spec, status
from makeway.kinds.queued import (
    CannotQueue,
    Find,
    QueuedKind,
    Slot,
    Stop,
    inject,
    pods_together,
    replicas,
)

MANAGER: Final = "kueue.x-k8s.io/manager"
TRAINER: Final = "node"  # the replicated Job, and its container, that `spec.trainer` speaks of
DEFAULT_RUNTIME: Final = "ClusterTrainingRuntime"


class QueuedTrainJob(QueuedKind):
    kind = "TrainJob"
    api_version = "trainer.kubeflow.org/v1alpha1"
    plural = "trainjobs"

    def slots(self, job: Json, find: Find) -> list[Slot]:
        made = _runtime_of(job, find)
        jobs = spec(spec(made).get("template") or {}).get("replicatedJobs") or []
        nodes = _nodes(job, made)
        return [_slot(copy.deepcopy(each), job, nodes) for each in jobs]

    def active(self, job: Json) -> bool:
        return any(int(each.get("active") or 0) for each in _statuses(job))

    def finished(self, job: Json) -> tuple[str, str] | None:
        return conditions.outcome(job, ("Complete", "Succeeded"), ("Failed", "Failed"))

    def pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        found = _statuses(job)
        there = sum(int(s.get("ready") or 0) + int(s.get("succeeded") or 0) for s in found)
        return there >= len(counts)

    def start_patch(
        self, job: Json, updates: Mapping[str, Json], counts: Mapping[str, int], find: Find
    ) -> Object:
        jobs = [_patched(name, update) for name, update in updates.items()]
        entry = {
            "manager": MANAGER,
            "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}},
        }
        return {"spec": {"suspend": False, "runtimePatches": [*_others(job), entry]}}

    def stop(self, job: Json, pod_sets: Iterable[Json], find: Find) -> Stop:
        others = _others(job)
        body: Object = {} if self.suspended(job) else {"suspend": True}
        if len(others) != len(spec(job).get("runtimePatches") or []):
            body["runtimePatches"] = others or None
        patch = {"spec": body} if body else {}
        return Stop(patch=patch, done=not self.suspended(job))


def _runtime_of(job: Json, find: Find) -> Object:
    named = spec(job).get("runtimeRef") or {}
    kind = str(named.get("kind") or DEFAULT_RUNTIME)
    name = str(named.get("name") or "")
    key = name if kind == DEFAULT_RUNTIME else f"{namespace(job)}/{name}"
    found = find(kind, key)
    if found is None:
        raise CannotQueue("RuntimeNotFound", f'{kind} "{name}" not found')
    return found


def _nodes(job: Json, runtime: Json) -> int | None:
    said = (spec(job).get("trainer") or {}).get("numNodes")
    if said is None:
        said = (spec(runtime).get("mlPolicy") or {}).get("numNodes")
    return None if said is None else int(said)


def _slot(each: Object, job: Json, nodes: int | None) -> Slot:
    name = str(each.get("name"))
    inner: Object = each["template"]["spec"]
    template: Object = inner["template"]
    count = replicas(each) * pods_together(inner)
    if name == TRAINER:
        count = replicas(each) * nodes if nodes is not None else count
        _apply_trainer(template, spec(job).get("trainer") or {})
    return Slot(
        name=name,
        count=count,
        template=template,
        topology={
            "podIndexLabel": COMPLETION_INDEX,
            "subGroupIndexLabel": JOB_INDEX,
            "subGroupCount": replicas(each),
        },
    )


def _apply_trainer(template: Object, trainer: Json) -> None:
    for container in spec(template).get("containers") or []:
        if container.get("name") != TRAINER:
            continue
        for field in ("image", "command", "args"):
            if trainer.get(field):
                container[field] = trainer[field]
        if trainer.get("resourcesPerNode"):
            container["resources"] = dict(trainer["resourcesPerNode"])
        if trainer.get("env"):
            named: dict[str, Any] = {e["name"]: e for e in container.get("env") or []}
            container["env"] = list((named | {e["name"]: e for e in trainer["env"]}).values())


def _patched(name: str, update: Json) -> Object:
    template: Object = {}
    inject(template, update)
    return {"name": name, "template": {"spec": {"template": template}}}


def _others(job: Json) -> list[Object]:
    return [p for p in spec(job).get("runtimePatches") or [] if p.get("manager") != MANAGER]


def _statuses(job: Json) -> list[Json]:
    return status(job).get("jobsStatus") or []
