"""What queues say about themselves: whether they are active, how many wait, and what is in use."""

from __future__ import annotations

from collections.abc import Iterable

from makeway.kinds import conditions, localqueue
from makeway.kinds.conditions import Conditions
from makeway.kinds.metadata import (
    RESOURCE_IN_USE,
    Json,
    Object,
    finalizers,
    key,
    name,
    spec,
    status,
    terminating,
)
from makeway.kube import standing
from makeway.kube.actions import (
    Steps,
    free,
    patch_object,
    patch_status,
)
from makeway.kube.world import World
from makeway.model.resources import amount_of, format_amount

Usage = dict[tuple[str, str], int]  # (flavor, resource) -> amount


def reconcile_cluster_queue(queue: Json, world: World, now: float) -> Steps:
    steps = Steps()
    _guard("ClusterQueue", queue, steps)
    reserving = world.copy.by("workloads by cluster queue", name(queue))
    if terminating(queue) and not reserving and RESOURCE_IN_USE in finalizers(queue):
        steps.actions += free("ClusterQueue", queue)
        return steps
    changed = Conditions(queue, now)
    changed.set("Active", *activity(queue, world))
    doors = world.copy.by("local queues by cluster queue", name(queue))
    waiting = [w for door in doors for w in pending(door, world)]
    wanted = _counts(reserving, len(waiting)) | _usage(queue, reserving, with_borrowed=True)
    wanted |= _share("ClusterQueue", queue, world)
    _write("ClusterQueue", queue, changed, wanted, steps)
    return steps


def _guard(kind: str, obj: Json, steps: Steps) -> None:
    """It may only go when nothing uses it any more. The embedded API sees to it on arrival; on a cluster we do."""
    if not terminating(obj) and RESOURCE_IN_USE not in finalizers(obj):
        guarded = [*finalizers(obj), RESOURCE_IN_USE]
        steps.actions.append(patch_object(kind, obj, {"metadata": {"finalizers": guarded}}))


def reconcile_local_queue(queue: Json, world: World, now: float) -> Steps:
    steps = Steps()
    cluster_queue = world.copy.get("ClusterQueue", str(spec(queue).get("clusterQueue") or ""))
    changed = Conditions(queue, now)
    changed.set("Active", *_door_activity(queue, cluster_queue, world))
    reserving = [
        w
        for w in world.copy.by("workloads by local queue", key(queue))
        if standing.has_quota(w) and not standing.finished(w)
    ]
    wanted = _counts(reserving, len(pending(queue, world)))
    if cluster_queue is not None:
        wanted |= _usage(cluster_queue, reserving, with_borrowed=False)
    wanted |= _sample(queue, world)
    _write("LocalQueue", queue, changed, wanted, steps)
    return steps


def reconcile_cohort(cohort: Json, world: World) -> Steps:
    steps = Steps()
    wanted = _share("Cohort", cohort, world)
    if wanted and status(cohort).get("fairSharing") != wanted["fairSharing"]:
        steps.actions.append(patch_status("Cohort", cohort, wanted))
    return steps


def _share(kind: str, obj: Json, world: World) -> Object:
    """Under fair sharing: how much it takes from others, for its weight."""
    found = world.shares.get((kind, name(obj)))
    return {} if found is None else {"fairSharing": {"weightedShare": found}}


def _sample(queue: Json, world: World) -> Object:
    """Under admission fair sharing: what it has used; unless it went on from a sample that no longer stands."""
    found = world.samples.get(key(queue))
    if found is None or localqueue.read(queue).sampled_at != found.since:
        return {}
    written = localqueue.usage_status(found.consumed, sampled_at=found.at, weighted=found.weighted)
    return {"fairSharing": written}


def _write(kind: str, queue: Json, changed: Conditions, wanted: Object, steps: Steps) -> None:
    patch = changed.patch()
    patch |= {field: value for field, value in wanted.items() if status(queue).get(field) != value}
    if patch:
        steps.actions.append(patch_status(kind, queue, patch))


def pending(local_queue: Json, world: World) -> list[Object]:
    """Who waits behind this door; a closed one has nobody waiting, and who lacks pods is not in line."""
    if str(spec(local_queue).get("stopPolicy") or "None") != "None":
        return []
    return [
        w
        for w in world.copy.by("workloads by local queue", key(local_queue))
        if standing.active(w)
        and not standing.has_quota(w)
        and not standing.finished(w)
        and not conditions.is_true(w, standing.REPLACEMENT)
    ]


def activity(queue: Json, world: World) -> tuple[bool, str, str]:
    """Whether a ClusterQueue can admit, and why not."""
    if terminating(queue):
        return False, "Terminating", "Can't admit new workloads; clusterQueue is terminating"
    troubles = list(_troubles(queue, world))
    if not troubles:
        return True, "Ready", "Can admit new workloads"
    parts = ", ".join(part for _, part in troubles)
    return False, troubles[0][0], f"Can't admit new workloads: {parts}."


def _troubles(queue: Json, world: World) -> Iterable[tuple[str, str]]:
    if str(spec(queue).get("stopPolicy") or "None") != "None":
        yield "Stopped", "is stopped"
    flavors = flavor_names(queue)
    absent = [f for f in flavors if world.flavor(f) is None]
    if absent:
        yield "FlavorNotFound", f"references missing ResourceFlavor(s): {','.join(absent)}"
    checks = _check_names(queue)
    unknown = [c for c in checks if world.copy.get("AdmissionCheck", c) is None]
    if unknown:
        yield "AdmissionCheckNotFound", f"references missing AdmissionCheck(s): {','.join(unknown)}"
    asleep = [
        c
        for c in checks
        if (found := world.copy.get("AdmissionCheck", c))
        and not conditions.is_true(found, "Active")
    ]
    if asleep:
        yield "AdmissionCheckInactive", f"references inactive AdmissionCheck(s): {','.join(asleep)}"
    for flavor in flavors:
        topology = spec(world.flavor(flavor) or {}).get("topologyName")
        if topology and world.copy.get("Topology", topology) is None:
            yield "TopologyNotFound", f'there is no Topology "{topology}" for TAS flavor "{flavor}"'
    above = world.cohorts_above(queue)
    if above and above[-1] in above[:-1]:
        circle = " -> ".join(above[above.index(above[-1]) :])
        yield "CohortCycle", f"its cohorts run in a circle ({circle}): change one's spec.parentName"


def _check_names(queue: Json) -> list[str]:
    strategy = (spec(queue).get("admissionChecksStrategy") or {}).get("admissionChecks") or []
    names = [rule["name"] for rule in strategy] + list(spec(queue).get("admissionChecks") or [])
    return sorted(dict.fromkeys(names))


def flavor_names(queue: Json) -> list[str]:
    groups = spec(queue).get("resourceGroups") or []
    return [flavor["name"] for group in groups for flavor in group.get("flavors") or []]


def _door_activity(queue: Json, cluster_queue: Json | None, world: World) -> tuple[bool, str, str]:
    if str(spec(queue).get("stopPolicy") or "None") != "None":
        return False, "Stopped", "LocalQueue is stopped"
    closed = "Can't submit new workloads to clusterQueue"
    if cluster_queue is None:
        return False, "ClusterQueueDoesNotExist", closed
    if not activity(cluster_queue, world)[0]:
        return False, "ClusterQueueIsInactive", closed
    return True, "Ready", "Can submit new workloads to localQueue"


def _counts(reserving: list[Object], waiting: int) -> Object:
    alive = [w for w in reserving if not standing.finished(w)]
    return {
        "pendingWorkloads": waiting,
        "reservingWorkloads": len(alive),
        "admittedWorkloads": sum(standing.admitted(w) for w in alive),
    }


def _usage(queue: Json, reserving: list[Object], *, with_borrowed: bool) -> Object:
    alive = [w for w in reserving if not standing.finished(w)]
    reserved = _summed(alive)
    used = _summed(w for w in alive if standing.admitted(w))
    in_cohort = bool(spec(queue).get("cohortName") or spec(queue).get("cohort"))
    return {
        "flavorsReservation": _flavors(queue, reserved, with_borrowed, in_cohort),
        "flavorsUsage": _flavors(queue, used, with_borrowed, in_cohort),
    }


def _summed(workloads: Iterable[Json]) -> Usage:
    total: Usage = {}
    for workload in workloads:
        done = {r["name"]: int(r["count"]) for r in status(workload).get("reclaimablePods") or []}
        for given in standing.assignments(workload).values():
            count = int(given.get("count") or 0)
            left = max(0, count - done.get(given["name"], 0))
            for resource, quantity in (given.get("resourceUsage") or {}).items():
                flavor = (given.get("flavors") or {}).get(resource)
                if flavor is None:
                    continue
                amount = amount_of(resource, quantity)
                scaled = amount * left // count if count else amount
                total[flavor, resource] = total.get((flavor, resource), 0) + scaled
    return total


def _flavors(queue: Json, usage: Usage, with_borrowed: bool, in_cohort: bool) -> list[Object]:
    found: list[Object] = []
    for group in spec(queue).get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            resources = sorted(flavor.get("resources") or [], key=lambda quota: str(quota["name"]))
            found.append(
                {
                    "name": flavor["name"],
                    "resources": [
                        _resource(flavor["name"], quota, usage, with_borrowed, in_cohort)
                        for quota in resources
                    ],
                }
            )
    return found


def _resource(
    flavor: str, quota: Json, usage: Usage, with_borrowed: bool, in_cohort: bool
) -> Object:
    resource = quota["name"]
    total = usage.get((flavor, resource), 0)
    shown: Object = {"name": resource, "total": format_amount(resource, total)}
    if with_borrowed:
        nominal = amount_of(resource, quota.get("nominalQuota", 0))
        borrowed = max(0, total - nominal) if in_cohort else 0
        shown["borrowed"] = format_amount(resource, borrowed)
    return shown


def reconcile_used(kind: str, obj: Json, world: World) -> Steps:
    """A flavor, a check or a topology that is being deleted stays while somebody names it."""
    steps = Steps()
    _guard(kind, obj, steps)
    if terminating(obj) and name(obj) not in _named(kind, world):
        steps.actions += free(kind, obj)
    return steps


def _named(kind: str, world: World) -> set[str]:
    match kind:
        case "ResourceFlavor":
            return {n for queue in world.copy.all("ClusterQueue") for n in flavor_names(queue)}
        case "AdmissionCheck":
            return {n for queue in world.copy.all("ClusterQueue") for n in _check_names(queue)}
        case _:
            flavors = world.copy.all("ResourceFlavor")
            return {str(spec(flavor).get("topologyName") or "") for flavor in flavors}
