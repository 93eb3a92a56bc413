"""The jobs of other projects, served here so that they can queue where their operators are not installed.

Their definitions are short: the fields that are read, and room for all the others. A queued one is suspended when it is made,
as Kueue's webhooks do it; one that cannot be suspended hands its queue down to its pods, which then wait at a gate.
"""

from __future__ import annotations

from makeway.kinds.frameworks import JOB_KINDS
from makeway.kinds.queued import QueuedKind
from makeway.kinds.serving.columns import (
    AGE,
    NAME,
    NAME_AND_AGE,
    Cell,
    Column,
    at,
    condition_column,
    path_column,
)
from makeway.kinds.serving.job_schemas import definition_name
from makeway.kinds.serving.kind import Context, Kind, Rules, Scale, Version
from makeway.kinds.serving.names import metadata_causes, subdomain_problems
from makeway.kinds.serving.queueing import (
    hand_queue_down,
    queued_job_causes,
    refuse_queue_change_of_job,
    suspend_queued_job,
)
from makeway.kinds.serving.refusal import Cause, Obj, webhook_denied
from makeway.kinds.serving.structure import structural_causes

TRAINER = "trainer.kubeflow.org"


class JobRules(Rules):
    """Jobs that are suspended while they wait."""

    def __init__(self, kind: QueuedKind, definition: str) -> None:
        self._kind = kind
        self._definition = definition
        self._webhook = f"v{kind.kind.lower()}.kb.io"

    def default(self, obj: Obj) -> None:
        obj.setdefault("spec", {})

    def create(self, obj: Obj, context: Context) -> None:
        suspend_queued_job(obj, context, self._kind.suspend_path)
        causes = queued_job_causes(obj)
        if causes:
            raise webhook_denied(self._webhook, causes)

    def update(self, new: Obj, old: Obj, context: Context) -> None:
        running = not self._kind.suspended(old) and not self._kind.suspended(new)
        refuse_queue_change_of_job(new, old, running=running, webhook=self._webhook)

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, subdomain_problems)
        return causes + structural_causes(self._definition, obj, has_rules=False)


class JobSetRules(JobRules):
    def default(self, obj: Obj) -> None:
        super().default(obj)
        spec = obj["spec"]
        for field, key, usual in (
            ("failurePolicy", "restartStrategy", "Recreate"),
            ("startupPolicy", "startupPolicyOrder", "AnyOrder"),
            ("successPolicy", "operator", "All"),
        ):
            if isinstance(spec.get(field), dict):
                spec[field].setdefault(key, usual)
        for each in spec.get("replicatedJobs") or []:
            if isinstance(each, dict):
                each.setdefault("replicas", 1)
                each.setdefault("groupName", "default")
                if isinstance(each.get("template"), dict):
                    each["template"].setdefault("metadata", {})


class LeaderWorkerSetRules(Rules):
    definition = definition_name("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet")

    def default(self, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("replicas", 1)
        spec.setdefault("startupPolicy", "LeaderCreated")
        form = spec.get("leaderWorkerTemplate")
        if isinstance(form, dict):
            form.setdefault("size", 1)
            form.setdefault("restartPolicy", "RecreateGroupOnPodRestart")

    def create(self, obj: Obj, context: Context) -> None:
        hand_queue_down("LeaderWorkerSet", obj)

    def update(self, new: Obj, old: Obj, context: Context) -> None:
        hand_queue_down("LeaderWorkerSet", new)

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, subdomain_problems)
        return causes + structural_causes(self.definition, obj, has_rules=False)


def _latest(obj: Obj, _: float) -> Cell:
    conditions = at(obj, "status", "conditions") or []
    return str(conditions[-1].get("type") or "") if conditions else None


_STATE = (NAME, Column("State", _latest, description="the last condition"), AGE)
_COLUMNS: dict[str, tuple[Column, ...]] = {
    "JobSet": (
        NAME,
        path_column("TerminalState", ".status.terminalState"),
        path_column("Restarts", ".status.restarts"),
        condition_column("Completed", "Completed"),
        path_column("Suspended", ".spec.suspend"),
        AGE,
    ),
    "RayCluster": (
        NAME,
        path_column("Desired Workers", ".status.desiredWorkerReplicas", "integer"),
        path_column("Available Workers", ".status.availableWorkerReplicas", "integer"),
        path_column("CPUs", ".status.desiredCPU"),
        path_column("Memory", ".status.desiredMemory"),
        path_column("GPUs", ".status.desiredGPU"),
        path_column("Status", ".status.state"),
        AGE,
    ),
    "RayJob": (
        NAME,
        path_column("Job Status", ".status.jobStatus"),
        path_column("Deployment Status", ".status.jobDeploymentStatus"),
        path_column("Ray Cluster Name", ".status.rayClusterName"),
        path_column("Start Time", ".status.startTime"),
        path_column("End Time", ".status.endTime"),
        AGE,
    ),
}
_LWS_COLUMNS = (
    NAME,
    path_column("Ready", ".status.readyReplicas", "integer"),
    path_column("Desired", ".spec.replicas", "integer"),
    path_column("Up-to-date", ".status.updatedReplicas", "integer"),
    AGE,
)


def kinds() -> tuple[Kind, ...]:
    jobs = [_job(kind) for kind in JOB_KINDS.values() if kind.group != "batch"]
    return (*jobs, _leader_worker_set(), *_runtimes())


def _job(kind: QueuedKind) -> Kind:
    version = kind.api_version.rsplit("/", 1)[-1]
    definition = definition_name(kind.group, version, kind.kind)
    rules = JobSetRules if kind.kind == "JobSet" else JobRules
    return Kind(
        kind.group,
        kind.kind,
        kind.plural,
        (Version(version, definition, _COLUMNS.get(kind.kind, _STATE)),),
        categories=("all",) if kind.group == "ray.io" else (),
        status=True,
        builtin=False,
        rules=rules(kind, definition),
    )


def _leader_worker_set() -> Kind:
    return Kind(
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        "leaderworkersets",
        (Version("v1", LeaderWorkerSetRules.definition, _LWS_COLUMNS),),
        short_names=("lws",),
        status=True,
        builtin=False,
        rules=LeaderWorkerSetRules(),
        scale=Scale(selector=("status", "hpaPodSelector")),
    )


def _runtimes() -> tuple[Kind, ...]:
    return tuple(
        Kind(
            TRAINER,
            kind,
            f"{kind.lower()}s",
            (Version("v1alpha1", definition_name(TRAINER, "v1alpha1", kind), NAME_AND_AGE),),
            namespaced=kind == "TrainingRuntime",
            builtin=False,
        )
        for kind in ("ClusterTrainingRuntime", "TrainingRuntime")
    )
