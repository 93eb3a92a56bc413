"""Runtime classes: what running under one costs a pod, and where it may run."""

from __future__ import annotations

from makeway.kinds.serving.kind import Context
from makeway.kinds.serving.quantity import canonical_map
from makeway.kinds.serving.refusal import Obj, Refusal, forbidden

RUNTIME_CLASSES = "runtimeclasses.node.k8s.io"


def admit_runtime(pod: Obj, context: Context) -> None:
    """The overhead of its runtime class, and the nodes and tolerations that it names."""
    spec = pod["spec"]
    named = spec.get("runtimeClassName")
    found = context.lookup.get(RUNTIME_CLASSES, "", named) if named else None
    if named and found is None:
        raise _refused(pod, f'pod rejected: RuntimeClass "{named}" not found')
    costs = ((found or {}).get("overhead") or {}).get("podFixed") or {}
    canonical_map(costs)
    if spec.get("overhead") and not costs:
        why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
        raise _refused(pod, why)
    if spec.get("overhead") and spec["overhead"] != costs:
        why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
        raise _refused(pod, why)
    if costs:
        spec["overhead"] = costs
    _place(pod, (found or {}).get("scheduling") or {})


def _place(pod: Obj, scheduling: Obj) -> None:
    spec = pod["spec"]
    for label, value in (scheduling.get("nodeSelector") or {}).items():
        chosen = spec.setdefault("nodeSelector", {}).setdefault(label, value)
        if chosen != value:
            raise _refused(
                pod,
                f"conflict: runtimeClass.scheduling.nodeSelector[{label}] = {value};"
                f" pod.spec.nodeSelector[{label}] = {chosen}",
            )
    tolerations = spec.setdefault("tolerations", [])
    tolerations += [t for t in scheduling.get("tolerations") or [] if t not in tolerations]


def _refused(pod: Obj, why: str) -> Refusal:
    return forbidden("pods", "", pod["metadata"].get("name", ""), why)
