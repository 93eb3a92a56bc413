"""What admission adds to pods: the flavors' node labels and tolerations, Kueue's labels, and what checks ask for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from makeway.kinds.metadata import (
    CLUSTER_QUEUE,
    LOCAL_QUEUE,
    PODSET,
    WORKLOAD,
    Json,
    Object,
    name,
    spec,
    status,
)
from makeway.kube import standing

_DNS_LABEL: Final = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")


class CannotStart(Exception):
    """Two sources ask for different values of one key: the workload can never start so."""


def pod_update(workload: Json, pod_set: str, flavor: Callable[[str], Json | None]) -> Object:
    """Labels, annotations, nodeSelector and tolerations for the pods of one set."""
    update: Object = {
        "labels": _labels(workload, pod_set),
        "annotations": {WORKLOAD: name(workload)},
        "nodeSelector": {},
        "tolerations": [],
    }
    given = standing.assignments(workload).get(pod_set) or {}
    for flavor_name in dict.fromkeys((given.get("flavors") or {}).values()):
        found = spec(flavor(flavor_name) or {})
        _merge(
            update,
            {"nodeSelector": found.get("nodeLabels"), "tolerations": found.get("tolerations")},
        )
    for check in status(workload).get("admissionChecks") or []:
        for asked in check.get("podSetUpdates") or []:
            if asked.get("name") == pod_set:
                _merge(update, asked)
    return update


def _labels(workload: Json, pod_set: str) -> dict[str, str]:
    found = {PODSET: pod_set, LOCAL_QUEUE: str(spec(workload).get("queueName") or "")}
    queue = standing.cluster_queue(workload)
    if _DNS_LABEL.match(queue):
        found[CLUSTER_QUEUE] = queue
    return found


def _merge(update: Object, more: Json) -> None:
    for field in ("labels", "annotations", "nodeSelector"):
        for key, value in (more.get(field) or {}).items():
            if update[field].get(key, value) != value:
                raise CannotStart(f"{field}: {key} is {update[field][key]} and {value}")
            update[field][key] = value
    for toleration in more.get("tolerations") or []:
        if toleration not in update["tolerations"]:
            update["tolerations"].append(toleration)


def conflicts(update: Json, template_metadata: Json, template_spec: Json) -> str:
    """Why a template cannot take this update; empty when it can."""
    present = {
        "labels": template_metadata.get("labels") or {},
        "annotations": template_metadata.get("annotations") or {},
        "nodeSelector": template_spec.get("nodeSelector") or {},
    }
    for field, values in present.items():
        for key, value in (update.get(field) or {}).items():
            if key.startswith("kueue.x-k8s.io/"):
                continue
            if values.get(key, value) != value:
                return (
                    f"{field}: {key} is {values[key]} in the template and {value} in the admission"
                )
    return ""
