"""What every API object has: its name, its labels, its owners, its times.

Objects are JSON as the API writes it. The helpers here never raise on what is missing, because an object from the API
may lack any optional field.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

Object = dict[str, Any]
Json = Mapping[str, Any]

QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS: Final = "kueue.x-k8s.io/priority-class"
MAX_EXEC_TIME: Final = "kueue.x-k8s.io/max-exec-time-seconds"
MIN_PARALLELISM: Final = "kueue.x-k8s.io/job-min-parallelism"
COMPLETIONS_EQUAL_PARALLELISM: Final = "kueue.x-k8s.io/job-completions-equal-parallelism"
PREBUILT_WORKLOAD: Final = "kueue.x-k8s.io/prebuilt-workload-name"
ADMISSION_GATED_BY: Final = "kueue.x-k8s.io/admission-gated-by"
STOPPING: Final = "kueue.x-k8s.io/stopping"
WORKLOAD: Final = "kueue.x-k8s.io/workload"
PODSET: Final = "kueue.x-k8s.io/podset"
LOCAL_QUEUE: Final = "kueue.x-k8s.io/local-queue-name"
CLUSTER_QUEUE: Final = "kueue.x-k8s.io/cluster-queue-name"
JOB_UID: Final = "kueue.x-k8s.io/job-uid"
MANAGED: Final = "kueue.x-k8s.io/managed"
ADMISSION_GATE: Final = "kueue.x-k8s.io/admission"
TOPOLOGY_GATE: Final = "kueue.x-k8s.io/topology"
RESOURCE_IN_USE: Final = "kueue.x-k8s.io/resource-in-use"
GROUP_NAME: Final = "kueue.x-k8s.io/pod-group-name"
GROUP_TOTAL: Final = "kueue.x-k8s.io/pod-group-total-count"
GROUP_FAST_ADMISSION: Final = "kueue.x-k8s.io/pod-group-fast-admission"
GROUP_SERVING: Final = "kueue.x-k8s.io/pod-group-serving"
GROUP_INDEX_LABEL: Final = "kueue.x-k8s.io/pod-group-pod-index-label"
RETRIABLE_IN_GROUP: Final = "kueue.x-k8s.io/retriable-in-group"
ROLE_HASH: Final = "kueue.x-k8s.io/role-hash"
SUSPENDING_PARENT: Final = "kueue.x-k8s.io/pod-suspending-parent"
# Parents that have a Workload for each group of their pods: what stands on a pod is for readers, and makes no group.
GROUPING_PARENTS: Final = ("statefulset", "leaderworkerset")
IS_GROUP_WORKLOAD: Final = "kueue.x-k8s.io/is-group-workload"
JOB_OWNER_KIND: Final = "kueue.x-k8s.io/job-owner-gvk"
JOB_OWNER_NAME: Final = "kueue.x-k8s.io/job-owner-name"


def metadata(obj: Json) -> Json:
    found: Json = obj.get("metadata") or {}
    return found


def name(obj: Json) -> str:
    return str(metadata(obj).get("name") or "")


def namespace(obj: Json) -> str:
    return str(metadata(obj).get("namespace") or "")


def key(obj: Json) -> str:
    """`namespace/name`, or the name alone for what lives in no namespace."""
    space = namespace(obj)
    return f"{space}/{name(obj)}" if space else name(obj)


def uid(obj: Json) -> str:
    return str(metadata(obj).get("uid") or "")


def labels(obj: Json) -> dict[str, str]:
    return metadata(obj).get("labels") or {}


def annotations_of(obj: Json) -> dict[str, str]:
    return metadata(obj).get("annotations") or {}


def finalizers(obj: Json) -> list[str]:
    return metadata(obj).get("finalizers") or []


def spec(obj: Json) -> Json:
    found: Json = obj.get("spec") or {}
    return found


def status(obj: Json) -> Json:
    found: Json = obj.get("status") or {}
    return found


def terminating(obj: Json) -> bool:
    return bool(metadata(obj).get("deletionTimestamp"))


def created_at(obj: Json) -> float:
    return seconds(metadata(obj).get("creationTimestamp")) or 0.0


def seconds(text: str | None) -> float | None:
    """An RFC 3339 time as seconds since the epoch; None for no time, or for one nobody can read."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def owners(obj: Json) -> list[Object]:
    return metadata(obj).get("ownerReferences") or []


def controller(obj: Json) -> Object | None:
    """The one owner that manages this object, if any."""
    return next((owner for owner in owners(obj) if owner.get("controller")), None)


def reference(obj: Json, api_version: str = "", kind: str = "") -> Object:
    """How events and owner references name this object."""
    return {
        "apiVersion": api_version or obj.get("apiVersion", ""),
        "kind": kind or obj.get("kind", ""),
        "namespace": namespace(obj),
        "name": name(obj),
        "uid": uid(obj),
    }


def group_of(api_version: str) -> str:
    return api_version.split("/", 1)[0] if "/" in api_version else ""


def integer(text: object) -> int | None:
    """A whole number as a label or field writes it; None when it is none."""
    try:
        return int(str(text))
    except ValueError:
        return None
