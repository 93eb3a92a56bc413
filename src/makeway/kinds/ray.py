"""ray.io RayCluster and RayJob: a head, groups of workers, and for a job the pod that submits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from makeway.kinds.metadata import Json, Object, spec, status
from makeway.kinds.queued import Find, QueuedKind, Slot, replicas

# What KubeRay gives the pod that submits a job, where nobody says otherwise.
SUBMITTER: Final[dict[str, Any]] = {
    "metadata": {},
    "spec": {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "ray-job-submitter",
                "resources": {
                    "requests": {"cpu": "500m", "memory": "200Mi"},
                    "limits": {"cpu": "1", "memory": "1Gi"},
                },
            }
        ],
    },
}


def cluster_slots(cluster: Json) -> list[Slot]:
    """`cluster` is the spec of a RayCluster."""
    head = (cluster.get("headGroupSpec") or {}).get("template")
    found = [] if head is None else [Slot(name="head", count=1, template=head)]
    for group in cluster.get("workerGroupSpecs") or []:
        hosts = int(group.get("numOfHosts") or 1)
        found.append(
            Slot(
                name=str(group.get("groupName") or ""),
                count=replicas(group) * hosts,
                template=group["template"],
            )
        )
    return found


class QueuedRayCluster(QueuedKind):
    kind = "RayCluster"
    api_version = "ray.io/v1"
    plural = "rayclusters"

    def slots(self, job: Json, find: Find) -> list[Slot]:
        return cluster_slots(spec(job))

    def active(self, job: Json) -> bool:
        return status(job).get("state") == "ready" and not self.suspended(job)

    def finished(self, job: Json) -> tuple[str, str] | None:
        return None  # a cluster serves until it is deleted

    def pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        return bool(status(job).get("state") == "ready")


class QueuedRayJob(QueuedKind):
    kind = "RayJob"
    api_version = "ray.io/v1"
    plural = "rayjobs"

    def queues(self, job: Json) -> bool:
        """A job that runs on a cluster which is there already brings only its submitter."""
        return not spec(job).get("clusterSelector")

    def slots(self, job: Json, find: Find) -> list[Slot]:
        found = cluster_slots(spec(job).get("rayClusterSpec") or {})
        if (spec(job).get("submissionMode") or "K8sJobMode") == "K8sJobMode":
            found.append(Slot(name="submitter", count=1, template=_submitter(job)))
        return found

    def active(self, job: Json) -> bool:
        return (status(job).get("jobDeploymentStatus") or "") not in ("", "New", "Suspended")

    def finished(self, job: Json) -> tuple[str, str] | None:
        said = status(job).get("jobDeploymentStatus")
        if said not in ("Complete", "Failed"):
            return None
        well = status(job).get("jobStatus") == "SUCCEEDED"
        return "Succeeded" if well else "Failed", str(status(job).get("message") or "")

    def pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        return bool((status(job).get("rayClusterStatus") or {}).get("state") == "ready")


def _submitter(job: Json) -> Object:
    """The user's own template, which is then a part of the job, or KubeRay's, which is nobody's to change."""
    own: Object | None = spec(job).get("submitterPodTemplate")
    return own or {"metadata": {}, "spec": dict(SUBMITTER["spec"])}
