"""kubeflow.org training jobs: one field of replica specs by role, and a pod set for each role that is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from makeway.kinds import conditions
from makeway.kinds.metadata import Json, spec, status
from makeway.kinds.queued import Find, QueuedKind, Slot, replicas

REPLICA_INDEX: Final = "training.kubeflow.org/replica-index"


class QueuedTraining(QueuedKind):
    """`roles` is the order in which pod sets stand, and in which a priority class is looked for."""

    suspend_path = ("spec", "runPolicy", "suspend")

    def __init__(
        self, kind: str, plural: str, field: str, roles: tuple[str, ...], version: str = "v1"
    ) -> None:
        self.kind = kind
        self.api_version = f"kubeflow.org/{version}"
        self.plural = plural
        self.field = field
        self.roles = roles

    def slots(self, job: Json, find: Find) -> list[Slot]:
        specs = spec(job).get(self.field) or {}
        ordered = [r for r in self.roles if r in specs] + sorted(set(specs) - set(self.roles))
        return [
            Slot(
                name=role.lower(),
                count=replicas(specs[role]),
                template=specs[role]["template"],
                topology={"podIndexLabel": REPLICA_INDEX},
            )
            for role in ordered
        ]

    def priority_class(self, job: Json) -> str:
        policy = (spec(job).get("runPolicy") or {}).get("schedulingPolicy") or {}
        return str(policy.get("priorityClass") or "")

    def active(self, job: Json) -> bool:
        counts = status(job).get("replicaStatuses") or {}
        return any(int((each or {}).get("active") or 0) for each in counts.values())

    def finished(self, job: Json) -> tuple[str, str] | None:
        return conditions.outcome(job, ("Succeeded", "Succeeded"), ("Failed", "Failed"))

    def pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        return conditions.is_true(job, "Running") or conditions.is_true(job, "Succeeded")


KINDS: Final = (
    QueuedTraining("PyTorchJob", "pytorchjobs", "pytorchReplicaSpecs", ("Master", "Worker")),
    QueuedTraining(
        "TFJob", "tfjobs", "tfReplicaSpecs", ("Chief", "Master", "PS", "Worker", "Evaluator")
    ),
    QueuedTraining("XGBoostJob", "xgboostjobs", "xgbReplicaSpecs", ("Master", "Worker")),
    QueuedTraining("PaddleJob", "paddlejobs", "paddleReplicaSpecs", ("Master", "Worker")),
    QueuedTraining("JAXJob", "jaxjobs", "jaxReplicaSpecs", ("Worker",)),
    QueuedTraining("MPIJob", "mpijobs", "mpiReplicaSpecs", ("Launcher", "Worker"), "v2beta1"),
)
