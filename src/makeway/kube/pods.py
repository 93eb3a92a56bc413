"""Pods that queue: one by one, or in a group that is admitted as a whole.

A gate keeps a queued pod from being placed until its Workload is admitted. To stop a pod is to delete it: nobody here makes
pods anew. A pod that queued alone is then gone, with its Workload. The pods of a group stay until others took their place, so that
the group can go on; unless its pods say that it cannot (`retriable-in-group: "false"`), and then the group is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from makeway.kinds import composing, conditions, pod, podgroup
from makeway.kinds.conditions import Conditions
from makeway.kinds.metadata import (
    MANAGED,
    Json,
    Object,
    created_at,
    finalizers,
    key,
    metadata,
    name,
    owners,
    seconds,
    spec,
    terminating,
    uid,
)
from makeway.kube import standing, starting
from makeway.kube.actions import (
    Action,
    Create,
    Patch,
    Steps,
    Tell,
    delete_object,
    drop_finalizer,
    free,
    patch_object,
    patch_status,
    tell,
)
from makeway.kube.events import POD_CONTROLLER
from makeway.kube.jobs import standing_still
from makeway.kube.world import World


def _tell(one: Json, reason: str, note: str, *, warning: bool = False, once: bool = False) -> Tell:
    return tell("Pod", one, POD_CONTROLLER, reason, note, warning=warning, once=once)


# A pod that queues by itself


def reconcile_one(one: Json, world: World, now: float) -> Steps:
    steps = Steps()
    workload = world.copy.get(
        "Workload", f"{metadata(one).get('namespace')}/{pod.workload_of_queued(one)}"
    )
    if workload is not None and not any(o.get("uid") == uid(one) for o in owners(workload)):
        workload = None
    if pod.ended(one) or terminating(one):
        _end_one(one, workload, steps, now)
    elif workload is None:
        _compose([one], pod.pod_sets(one), "", world, steps)
    elif terminating(workload):
        steps.actions += stop(one, "WorkloadDeleted", "Workload is deleted", world, now)
    elif standing.evicted(workload):
        reason = f"WorkloadEvictedDueTo{conditions.reason(workload, standing.EVICTED)}"
        message = conditions.message(workload, standing.EVICTED)
        steps.actions += stop(one, reason, message, world, now)
    else:
        _follow([one], workload, world, steps, now)
    return steps


def _end_one(one: Json, workload: Json | None, steps: Steps, now: float) -> None:
    """Over or on its way out: its quota is free at once, and nothing holds the two objects any more."""
    if workload is not None and not standing.finished(workload):
        if pod.ended(one) and not terminating(one):
            reason = "Succeeded" if pod.phase(one) == "Succeeded" else "Failed"
            note = f"Workload '{key(workload)}' is declared finished"
            change = standing.finish(workload, reason, "", now)
            steps.actions.append(
                patch_status("Workload", workload, change, _tell(one, "FinishedWorkload", note))
            )
        else:
            steps.actions.append(patch_status("Workload", workload, _gone(workload, now)))
        return
    steps.actions += let_go(one)
    if workload is not None:
        steps.actions += free("Workload", workload)


def _gone(workload: Json, now: float) -> Object:
    """A pod that queued alone does not come back: its Workload is released and over in one step."""
    change = standing.release(workload, now, comes_back=False) if standing.evicted(workload) else {}
    released = {**workload, "status": {**(workload.get("status") or {}), **change}}
    note = "The workload's owner no longer exists"
    return change | standing.finish(released, "OwnerNotFound", note, now)


def let_go(one: Json) -> list[Action]:
    """Take our finalizer off a pod."""
    return drop_finalizer("Pod", one, MANAGED)


def stop(one: Json, reason: str, message: str, world: World, now: float) -> list[Action]:
    """Tell a pod why, then delete it, with time to save."""
    if terminating(one) or pod.ended(one):
        return []
    marked = Conditions(one, now)
    actions: list[Action] = []
    if marked.set("TerminationTarget", True, reason, message):
        mine = [c for c in marked.items if c["type"] == "TerminationTarget"]
        body = {"status": {"conditions": mine}}
        actions.append(
            Patch(
                kind="Pod",
                namespace=str(metadata(one).get("namespace")),
                name=name(one),
                body=body,
                style="strategic",
                subresource="status",
            )
        )
    stopped = _tell(one, "Stopped", message)
    actions.append(delete_object("Pod", one, stopped, grace_s=notice_s(one, world)))
    return actions


def notice_s(one: Json, world: World) -> int | None:
    """As long as the configuration allows."""
    return pod.notice_s(one, world.config.length(world.config.makeway.max_notice, 600.0))


def _compose(
    pods: Sequence[Json], pod_sets: list[Object], group: str, world: World, steps: Steps
) -> None:
    first = pods[0]
    try:
        priority = composing.resolve_priority(first, pod_sets, world.classes())
    except composing.UnknownClass as unknown:
        note = str(unknown)
        steps.actions.append(_tell(first, f"{unknown.kind}NotFound", note, warning=True, once=True))
        return
    job = {"apiVersion": pod.API_VERSION, "kind": pod.KIND, **first}
    if group:
        members = [{"apiVersion": pod.API_VERSION, "kind": pod.KIND, **one} for one in pods]
        workload = podgroup.compose_group(group, members, pod_sets, priority)
    else:
        workload = composing.compose(job, pod_sets, priority)
    made = _tell(pods[-1], "CreatedWorkload", f"Created Workload: {key(workload)}")
    steps.actions.append(Create(kind="Workload", obj=workload, then=(made,)))


def _follow(pods: Sequence[Json], workload: Json, world: World, steps: Steps, now: float) -> None:
    """In step with an undisturbed Workload: open gates, or stop what runs without admission."""
    if not standing.admitted(workload):
        for one in pods:
            if not pod.gated_for_admission(one) and spec(one).get("nodeName"):
                steps.actions += stop(
                    one, "NotAdmitted", "Not admitted by cluster queue", world, now
                )
        if world.config.waits_for_pods:
            standing_still(workload, steps, now)
        return
    for one in pods:
        if pod.gated_for_admission(one) and not terminating(one) and not pod.ended(one):
            _open_gate(one, workload, world, steps, now)
    status: Object = {}
    if world.config.waits_for_pods:
        status = standing.pods_ready(workload, _all_ready(pods, workload), now)
    if len(pods) > 1 or workload_is_group(workload):
        status |= standing.reclaimable(workload, _succeeded_by_role(pods))
    if status:
        steps.actions.append(patch_status("Workload", workload, status))


def workload_is_group(workload: Json) -> bool:
    return not any(owner.get("controller") for owner in owners(workload))


def _all_ready(pods: Iterable[Json], workload: Json) -> bool:
    wanted = sum(int(s.get("count", 1)) for s in spec(workload).get("podSets") or [])
    return sum(pod.ready(one) for one in pods) >= wanted


def _succeeded_by_role(pods: Iterable[Json]) -> list[tuple[str, int]]:
    if podgroup.serving(pods := list(pods)):
        return []
    counts: dict[str, int] = {}
    for one in pods:
        if pod.phase(one) == "Succeeded":
            role = podgroup.role_hash(one)
            counts[role] = counts.get(role, 0) + 1
    return sorted(counts.items())


def _open_gate(one: Json, workload: Json, world: World, steps: Steps, now: float) -> None:
    sets = [s["name"] for s in spec(workload).get("podSets") or []]
    role = podgroup.role_hash(one) if workload_is_group(workload) else "main"
    pod_set = role if role in sets else sets[0]
    try:
        update = starting.pod_update(workload, pod_set, world.flavor)
        trouble = starting.conflicts(update, metadata(one), spec(one))
    except starting.CannotStart as conflict:
        update, trouble = {}, str(conflict)
    if trouble:
        change = standing.finish(workload, "FailedToStart", trouble, now)
        steps.actions.append(patch_status("Workload", workload, change))
        return
    note = f"Admitted by clusterQueue {standing.cluster_queue(workload)}"
    patch = pod.start_patch(one, update)
    steps.actions.append(patch_object("Pod", one, patch, _tell(one, "Started", note)))


# A group


def reconcile_group(namespace: str, group: str, world: World, now: float) -> Steps:
    steps = Steps()
    pods = sorted(world.group_pods(namespace, group), key=lambda p: (created_at(p), name(p)))
    workload = world.copy.get("Workload", f"{namespace}/{group}")
    if not pods:
        return steps
    if workload is None:
        _compose_group(group, pods, world, steps)
    elif standing.finished(workload):
        _close_group(pods, workload, steps)
    elif terminating(workload):
        _stop_all(pods, "WorkloadDeleted", "Workload is deleted", world, steps, now)
        if not steps.actions:
            steps.actions += free("Workload", workload)
    elif (over := _outcome(pods, workload, now)) is not None:
        note = f"Workload '{key(workload)}' is declared finished"
        change = standing.finish(workload, "Succeeded", over, now)
        steps.actions.append(
            patch_status("Workload", workload, change, _tell(pods[0], "FinishedWorkload", note))
        )
    elif _remove_excess(pods, workload, steps) or _adopt(pods, workload, steps):
        pass
    elif standing.evicted(workload):
        _evict_group(pods, workload, world, steps, now)
    else:
        _keep_group(pods, workload, world, steps, now)
    return steps


def _compose_group(group: str, pods: list[Object], world: World, steps: Steps) -> None:
    living = [one for one in pods if podgroup.runnable(one)]
    total = podgroup.total_count(pods)
    if not living:
        # Whoever was left of a group that is over.
        for one in pods:
            steps.actions += let_go(one)
        return
    fast = podgroup.fast_admission(living)
    if len(living) < total and not fast:
        note = f"'{group}' group has fewer runnable pods than expected"
        steps.actions.append(_tell(living[-1], "ErrWorkloadCompose", note, warning=True, once=True))
        return
    members, excess = _kept(living, total or len(living))
    for one in excess:
        steps.actions += _delete_excess(one)
    pod_sets = podgroup.group_pod_sets(members, total=total if fast else 0)
    if len(pod_sets) > podgroup.MAX_ROLES:
        note = f"pod group can't include more than {podgroup.MAX_ROLES} roles"
        steps.actions.append(_tell(living[-1], "ErrWorkloadCompose", note, warning=True, once=True))
        return
    _compose(members, pod_sets, group, world, steps)


def _held(one: Json) -> bool:
    """By our finalizer."""
    return MANAGED in finalizers(one)


def _kept(pods: list[Object], count: int) -> tuple[list[Object], list[Object]]:
    """As many as the group said it has, and who is too many: who is not ours goes first, then who has not started, then the newest."""
    ranked = sorted(
        pods,
        key=lambda one: (
            not _held(one),
            pod.gated_for_admission(one),
            created_at(one),
            name(one),
        ),
    )
    return ranked[:count], ranked[count:]


def _remove_excess(pods: list[Object], workload: Json, steps: Steps) -> bool:
    """Nobody runs beside the pods for which quota was asked."""
    for pod_set in spec(workload).get("podSets") or []:
        members = [
            one
            for one in pods
            if podgroup.runnable(one) and podgroup.role_hash(one) == pod_set["name"]
        ]
        for one in _kept(members, int(pod_set.get("count", 1)))[1]:
            steps.actions += _delete_excess(one)
    return bool(steps.actions)


def _delete_excess(one: Json) -> list[Action]:
    told = _tell(one, "ExcessPodDeleted", "Excess pod deleted")
    return [*let_go(one), delete_object("Pod", one, told)]


def _close_group(pods: list[Object], workload: Json, steps: Steps) -> None:
    for one in pods:
        steps.actions += let_go(one)
    steps.actions += free("Workload", workload)


def _past_grace(one: Json, now: float) -> bool:
    gone_by = seconds(metadata(one).get("deletionTimestamp"))
    return gone_by is not None and now >= gone_by


def _active(one: Json, now: float) -> bool:
    """Runs, or may still run."""
    return pod.phase(one) == "Running" and not _past_grace(one, now)


def _outcome(pods: list[Object], workload: Json, now: float) -> str | None:
    """The closing message of a group that is over."""
    if podgroup.serving(pods):
        return None
    total = podgroup.total_count(pods) or len(pods)
    succeeded = sum(pod.phase(one) == "Succeeded" for one in pods)
    waiting = any(podgroup.runnable(one) for one in pods)
    dead = not waiting and not any(_active(one, now) for one in pods)
    if succeeded >= total or (dead and not podgroup.retriable(pods)):
        return f"Pods succeeded: {succeeded}/{total}."
    return None


def add_owners(workload: Json, fresh: Sequence[Json], pods: Sequence[Json]) -> Action:
    """A group's Workload lives as long as any of its pods; those that are gone are no owners any more."""
    there = {uid(one) for one in pods}
    kept = [o for o in owners(workload) if o.get("kind") != pod.KIND or o.get("uid") in there]
    added = [
        composing.owner_reference(
            {"apiVersion": pod.API_VERSION, "kind": pod.KIND, **one}, controls=False
        )
        for one in fresh
    ]
    note = f"Added {len(added)} owner reference(s)"
    told = tell("Workload", workload, POD_CONTROLLER, "OwnerReferencesAdded", note)
    return patch_object("Workload", workload, {"metadata": {"ownerReferences": kept + added}}, told)


def _adopt(pods: list[Object], workload: Json, steps: Steps) -> bool:
    """Replacement pods become owners, and for each the oldest pod that it replaces may go."""
    known = {owner.get("uid") for owner in owners(workload)}
    fresh = [one for one in pods if podgroup.runnable(one) and uid(one) not in known]
    living = sum(podgroup.runnable(one) or pod.phase(one) == "Succeeded" for one in pods)
    total = podgroup.total_count(pods)
    replaced = [one for one in pods if not podgroup.runnable(one) and pod.phase(one) != "Succeeded"]
    replaced.sort(key=_held)  # who was let go before has been replaced already
    excess = len(pods) - total if total else 0
    if fresh and living <= (total or living):
        steps.actions.append(add_owners(workload, fresh, pods))
        return True
    for one in replaced[: max(0, excess)]:
        steps.actions += let_go(one)
    return bool(steps.actions)


def _stop_all(
    pods: list[Object], reason: str, message: str, world: World, steps: Steps, now: float
) -> None:
    for one in pods:
        steps.actions += stop(one, reason, message, world, now)


def _evict_group(
    pods: list[Object], workload: Json, world: World, steps: Steps, now: float
) -> None:
    reason = conditions.reason(workload, standing.EVICTED)
    message = conditions.message(workload, standing.EVICTED)
    waiting = [one for one in pods if not pod.gated_for_admission(one)]
    _stop_all(waiting, f"WorkloadEvictedDueTo{reason}", message, world, steps, now)
    if steps.actions:
        return
    running = [one for one in pods if _active(one, now)]
    if running:
        steps.look_again(_last_grace(running))
        return
    change = standing.release(workload, now)
    marked = _replacements(
        {**workload, "status": {**(workload.get("status") or {}), **change}}, pods, now
    )
    steps.actions.append(patch_status("Workload", workload, change | marked))


def _last_grace(pods: Iterable[Json]) -> float | None:
    times = [seconds(metadata(one).get("deletionTimestamp")) for one in pods]
    return max((time for time in times if time is not None), default=None)


def _replacements(workload: Json, pods: list[Object], now: float) -> Object:
    """Whether somebody has to bring pods for those that were lost."""
    changed = Conditions(workload, now)
    total = podgroup.total_count(pods)
    present = sum(podgroup.runnable(one) or pod.phase(one) == "Succeeded" for one in pods)
    if present < total:
        if not conditions.is_true(workload, standing.REPLACEMENT):
            evicted = conditions.is_true(workload, standing.EVICTED)
            reason = conditions.reason(workload, standing.EVICTED) if evicted else "PodsFailed"
            message = (
                conditions.message(workload, standing.EVICTED)
                if evicted
                else "Some Failed pods need replacement"
            )
            changed.set(standing.REPLACEMENT, True, reason, message)
    elif conditions.find(workload, standing.REPLACEMENT) is not None:
        changed.set(standing.REPLACEMENT, False, "PodsReady", "No pods need replacement")
    return changed.patch()


def _keep_group(pods: list[Object], workload: Json, world: World, steps: Steps, now: float) -> None:
    marked = _replacements(workload, pods, now)
    if marked:
        steps.actions.append(patch_status("Workload", workload, marked))
        return
    _follow(pods, workload, world, steps, now)
