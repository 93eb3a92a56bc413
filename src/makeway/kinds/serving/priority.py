"""Priority of a pod: from its class to the numbers that schedulers read."""

from __future__ import annotations

from makeway.kinds.serving.kind import Context
from makeway.kinds.serving.refusal import Obj, forbidden

CLASSES = "priorityclasses.scheduling.k8s.io"


def admit_priority(pod: Obj, context: Context) -> None:
    """Write `spec.priority` and `spec.preemptionPolicy` as the named (or the default) class
    says.
    """
    spec = pod["spec"]
    name = spec.get("priorityClassName") or ""
    if name:
        found = context.lookup.get(CLASSES, "", name)
        if found is None:
            raise _refused(pod, f"no PriorityClass with name {name} was found")
    else:
        found = default_class(context)
        if found is not None:
            spec["priorityClassName"] = found["metadata"]["name"]
    value = int(found.get("value") or 0) if found else 0
    policy = (found or {}).get("preemptionPolicy") or "PreemptLowerPriority"
    given = spec.get("priority")
    if given is not None and given != value:
        raise _refused(
            pod,
            f"the integer value of priority ({given}) must not be provided in pod spec;"
            f" priority admission controller computed {value} from the given PriorityClass name",
        )
    asked = spec.get("preemptionPolicy")
    if asked is not None and asked != policy:
        raise _refused(
            pod,
            f"the string value of PreemptionPolicy ({asked}) must not be provided in pod spec;"
            f" priority admission controller computed {policy} from the given PriorityClass name",
        )
    spec["priority"] = value
    spec["preemptionPolicy"] = policy


def default_class(context: Context) -> Obj | None:
    """The class of who names none; of several, the one with the lowest value."""
    defaults = [found for found in context.lookup.list(CLASSES) if found.get("globalDefault")]
    return min(defaults, key=lambda found: int(found.get("value") or 0), default=None)


def _refused(pod: Obj, why: str) -> Exception:
    return forbidden(
        "pods", "", pod["metadata"].get("name") or pod["metadata"].get("generateName", ""), why
    )
