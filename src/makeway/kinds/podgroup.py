"""Pods that belong together: Kueue's pod groups, and the gangs of Koordinator, scheduler-plugins and Kubernetes.

A Kueue group queues: its pods become one Workload object with a pod set for each role. A gang does not queue: it is a
workload by itself, made of the pods that name it, with a minimum from its PodGroup object or from the pods' annotations. Gangs
that name each other (`groups`) are one workload, with the sorted names as its id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from makeway.kinds import composing
from makeway.kinds.metadata import (
    GROUP_FAST_ADMISSION,
    GROUP_SERVING,
    GROUP_TOTAL,
    IS_GROUP_WORKLOAD,
    RESOURCE_IN_USE,
    RETRIABLE_IN_GROUP,
    ROLE_HASH,
    Json,
    Object,
    annotations_of,
    created_at,
    integer,
    key,
    labels,
    name,
    namespace,
    spec,
    terminating,
)
from makeway.kinds.nearness import topology_request
from makeway.kinds.pod import (
    POD_INDEX,
    ended,
    gates,
    may_preempt,
    phase,
    pod_shape,
    priority,
    protected,
    template_spec,
)
from makeway.kinds.promises import checkpoint, min_pods
from makeway.model.workload import Gang, PodSet, Workload, WorkloadId

MAX_ROLES: Final = 18

# Which gang a pod belongs to, first match wins.
GANG_LABELS: Final = (
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
    "scheduling.x-k8s.io/pod-group",
)
GANG_NAME: Final = "gang.scheduling.koordinator.sh/name"
MIN_AVAILABLE_LABEL: Final = "pod-group.scheduling.sigs.k8s.io/min-available"
MIN_AVAILABLE: Final = "gang.scheduling.koordinator.sh/min-available"
GROUPS: Final = "gang.scheduling.koordinator.sh/groups"

GangId = str  # "namespace/name"


# Kueue's pod groups


def total_count(pods: Iterable[Json]) -> int:
    """How many pods the group is made of: what its first pod says; 0 when nobody does."""
    for pod in pods:
        said = integer(annotations_of(pod).get(GROUP_TOTAL, ""))
        if said is not None:
            return said
    return 0


def fast_admission(pods: Iterable[Json]) -> bool:
    return any(annotations_of(pod).get(GROUP_FAST_ADMISSION) == "true" for pod in pods)


def serving(pods: Iterable[Json]) -> bool:
    return any(annotations_of(pod).get(GROUP_SERVING) == "true" for pod in pods)


def retriable(pods: Iterable[Json]) -> bool:
    """One pod that says no ends the group when none of its pods is active any more."""
    return not any(annotations_of(pod).get(RETRIABLE_IN_GROUP) == "false" for pod in pods)


def role_hash(pod: Json) -> str:
    """Pods of one role are interchangeable: the same requests, ports and places to run."""
    said = annotations_of(pod).get(ROLE_HASH)
    return said.lower() if said else _hash_of(_shape_for_hash(spec(pod)))


def _hash_of(shape: Object) -> str:
    text = json.dumps(shape, separators=(",", ":"), ensure_ascii=False)
    for char, escaped in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(char, escaped)  # as Go's encoder writes them
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _shape_for_hash(pod_spec: Json) -> Object:
    """The parts of a pod spec that make a role, in the order that gives the hash Kueue's users see."""
    shape = {
        "affinity": pod_spec.get("affinity"),
        "containers": _containers(pod_spec.get("containers")),
        "initContainers": _containers(pod_spec.get("initContainers")),
        "nodeSelector": _sorted(pod_spec.get("nodeSelector")),
        "overhead": _sorted(pod_spec.get("overhead")),
        "priority": pod_spec.get("priority"),
        "resourceClaims": pod_spec.get("resourceClaims"),
        "runtimeClassName": pod_spec.get("runtimeClassName"),
        "tolerations": [_ordered(t, _TOLERATION) for t in pod_spec.get("tolerations") or []]
        or None,
        "topologySpreadConstraints": pod_spec.get("topologySpreadConstraints"),
    }
    return {"spec": shape}


_TOLERATION: Final = ("key", "operator", "value", "effect", "tolerationSeconds")
_PORT: Final = ("name", "hostPort", "containerPort", "protocol", "hostIP")


def _containers(containers: list[Json] | None) -> list[Object] | None:
    shapes: list[Object] = []
    for container in containers or []:
        ports = [_ordered(port, _PORT) for port in container.get("ports") or []] or None
        requests = _sorted((container.get("resources") or {}).get("requests"))
        shapes.append({"ports": ports, "resources": {"requests": requests}})
    return shapes or None


def _ordered(value: Json, fields: tuple[str, ...]) -> Object:
    return {field: value[field] for field in fields if value.get(field) not in (None, "")}


def _sorted(value: Mapping[str, Any] | None) -> Object | None:
    return dict(sorted(value.items())) if value else None


def runnable(pod: Json) -> bool:
    """Not over, and not on its way out while it never ran."""
    return not ended(pod) and not terminating(pod)


def group_pod_sets(pods: Iterable[Json], *, total: int = 0) -> list[Object]:
    """A pod set for each role, sorted by name. `total` above 0: one pod stands for all that are to come."""
    roles: dict[str, list[Json]] = {}
    for pod in pods:
        roles.setdefault(role_hash(pod), []).append(pod)
    if total:
        role, members = next(iter(sorted(roles.items())))
        return [_role_pod_set(role, members[0], total)]
    return [_role_pod_set(role, roles[role][0], len(roles[role])) for role in sorted(roles)]


def _role_pod_set(role: str, pod: Json, count: int) -> Object:
    template = composing.template_from({}, template_spec(pod), keep_labels=False)
    return {
        "name": role,
        "count": count,
        "template": template,
        "topologyRequest": topology_request(annotations_of(pod), {"podIndexLabel": POD_INDEX}),
    }


def compose_group(
    group: str, pods: Sequence[Json], pod_sets: list[Object], wl_priority: composing.Priority
) -> Object:
    """The Workload of a group is named like the group and owned by all of its pods."""
    first = pods[0]
    workload = composing.compose(first, pod_sets, wl_priority, wl_name=group)
    carried = workload["metadata"].get("annotations") or {}
    workload["metadata"] |= {
        "annotations": carried | {IS_GROUP_WORKLOAD: "true"},
        "ownerReferences": [composing.owner_reference(pod, controls=False) for pod in pods],
        "finalizers": [RESOURCE_IN_USE],
    }
    del workload["metadata"]["labels"]  # a group has no single owner to point at
    return workload


# Gangs


def gang_of(pod: Json) -> GangId | None:
    """The gang this pod names, if it is in one."""
    for label in GANG_LABELS:
        if labels(pod).get(label):
            return f"{namespace(pod)}/{labels(pod)[label]}"
    if annotations_of(pod).get(GANG_NAME):
        return f"{namespace(pod)}/{annotations_of(pod)[GANG_NAME]}"
    native = (spec(pod).get("schedulingGroup") or {}).get("podGroupName")
    return f"{namespace(pod)}/{native}" if native else None


class PodGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What a PodGroup object of any of the three APIs says."""

    id: GangId
    uid: str = ""
    minimum: int | None = None  # None: its pods are independent (policy `basic`)
    groups: tuple[GangId, ...] = ()
    priority: int | None = None
    created_at: float = 0.0
    annotations: dict[str, str] = {}


def pod_group_from(obj: Json) -> PodGroup:
    said = spec(obj)
    policy = said.get("schedulingPolicy")
    if policy is not None:  # scheduling.k8s.io
        gang = policy.get("gang")
        minimum = None if gang is None else int(gang.get("minCount") or 1)
    else:
        minimum = int(said.get("minMember") or 1)
    return PodGroup(
        id=key(obj),
        uid=str((obj.get("metadata") or {}).get("uid") or ""),
        minimum=minimum,
        groups=_named_together(annotations_of(obj)),
        priority=said.get("priority"),
        created_at=created_at(obj),
        annotations=annotations_of(obj),
    )


def _named_together(said: Mapping[str, str]) -> tuple[GangId, ...]:
    try:
        names = json.loads(said.get(GROUPS, "[]"))
    except ValueError:
        return ()
    return tuple(str(n) for n in names) if isinstance(names, list) else ()


def workload_id_of_gang(gang: GangId, group: PodGroup | None, pods: Iterable[Json]) -> WorkloadId:
    """Gangs named together share one id."""
    together = group.groups if group is not None else ()
    for pod in pods:
        together = together or _named_together(annotations_of(pod))
    return WorkloadId(",".join(sorted({gang, *together})))


def minimum_of(group: PodGroup | None, pods: Iterable[Json]) -> int:
    """From the PodGroup object, else from what the pods say, else one."""
    if group is not None and group.minimum is not None:
        return group.minimum
    for pod in pods:
        for said in (labels(pod).get(MIN_AVAILABLE_LABEL), annotations_of(pod).get(MIN_AVAILABLE)):
            number = integer(said or "")
            if number is not None:
                return max(number, 1)
    return 1


def says_minimum(pod: Json) -> bool:
    """It brings its gang's minimum along, so that no PodGroup object is needed."""
    return MIN_AVAILABLE_LABEL in labels(pod) or MIN_AVAILABLE in annotations_of(pod)


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One gang of a workload, with the pods that exist of it."""

    gang: GangId
    group: PodGroup | None = None
    pods: tuple[Object, ...] = ()

    @property
    def minimum(self) -> int:
        return minimum_of(self.group, self.pods)


def gang_workload(
    workload: WorkloadId,
    members: list[Member],
    *,
    ours: bool,
    expected: Iterable[GangId] = (),
    one_sort: bool = True,
) -> Workload:
    """Gangs named together, as one workload. `expected` names the gangs that must be there before it can start.

    A minimum that stands in an annotation is about pods of one sort: of several it could not say which.
    """
    pods = [pod for member in members for pod in member.pods]
    alive = [pod for pod in pods if not ended(pod)]
    said = [annotations_of(pod) for pod in pods]
    groups = [member.group for member in members if member.group is not None]
    places = [group.annotations for group in groups] + said
    override = min_pods(*places) if one_sort else None
    minimums = tuple((m.gang, override or m.minimum) for m in members)
    values = [g.priority for g in groups if g.priority is not None] or [priority(p) for p in pods]
    return Workload(
        id=workload,
        uid=groups[0].uid if groups else "",
        owner_uid=groups[0].uid if groups and groups[0].uid else workload,
        owner=f"PodGroup/{workload}",
        needs="nodes",
        priority=min(values, default=0),
        preempts=all(may_preempt(pod) for pod in pods),
        created_at=min((created_at(pod) for pod in pods), default=0.0),
        pod_sets=tuple(_gang_pod_set(member) for member in members if member.pods),
        gang=Gang(minimums=minimums, gives_up_surplus=True),
        checkpoint=checkpoint(*places),
        protected=next((protected(pod) for pod in pods if protected(pod)), ""),
        foreign=not ours,
        finished=bool(pods) and not alive,
        held_back=_incomplete(members, override, expected),
    )


def whole_workload(
    workload: WorkloadId, members: list[Member], *, owner: str, top_owner: str, ours: bool
) -> Workload:
    """Pods of one owner that knows how many there are: nobody is more than it needs."""
    found = gang_workload(workload, members, ours=ours, one_sort=len(members) == 1)
    gang = msgspec.structs.replace(found.gang or Gang(), gives_up_surplus=False)
    return msgspec.structs.replace(found, owner=owner, top_owner=top_owner, gang=gang)


def _gang_pod_set(member: Member) -> PodSet:
    alive = [pod for pod in member.pods if not ended(pod)] or list(member.pods)
    return PodSet(name=member.gang, count=len(alive), shape=pod_shape(alive[0]), gang=member.gang)


def _incomplete(members: list[Member], override: int | None, expected: Iterable[GangId]) -> str:
    absent = sorted(set(expected) - {member.gang for member in members})
    if absent:
        return f"gang {absent[0]} that it is named together with does not exist yet"
    for member in members:
        if member.group is None and not any(says_minimum(p) for p in member.pods):
            return f"its PodGroup {member.gang} does not exist yet"
        needed = override or member.minimum
        # A pod that succeeded has done its part; one on its way out will not come back.
        present = [p for p in member.pods if phase(p) == "Succeeded" or runnable(p)]
        if len(present) < needed:
            return f"{len(present)} of the {needed} pods of gang {member.gang} exist"
        closed = [name(p) for p in present if gates(p)]
        if closed:
            return f"the scheduling gates of {closed[0]} are closed"
    return ""
