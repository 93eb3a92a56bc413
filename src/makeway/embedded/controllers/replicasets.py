"""ReplicaSets: as many pods as wanted, no more, no fewer."""

from __future__ import annotations

from makeway.client.resource import PODS, REPLICA_SETS, Object
from makeway.embedded.controllers.plan import (
    Action,
    Create,
    Delete,
    Patch,
    Plan,
    merge_patch,
    plan,
    soonest,
)
from makeway.embedded.objects import (
    active,
    deleted,
    deletion_order,
    name_of,
    namespace_of,
    owned_by,
    phase,
    ready_since,
    status_of,
)

MADE_AT_ONCE = 500


def reconcile(replica_set: Object, pods: list[Object], now: float) -> Plan:
    spec = replica_set["spec"]
    wanted = int(spec.get("replicas", 1))
    running = [pod for pod in pods if active(pod)]
    changes: list[Action] = []
    if not deleted(replica_set):
        missing = wanted - len(running)
        made = [_pod(replica_set) for _ in range(min(max(missing, 0), MADE_AT_ONCE))]
        surplus = deletion_order(running)[: max(-missing, 0)]
        changes = [
            *(Create(PODS, pod, tell=replica_set) for pod in made),
            *(Delete(PODS, pod, tell=replica_set) for pod in surplus),
        ]
    status, again = _status(replica_set, pods, running, now)
    body = merge_patch(status_of(replica_set), status)
    write = [Patch(REPLICA_SETS, replica_set, {"status": body}, "status")] if body else []
    return plan(changes, write, look_again_at=again)


def _status(
    replica_set: Object, pods: list[Object], running: list[Object], now: float
) -> tuple[Object, float | None]:
    patience = float(replica_set["spec"].get("minReadySeconds") or 0)
    since = [seen for pod in running if (seen := ready_since(pod)) is not None]
    available = [seen for seen in since if seen + patience <= now]
    again = soonest(*(seen + patience for seen in since if seen + patience > now))
    labels = (replica_set["spec"]["template"].get("metadata") or {}).get("labels") or {}
    labelled = [
        pod for pod in running if labels.items() <= (pod["metadata"].get("labels") or {}).items()
    ]
    status: Object = {
        "replicas": len(running),
        "fullyLabeledReplicas": len(labelled),
        "readyReplicas": len(since),
        "availableReplicas": len(available),
        "terminatingReplicas": sum(
            deleted(pod) and phase(pod) not in ("Succeeded", "Failed") for pod in pods
        ),
        "observedGeneration": int(replica_set["metadata"].get("generation") or 1),
    }
    for key in ("fullyLabeledReplicas", "readyReplicas", "availableReplicas"):
        if not status[key]:
            del status[key]
    if status_of(replica_set).get("conditions"):
        status["conditions"] = status_of(replica_set)["conditions"]
    return status, again


def _pod(replica_set: Object) -> Object:
    template = replica_set["spec"]["template"]
    metadata = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{name_of(replica_set)}-",
            "namespace": namespace_of(replica_set),
            "labels": dict(metadata.get("labels") or {}),
            "annotations": dict(metadata.get("annotations") or {}),
            "finalizers": list(metadata.get("finalizers") or []),
            "ownerReferences": owned_by(replica_set, "apps/v1", "ReplicaSet"),
        },
        "spec": template["spec"],
    }
