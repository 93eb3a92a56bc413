"""jobset.x-k8s.io JobSet: several kinds of Jobs that are one; a pod set for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from makeway.kinds import conditions
from makeway.kinds.job import COMPLETION_INDEX
from makeway.kinds.metadata import Json, spec, status
from makeway.kinds.queued import Find, QueuedKind, Slot, pods_together, replicas

JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"


class QueuedJobSet(QueuedKind):
    kind = "JobSet"
    api_version = "jobset.x-k8s.io/v1alpha2"
    plural = "jobsets"

    def slots(self, job: Json, find: Find) -> list[Slot]:
        return [
            Slot(
                name=str(each.get("name")),
                count=replicas(each) * pods_together(spec(each.get("template") or {})),
                template=spec(each["template"])["template"],
                topology={
                    "podIndexLabel": COMPLETION_INDEX,
                    "subGroupIndexLabel": JOB_INDEX,
                    "subGroupCount": replicas(each),
                },
            )
            for each in spec(job).get("replicatedJobs") or []
        ]

    def active(self, job: Json) -> bool:
        return any(int(each.get("active") or 0) for each in _statuses(job))

    def finished(self, job: Json) -> tuple[str, str] | None:
        return conditions.outcome(job, ("Completed", "Succeeded"), ("Failed", "Failed"))

    def pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        """A Job counts as ready when all its pods are."""
        wanted = sum(replicas(each) for each in spec(job).get("replicatedJobs") or [])
        there = sum(
            int(each.get("ready") or 0) + int(each.get("succeeded") or 0) for each in _statuses(job)
        )
        return there >= wanted

    def reclaimable(self, job: Json) -> list[tuple[str, int]]:
        done = {str(each.get("name")): int(each.get("succeeded") or 0) for each in _statuses(job)}
        return [
            (name.lower(), done[name] * pods_together(spec(each.get("template") or {})))
            for each in spec(job).get("replicatedJobs") or []
            if done.get(name := str(each.get("name")))
        ]


def _statuses(job: Json) -> list[Json]:
    return status(job).get("replicatedJobsStatus") or []
