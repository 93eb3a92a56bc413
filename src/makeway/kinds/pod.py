"""v1 Pod: one that exists, as the engine sees it, and what Kueue's users know of pods that queue by themselves.

Every pod belongs to a workload: to the Workload object that admitted it, to its gang, or to itself.
"""

from __future__ import annotations

from typing import Final

import msgspec

from makeway.control.durations import duration
from makeway.kinds import composing, conditions
from makeway.kinds.metadata import (
    ADMISSION_GATE,
    GROUP_NAME,
    GROUPING_PARENTS,
    MANAGED,
    QUEUE_NAME,
    SUSPENDING_PARENT,
    TOPOLOGY_GATE,
    WORKLOAD,
    Json,
    Object,
    annotations_of,
    controller,
    created_at,
    key,
    labels,
    metadata,
    name,
    namespace,
    seconds,
    spec,
    status,
    uid,
)
from makeway.kinds.nearness import topology_request
from makeway.kinds.pods import read_shape
from makeway.kinds.promises import CHECKPOINT_ON_TERM, PREFIX, checkpoint
from makeway.model.node import NodeName
from makeway.model.workload import (
    SAVE_MARGIN_S,
    Pod,
    PodId,
    PodPhase,
    PodSet,
    PodShape,
    Workload,
    WorkloadId,
)

API_VERSION: Final = "v1"
KIND: Final = "Pod"
DEFAULT_SCHEDULER: Final = "default-scheduler"
GATES: Final = (ADMISSION_GATE, TOPOLOGY_GATE)
DEFAULT_GRACE_S: Final = 30.0
POD_INDEX: Final = "kueue.x-k8s.io/pod-group-pod-index"

_PROTECTED: Final = {
    ("scheduling.koordinator.sh/disable-preemptible", "true"),
    ("quota.scheduling.koordinator.sh/preemptible", "false"),
}

LONGEST_WARMUP_S: Final = 900.0


def pod_shape(pod: Json) -> PodShape:
    """What it asks for. Where it is, is no part of that: pods of one template are alike wherever they run."""
    asked = {**spec(pod), "nodeName": None}
    return read_shape(pod, asked, path="spec", namespace=namespace(pod), labels=labels(pod))


def scheduler_name(pod: Json) -> str:
    return str(spec(pod).get("schedulerName") or DEFAULT_SCHEDULER)


def phase(pod: Json) -> PodPhase:
    said: PodPhase = status(pod).get("phase") or "Pending"
    return said if said in ("Pending", "Running", "Succeeded", "Failed") else "Pending"


def ended(pod: Json) -> bool:
    return phase(pod) in ("Succeeded", "Failed")


def gates(pod: Json) -> list[str]:
    return [gate["name"] for gate in spec(pod).get("schedulingGates") or []]


def gated_for_admission(pod: Json) -> bool:
    return ADMISSION_GATE in gates(pod)


def ready(pod: Json) -> bool:
    return conditions.is_true(pod, "Ready")


def priority(pod: Json) -> int:
    return int(spec(pod).get("priority") or 0)


def may_preempt(pod: Json) -> bool:
    return spec(pod).get("preemptionPolicy") != "Never"


def grace_s(pod: Json) -> float:
    said = spec(pod).get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE_S if said is None else float(said)


def notice_s(pod: Json, longest: float) -> int | None:
    """The grace to ask for, where a pod needs longer to save than its own grace; None leaves it as it is."""
    saving = duration(annotations_of(pod).get(CHECKPOINT_ON_TERM))
    if saving is None:
        return None
    needed = min(saving + SAVE_MARGIN_S, longest)
    return int(needed) if needed > grace_s(pod) else None


def queued(pod: Json) -> bool:
    """Pods that queue by themselves or in a group; pods of a queued job do not carry this label."""
    return labels(pod).get(MANAGED) == "true"


def queue_name(pod: Json) -> str:
    return labels(pod).get(QUEUE_NAME, "")


def group_name(pod: Json) -> str:
    """The Kueue pod group it belongs to by itself; the annotation is the newer form."""
    if annotations_of(pod).get(SUSPENDING_PARENT) in GROUPING_PARENTS:
        return ""
    return annotations_of(pod).get(GROUP_NAME) or labels(pod).get(GROUP_NAME, "")


def protected(pod: Json) -> str:
    """Koordinator's exemption labels, as a sentence; empty when there is none."""
    for label, value in _PROTECTED:
        if labels(pod).get(label) == value:
            return f"the label {label}={value} exempts it"
    return ""


def workload_of_queued(pod: Json) -> str:
    """The name of the Workload that a queued pod waits for or runs under."""
    return (
        annotations_of(pod).get(WORKLOAD)
        or group_name(pod)
        or composing.workload_name(KIND, "", name(pod), uid(pod))
    )


def started_at(pod: Json) -> float | None:
    """When its oldest container began to work; nothing before that can be lost."""
    states = [c.get("state") or {} for c in status(pod).get("containerStatuses") or []]
    times = [
        seconds((s.get("running") or s.get("terminated") or {}).get("startedAt")) for s in states
    ]
    known = [time for time in times if time is not None]
    if known:
        return min(known)
    return seconds(status(pod).get("startTime")) if phase(pod) == "Running" else None


def warmup_s(pod: Json) -> float | None:
    """How long it took from its start until it could work; only a probe tells that it does more than run."""
    containers = spec(pod).get("containers") or []
    if not any(c.get("readinessProbe") or c.get("startupProbe") for c in containers):
        return None
    ready = conditions.find(pod, "Ready") or {}
    since = seconds(ready.get("lastTransitionTime"))
    start = seconds(status(pod).get("startTime"))
    if ready.get("status") != "True" or since is None or start is None:
        return None
    took = since - start
    # What took longer was rather ready before, and is so again.
    return took if 0 <= took <= LONGEST_WARMUP_S else None


def pod_from(pod: Json, workload: WorkloadId, pod_set: str, shape: PodShape | None = None) -> Pod:
    """`shape`, where it was read before."""
    node = spec(pod).get("nodeName")
    nominated = status(pod).get("nominatedNodeName")
    own = {k: v for k, v in annotations_of(pod).items() if k.startswith(PREFIX)}
    return Pod(
        id=PodId(key(pod)),
        uid=uid(pod),
        workload=workload,
        pod_set=pod_set,
        shape=pod_shape(pod) if shape is None else shape,
        priority=priority(pod),
        phase=phase(pod),
        node=NodeName(node) if node else None,
        nominated=NodeName(nominated) if nominated else None,
        gated=bool(gates(pod)),
        created_at=created_at(pod),
        started_at=started_at(pod),
        gone_by=seconds(metadata(pod).get("deletionTimestamp")),
        disrupted=conditions.is_true(pod, "DisruptionTarget"),
        grace_s=grace_s(pod),
        checkpoint=checkpoint(own) if own else None,
        owned=controller(pod) is not None,
        warmup_s=warmup_s(pod),
    )


def lone_workload(pod: Json, *, ours: bool, shape: PodShape | None = None) -> Workload:
    """A pod without queue and gang is a workload of its own."""
    owner = controller(pod) or {}
    waiting = gates(pod)
    return Workload(
        id=WorkloadId(key(pod)),
        uid=uid(pod),
        owner_uid=str(owner.get("uid") or uid(pod)),
        owner=f"Pod/{key(pod)}",
        needs="nodes",
        priority=priority(pod),
        preempts=may_preempt(pod),
        created_at=created_at(pod),
        pod_sets=(PodSet(name="main", count=1, shape=pod_shape(pod) if shape is None else shape),),
        checkpoint=checkpoint(annotations_of(pod)),
        protected=protected(pod),
        foreign=not ours,
        finished=ended(pod),
        held_back=f"its scheduling gates are closed: {', '.join(waiting)}" if waiting else "",
    )


def pod_sets(pod: Json) -> list[Object]:
    """The pod set of a pod that queues by itself."""
    return [
        {
            "name": "main",
            "count": 1,
            "template": composing.template_from({}, template_spec(pod), keep_labels=False),
            "topologyRequest": topology_request(annotations_of(pod), {"podIndexLabel": POD_INDEX}),
        }
    ]


def template_spec(pod: Json) -> Object:
    """Its spec as a template: as it was sent in, gates and all, without what binding put into it."""
    return {k: v for k, v in spec(pod).items() if k != "nodeName"}


def start_patch(pod: Json, update: Json) -> Object:
    """Open the gate, with what admission adds; a JSON merge patch."""
    patch: Object = {
        "metadata": {
            "labels": dict(update.get("labels") or {}),
            "annotations": dict(update.get("annotations") or {}),
        },
        "spec": {"schedulingGates": [{"name": g} for g in gates(pod) if g not in GATES] or None},
    }
    if update.get("nodeSelector"):
        patch["spec"]["nodeSelector"] = dict(update["nodeSelector"])
    if update.get("tolerations"):
        present = spec(pod).get("tolerations") or []
        patch["spec"]["tolerations"] = present + [
            t for t in update["tolerations"] if t not in present
        ]
    return patch


class GroupKey(msgspec.Struct, frozen=True):
    """A Kueue pod group."""

    namespace: str
    name: str


def group_of(pod: Json) -> GroupKey | None:
    group = group_name(pod)
    return GroupKey(namespace(pod), group) if group and queued(pod) else None
