"""What a PodGroup says about its gang: how far it is, and how many of its pods are where.

The phases are those of Koordinator and scheduler-plugins; Kubernetes' own PodGroup has one condition instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from makeway.control.clock import timestamp
from makeway.kinds import pod, podgroup
from makeway.kinds.conditions import Conditions
from makeway.kinds.metadata import Json, Object, key, spec, status, terminating
from makeway.kube.actions import Patch, Steps, patch_status
from makeway.kube.world import World

ENDED: Final = frozenset({"Finished", "Failed"})
INITIALLY: Final = "PodGroupInitiallyScheduled"


def reconcile(kind: str, group: Json, world: World, now: float) -> Steps:
    steps = Steps()
    pods = world.copy.by("pods by gang", key(group))
    if kind == "PodGroup.k8s.io":
        change = _condition(group, pods, now)
    else:
        change = _progress(group, pods, now)
    if change:
        steps.actions.append(_write(kind, group, change, world))
    return steps


def _write(kind: str, group: Json, change: Object, world: World) -> Patch:
    """Koordinator's own definition has no status subresource: there the object itself is patched."""
    patch = patch_status(kind, group, change)
    if f"{kind}/status" in world.subresources:
        return patch
    return msgspec.structs.replace(patch, subresource="")


def _progress(group: Json, pods: Sequence[Json], now: float) -> Object:
    said = status(group)
    if said.get("phase") in ENDED and pods:
        return {}
    living = [one for one in pods if not terminating(one)]
    counts = {
        "scheduled": sum(bool(spec(one).get("nodeName")) for one in living),
        "running": sum(pod.phase(one) == "Running" for one in living),
        "succeeded": sum(pod.phase(one) == "Succeeded" for one in pods),
        "failed": sum(pod.phase(one) == "Failed" for one in living),
    }
    minimum = podgroup.pod_group_from(group).minimum or 1
    phase = _phase(len(living), minimum, counts)
    wanted: Object = {"phase": phase} | {n: c for n, c in counts.items() if c or said.get(n)}
    if phase not in ("Pending", "PreScheduling") and not said.get("scheduleStartTime"):
        wanted["scheduleStartTime"] = timestamp(now)
    return {field: value for field, value in wanted.items() if said.get(field) != value}


def _phase(present: int, minimum: int, counts: dict[str, int]) -> str:
    running, succeeded, failed = counts["running"], counts["succeeded"], counts["failed"]
    if succeeded >= minimum:
        return "Finished"
    if failed and failed + running + succeeded >= minimum:
        return "Failed"
    if present < minimum:
        return "Pending"
    if counts["scheduled"] < minimum:
        return "Scheduling"
    return "Running" if running + succeeded >= minimum else "Scheduled"


def _condition(group: Json, pods: Sequence[Json], now: float) -> Object:
    """True once the gang had its minimum, and never back."""
    minimum = podgroup.pod_group_from(group).minimum or 1
    bound = sum(bool(spec(one).get("nodeName")) for one in pods)
    changed = Conditions(group, now)
    if changed.is_true(INITIALLY) or not pods:
        return {}
    if bound >= minimum:
        changed.set(
            INITIALLY, True, "Scheduled", "All required pods have been successfully scheduled"
        )
    else:
        changed.set(INITIALLY, False, "Unschedulable", f"{bound} of {minimum} pods have a node")
    return changed.patch()
