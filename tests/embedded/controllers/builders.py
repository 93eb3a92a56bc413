"""Objects for tests of pure decisions."""

from __future__ import annotations

from typing import Any

from makeway.client.resource import Object
from makeway.control.clock import timestamp
from makeway.embedded.controllers.indexes import INDEX
from makeway.embedded.controllers.jobpods import FINALIZER

NOW = 1_800_000_000.0


def job(*, status: Object | None = None, policy: str = "Never", **spec: Any) -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "a", "uid": "job-uid"},
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 6,
            "template": {
                "metadata": {"labels": {"team": "x"}, "annotations": {"note": "y"}},
                "spec": {"restartPolicy": policy, "containers": [{"name": "main"}]},
            },
            **spec,
        },
        "status": status or {},
    }


def pod(
    name: str,
    phase: str = "Running",
    *,
    index: int | None = None,
    deleted: bool = False,
    tracked: bool = True,
    ready: bool = False,
    code: int | None = None,
    ended: float = NOW,
    restarts: int = 0,
    disrupted: str = "",
    failures: int | None = None,
    labels: dict[str, str] | None = None,
    bound: bool = True,
    created: float = NOW,
) -> Object:
    metadata: Object = {
        "name": name,
        "namespace": "a",
        "uid": f"uid-{name}",
        "labels": labels or {},
        "annotations": {},
        "creationTimestamp": timestamp(created),
    }
    if index is not None:
        metadata["annotations"][INDEX] = str(index)
    if failures is not None:
        metadata["annotations"]["batch.kubernetes.io/job-index-failure-count"] = str(failures)
    if tracked:
        metadata["finalizers"] = [FINALIZER]
    if deleted:
        metadata["deletionTimestamp"] = timestamp(NOW)
    conditions = []
    if ready:
        conditions.append(
            {"type": "Ready", "status": "True", "lastTransitionTime": timestamp(created)}
        )
    if disrupted:
        conditions.append({"type": "DisruptionTarget", "status": "True", "reason": disrupted})
    container: Object = {"name": "main", "state": {"running": {}}, "restartCount": restarts}
    if code is not None:
        container["state"] = {"terminated": {"exitCode": code, "finishedAt": timestamp(ended)}}
    return {
        "metadata": metadata,
        "spec": {"nodeName": "n"} if bound else {},
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": [container]},
    }
