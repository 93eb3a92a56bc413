"""Owners whose pods wait at a gate: StatefulSets, and LeaderWorkerSets with a Workload for each of their groups.

They cannot be suspended. Their pods are made at once, with a gate that opens when the Workload is admitted; to stop them is to
delete the pods, and their own controller makes new ones, which wait again. What stands on a pod says which group it is of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from makeway.kinds import composing
from makeway.kinds.metadata import (
    GROUP_FAST_ADMISSION,
    GROUP_INDEX_LABEL,
    GROUP_NAME,
    GROUP_SERVING,
    GROUP_TOTAL,
    IS_GROUP_WORKLOAD,
    JOB_OWNER_KIND,
    JOB_OWNER_NAME,
    MANAGED,
    PREBUILT_WORKLOAD,
    ROLE_HASH,
    Json,
    Object,
    annotations_of,
    controller,
    group_of,
    labels,
    name,
    spec,
    uid,
)
from makeway.kinds.nearness import topology_request
from makeway.kinds.queued import replicas

LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER: Final = "leaderworkerset.sigs.k8s.io/worker-index"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that are admitted as one."""

    workload: str  # the name of the Workload object
    pod_sets: list[Object]
    index: str = ""  # which of its owner's groups


class GatedKind:
    kind: str
    api_version: str
    plural: str
    gang: bool
    parent: str  # the word on its pods' templates that says who stops and starts them
    on_hold = ""  # what its Workload says while no pods are wanted; empty: it is deleted then
    notes: Mapping[str, str] = {}  # on each pod, beside those that say which group it is of

    @property
    def component(self) -> str:
        group = group_of(self.api_version)
        prefix = "" if group == "apps" else f"{group}/"
        return f"{prefix}{self.kind.lower()}-kueue-controller"

    def groups(self, owner: Json) -> list[Group]:
        raise NotImplementedError

    def marks(self, group: Group, pod_set: str) -> Object:
        """What Kueue writes on a pod of a group."""
        total = sum(int(s["count"]) for s in group.pod_sets)
        return {
            "labels": {MANAGED: "true"},
            "annotations": {
                GROUP_NAME: group.workload,
                PREBUILT_WORKLOAD: group.workload,
                GROUP_TOTAL: str(total),
                ROLE_HASH: pod_set,
                **self.notes,
            },
        }

    def workload_notes(self, owner: Json) -> dict[str, str]:
        """What Kueue writes on the Workload: of whom it is, for those who see only the Workload."""
        return {
            IS_GROUP_WORKLOAD: "true",
            JOB_OWNER_KIND: f"{self.api_version}, Kind={self.kind}",
            JOB_OWNER_NAME: name(owner),
        }

    def owner_of(self, pod: Json) -> str:
        """The name of this kind's object that a pod belongs to; empty when it belongs to none."""
        raise NotImplementedError

    def index_of(self, pod: Json) -> str:
        return ""

    def pod_set_of(self, pod: Json, owner: Json) -> str:
        return "main"

    def workload_of(self, pod: Json, owner: Json) -> str:
        raise NotImplementedError

    def _name(self, owner: Json, suffix: str = "") -> str:
        whole = name(owner) + suffix
        return composing.workload_name(self.kind, group_of(self.api_version), whole, uid(owner))


class GatedStatefulSet(GatedKind):
    """Its pods come one after the other, so they cannot wait for each other."""

    kind = "StatefulSet"
    api_version = "apps/v1"
    plural = "statefulsets"
    gang = False
    parent = "statefulset"
    on_hold = "StatefulSet scaled to zero; workload on hold"
    notes: Mapping[str, str] = {
        GROUP_FAST_ADMISSION: "true",
        GROUP_SERVING: "true",
        GROUP_INDEX_LABEL: POD_INDEX,
    }

    def groups(self, owner: Json) -> list[Group]:
        count = replicas(spec(owner))
        if not count:
            return []
        template = spec(owner).get("template") or {}
        pod_set = _pod_set("main", count, template, POD_INDEX, keep_labels=self.gang)
        return [Group(workload=self._name(owner), pod_sets=[pod_set])]

    def owner_of(self, pod: Json) -> str:
        found = controller(pod) or {}
        return str(found.get("name")) if found.get("kind") == self.kind else ""

    def workload_of(self, pod: Json, owner: Json) -> str:
        return self._name(owner)


class GatedLeaderWorkerSet(GatedKind):
    """A leader and its workers are one; each such group comes and goes by itself."""

    kind = "LeaderWorkerSet"
    api_version = "leaderworkerset.x-k8s.io/v1"
    plural = "leaderworkersets"
    gang = True
    parent = "leaderworkerset"

    def groups(self, owner: Json) -> list[Group]:
        return [
            Group(
                workload=self._name(owner, f"-{index}"),
                pod_sets=self._pod_sets(owner),
                index=str(index),
            )
            for index in range(replicas(spec(owner)))
        ]

    def _pod_sets(self, owner: Json) -> list[Object]:
        form = spec(owner).get("leaderWorkerTemplate") or {}
        size = int(form.get("size") or 1)
        worker = form.get("workerTemplate") or {}
        if not form.get("leaderTemplate"):
            return [_pod_set("main", size, worker, LWS_WORKER)]
        found = [_pod_set("leader", 1, form["leaderTemplate"], LWS_WORKER)]
        if size > 1:
            found.append(_pod_set("worker", size - 1, worker, LWS_WORKER))
        return found

    def owner_of(self, pod: Json) -> str:
        return labels(pod).get(LWS_NAME, "")

    def index_of(self, pod: Json) -> str:
        return labels(pod).get(LWS_GROUP, "")

    def pod_set_of(self, pod: Json, owner: Json) -> str:
        if not (spec(owner).get("leaderWorkerTemplate") or {}).get("leaderTemplate"):
            return "main"
        return "leader" if labels(pod).get(LWS_WORKER, "0") == "0" else "worker"

    def workload_of(self, pod: Json, owner: Json) -> str:
        return self._name(owner, f"-{self.index_of(pod)}")


def waits_for_leader(owner: Json) -> bool:
    """Whether a LeaderWorkerSet makes workers only once their leader is ready."""
    return bool(spec(owner).get("startupPolicy") == "LeaderReady")


def _pod_set(
    set_name: str, count: int, template: Json, index_label: str, *, keep_labels: bool = True
) -> Object:
    """Labels matter where all pods are placed together; those that come one by one bring their own."""
    return {
        "name": set_name,
        "count": count,
        "template": composing.template_from(
            template.get("metadata") or {}, spec(template), keep_labels=keep_labels
        ),
        "topologyRequest": topology_request(
            annotations_of(template), {"podIndexLabel": index_label}
        ),
    }


GATED_KINDS: Final[dict[str, GatedKind]] = {
    each.kind: each for each in (GatedStatefulSet(), GatedLeaderWorkerSet())
}
