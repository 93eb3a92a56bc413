"""DaemonSets: a pod on every node that its template may run on.

Each pod asks for its node by name, so that a scheduler still counts it and may make room for it. A changed template replaces pods few at a
time; a pod that ended is made anew.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from makeway.client.resource import DAEMON_SETS, PODS, Object
from makeway.embedded.controllers.hashing import short_hash
from makeway.embedded.controllers.making import share_of
from makeway.embedded.controllers.plan import Action, Create, Delete, Patch, Plan, merge_patch, plan
from makeway.embedded.objects import (
    active,
    created_at,
    deleted,
    name_of,
    namespace_of,
    owned_by,
    phase,
    ready,
    status_of,
)
from makeway.kinds.labels import read_node_terms, read_taints, read_tolerations
from makeway.model.selectors import untolerated

REVISION = "controller-revision-hash"
# What nodes in trouble are marked with: the pods that look after a node stay on it.
_TOLERATED = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)


def reconcile(owner: Object, pods: list[Object], nodes: list[Object]) -> Plan:
    revision = short_hash(owner["spec"]["template"])
    wanted = _wanted(owner, nodes)
    by_node: dict[str, list[Object]] = {}
    for pod in pods:
        by_node.setdefault(_node_of(pod), []).append(pod)
    changes = [] if deleted(owner) else _changes(owner, wanted, by_node, revision)
    body = merge_patch(status_of(owner), _status(owner, wanted, by_node, revision))
    write = [Patch(DAEMON_SETS, owner, {"status": body}, "status")] if body else []
    return plan(changes, write)


def _changes(
    owner: Object, wanted: dict[str, None], by_node: dict[str, list[Object]], revision: str
) -> list[Action]:
    going: list[Object] = []
    for node, there in by_node.items():
        alive = sorted((pod for pod in there if active(pod)), key=created_at)
        kept = 1 if node in wanted else 0
        going += alive[kept:]
        going += [p for p in there if phase(p) in ("Succeeded", "Failed") and not deleted(p)]
    # One that is ending still has what the next one needs.
    made = [_pod(owner, node, revision) for node in wanted if not by_node.get(node)]
    if not going and not made:
        going = _outdated(owner, wanted, by_node, revision)
    return [
        *(Delete(PODS, pod, tell=owner) for pod in going),
        *(Create(PODS, pod, tell=owner) for pod in made),
    ]


def _outdated(
    owner: Object, wanted: dict[str, None], by_node: dict[str, list[Object]], revision: str
) -> list[Object]:
    """As many as may be missing at once; those that do not work anyway first."""
    strategy = owner["spec"].get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return []
    current = [pod for node in wanted for pod in by_node.get(node, []) if active(pod)]
    old = [pod for pod in current if _revision(pod) != revision]
    most = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1)
    missing = len(wanted) - sum(ready(pod) for pod in current)
    room = max(share_of(most, len(wanted)), 1) - missing
    unready = [pod for pod in old if not ready(pod)]
    return [*unready, *[pod for pod in old if ready(pod)][: max(room, 0)]]


def _wanted(owner: Object, nodes: list[Object]) -> dict[str, None]:
    """The nodes that its template may run on, in order of their names."""
    suits = _suits(owner["spec"]["template"].get("spec") or {})
    return dict.fromkeys(sorted(name_of(n) for n in nodes if not deleted(n) and suits(n)))


def _suits(spec: Object) -> Callable[[Object], bool]:
    """What the template says is read once, and asked of every node."""
    selector = (spec.get("nodeSelector") or {}).items()
    terms = read_node_terms(_required(spec))
    tolerations = read_tolerations([*(spec.get("tolerations") or []), *_tolerations()])

    def suits(node: Object) -> bool:
        labels = node["metadata"].get("labels") or {}
        if not selector <= labels.items():
            return False
        if terms is not None and not any(term.matches(name_of(node), labels) for term in terms):
            return False
        taints = read_taints((node.get("spec") or {}).get("taints"))
        return untolerated(taints, tolerations) is None

    return suits


def _required(spec: Object) -> Object | None:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    found: Object | None = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return found


def _tolerations() -> list[Object]:
    return [{"key": key, "operator": "Exists", "effect": effect} for key, effect in _TOLERATED]


def _node_of(pod: Object) -> str:
    """Where it is, or where it asks to be."""
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    for term in (_required(pod["spec"]) or {}).get("nodeSelectorTerms") or []:
        for field in term.get("matchFields") or []:
            return str(next(iter(field.get("values") or []), ""))
    return ""


def _revision(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(REVISION) or "")


def _pod(owner: Object, node: str, revision: str) -> Object:
    template = owner["spec"]["template"]
    metadata, spec = template.get("metadata") or {}, copy.deepcopy(template["spec"])
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {
        "nodeSelectorTerms": [{"matchFields": [here]}]
    }
    given = spec.get("tolerations") or []
    spec["tolerations"] = [*given, *(each for each in _tolerations() if each not in given)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{name_of(owner)}-",
            "namespace": namespace_of(owner),
            "labels": {**(metadata.get("labels") or {}), REVISION: revision},
            "annotations": dict(metadata.get("annotations") or {}),
            "ownerReferences": owned_by(owner, "apps/v1", "DaemonSet"),
        },
        "spec": spec,
    }


def _status(
    owner: Object, wanted: dict[str, None], by_node: dict[str, list[Object]], revision: str
) -> Object:
    there = {node: [pod for pod in pods if active(pod)] for node, pods in by_node.items()}
    right = [there[node][0] for node in wanted if there.get(node)]
    well = sum(ready(pod) for pod in right)
    status: Object = {
        "currentNumberScheduled": len(right),
        "desiredNumberScheduled": len(wanted),
        "numberMisscheduled": sum(
            bool(pods) and node not in wanted for node, pods in there.items()
        ),
        "numberReady": well,
        "numberAvailable": well,
        "numberUnavailable": len(wanted) - well,
        "updatedNumberScheduled": sum(_revision(pod) == revision for pod in right),
        "observedGeneration": int(owner["metadata"].get("generation") or 1),
    }
    for field in ("numberAvailable", "numberUnavailable", "updatedNumberScheduled"):
        if not status[field]:
            del status[field]
    if status_of(owner).get("conditions"):
        status["conditions"] = status_of(owner)["conditions"]
    return status
