"""The kinds of jobs that queue, by their names: one table for the adapter, the embedded API and its controllers."""

from __future__ import annotations

from typing import Final

from makeway.kinds import kubeflow
from makeway.kinds.job import QueuedJob
from makeway.kinds.jobset import QueuedJobSet
from makeway.kinds.metadata import Json, owners
from makeway.kinds.queued import QueuedKind
from makeway.kinds.ray import QueuedRayCluster, QueuedRayJob
from makeway.kinds.trainjob import QueuedTrainJob

JOB_KINDS: Final[dict[str, QueuedKind]] = {
    each.kind: each
    for each in (
        QueuedJob(),
        QueuedJobSet(),
        *kubeflow.KINDS,
        QueuedTrainJob(),
        QueuedRayCluster(),
        QueuedRayJob(),
    )
}
# What the templates of a TrainJob come from.
RUNTIMES: Final = ("ClusterTrainingRuntime", "TrainingRuntime")


def job_kind(workload: Json) -> QueuedKind | None:
    """Of the job that a Workload stands for; None where it stands for something else."""
    named = (str(owner.get("kind")) for owner in owners(workload))
    return next((JOB_KINDS[kind] for kind in named if kind in JOB_KINDS), None)
