"""A queued batch Job and its Workload: made, started, stopped, finished, in step with each other.

`reconcile` looks at both as they are and says what to do next. It is called again whenever one of them changes, so each call
takes one step; a restart in the middle of anything goes on with the next.
"""

from __future__ import annotations

from typing import Final

from makeway.kinds import composing, conditions, job
from makeway.kinds.metadata import (
    JOB_UID,
    PREBUILT_WORKLOAD,
    PRIORITY_CLASS,
    RESOURCE_IN_USE,
    STOPPING,
    Json,
    Object,
    annotations_of,
    created_at,
    finalizers,
    key,
    labels,
    name,
    namespace,
    owners,
    spec,
    terminating,
    uid,
)
from makeway.kube import standing, starting
from makeway.kube.actions import (
    Create,
    Patch,
    Steps,
    Tell,
    about,
    delete_object,
    patch_object,
    patch_status,
)
from makeway.kube.events import JOB_CONTROLLER
from makeway.kube.world import World

UNDECIDED_AFTER_S: Final = 1.5  # creation times have whole seconds
# Fields of a pod spec that admission changes; they say nothing about what the user wrote.
INJECTED: Final = ("nodeSelector", "tolerations", "schedulingGates")


def reconcile(queued: Json, world: World, now: float) -> Steps:
    """The next step for a Job that queues."""
    steps = Steps()
    owned = world.copy.by("workloads by owner", uid(queued))
    workload = next((w for w in owned if name(w) == expected_name(queued)), None)
    for other in owned:
        if other is not workload and not terminating(other):
            gone = tell(queued, "DeletedWorkload", f"Deleted not matching Workload: {key(other)}")
            steps.actions.append(delete_object("Workload", other, gone))
    if workload is None and _adopt(queued, world, steps):
        pass
    elif workload is None:
        _compose(queued, world, steps)
    elif standing.finished(workload):
        _close(queued, workload, steps)
    elif terminating(workload):
        _stop(queued, workload, "Workload is deleted", steps)
        if not _running(queued) and not steps.actions:
            steps.actions.append(drop_finalizer(workload))
    elif (over := job.finished(queued)) is not None:
        note = f"Workload '{key(workload)}' is declared finished"
        status = standing.finish(workload, *over, now)
        steps.actions.append(
            patch_status("Workload", workload, status, tell(queued, "FinishedWorkload", note))
        )
    elif standing.evicted(workload):
        _leave(queued, workload, steps, now)
    else:
        _follow(queued, workload, world, steps, now)
    return steps


def expected_name(queued: Json) -> str:
    prebuilt = annotations_of(queued).get(PREBUILT_WORKLOAD) or labels(queued).get(
        PREBUILT_WORKLOAD
    )
    return prebuilt or composing.workload_name_of(queued)


def _adopt(queued: Json, world: World, steps: Steps) -> bool:
    """A Workload that the user made for this Job becomes its own."""
    found = world.copy.get("Workload", f"{namespace(queued)}/{expected_name(queued)}")
    if found is None or found.get("metadata", {}).get("ownerReferences"):
        return False
    owner = composing.owner_reference(queued, controls=True)
    body = {"metadata": {"ownerReferences": [owner], "labels": {JOB_UID: uid(queued)}}}
    steps.actions.append(patch_object("Workload", found, body))
    return True


def tell(
    queued: Json, reason: str, note: str, *, warning: bool = False, once: bool = False
) -> Tell:
    return Tell(
        about=about("Job", queued),
        type="Warning" if warning else "Normal",
        reason=reason,
        note=note,
        component=JOB_CONTROLLER,
        once=once,
    )


def drop_finalizer(workload: Json) -> Patch:
    rest = [f for f in finalizers(workload) if f != RESOURCE_IN_USE]
    return patch_object("Workload", workload, {"metadata": {"finalizers": rest or None}})


def _compose(queued: Json, world: World, steps: Steps) -> None:
    """No Workload yet: make one, once nothing of the job runs."""
    if terminating(queued) or job.finished(queued) is not None:
        return
    if _running(queued):
        _suspend(queued, steps)
        return
    pod_sets = job.pod_sets(queued)
    try:
        priority = composing.resolve_priority(queued, pod_sets, world.classes())
    except composing.UnknownClass as unknown:
        reason = f"{unknown.kind}NotFound"
        steps.actions.append(tell(queued, reason, str(unknown), warning=True, once=True))
        return
    workload = composing.compose(queued, pod_sets, priority, wl_name=expected_name(queued))
    made = tell(queued, "CreatedWorkload", f"Created Workload: {key(workload)}")
    steps.actions.append(Create(kind="Workload", obj=workload, then=(made,)))


def _close(queued: Json, workload: Json, steps: Steps) -> None:
    """Finished: nothing holds the Workload any more."""
    if conditions.reason(workload, standing.FINISHED) == "FailedToStart" and _running(queued):
        _suspend(queued, steps)
    if RESOURCE_IN_USE in finalizers(workload):
        steps.actions.append(drop_finalizer(workload))


def _running(queued: Json) -> bool:
    return not job.suspended(queued) or job.active(queued)


def _suspend(queued: Json, steps: Steps) -> None:
    if not job.suspended(queued):
        steps.actions.append(patch_object("Job", queued, job.suspend_patch()))


def _stop(queued: Json, workload: Json, message: str, steps: Steps) -> None:
    """Suspend; when its pods are told to stop, put the template back as it was."""
    if not job.suspended(queued):
        _suspend(queued, steps)
    elif not job.active(queued):
        pod_sets = spec(workload).get("podSets") or [None]
        restored = job.restore_patch(queued, pod_sets[0])
        if restored:
            stopped = tell(queued, "Stopped", message)
            then = (stopped,) if STOPPING in annotations_of(queued) else ()
            steps.actions.append(patch_object("Job", queued, restored, *then))


def _leave(queued: Json, workload: Json, steps: Steps, now: float) -> None:
    """Evicted: stop, and when stopped give the quota back."""
    _stop(queued, workload, conditions.message(workload, standing.EVICTED), steps)
    if job.suspended(queued) and not job.active(queued):
        steps.actions.append(patch_status("Workload", workload, standing.release(workload, now)))


def _follow(queued: Json, workload: Json, world: World, steps: Steps, now: float) -> None:
    if not matches(queued, workload):
        _rewrite(queued, workload, world, steps)
        return
    _follow_priority(queued, workload, world, steps)
    if standing.admitted(workload):
        _run(queued, workload, world, steps, now)
    elif _running(queued) or STOPPING in annotations_of(queued):
        _stop(queued, workload, "Not admitted by cluster queue", steps)
    elif world.config.waits_for_pods:
        standing_still(workload, steps, now)


def standing_still(workload: Json, steps: Steps, now: float) -> None:
    """Every Workload says whether its pods are ready. Most say it with their first decision; this is for the others."""
    if conditions.find(workload, standing.PODS_READY) is not None or steps.actions:
        return
    due = created_at(workload) + UNDECIDED_AFTER_S
    if now < due:
        steps.look_again(due)
    else:
        change = standing.pods_ready(workload, False, now)
        steps.actions.append(patch_status("Workload", workload, change))


def _run(queued: Json, workload: Json, world: World, steps: Steps, now: float) -> None:
    if job.suspended(queued):
        _start(queued, workload, world, steps, now)
        return
    status = standing.reclaimable(workload, [("main", job.reclaimable(queued))])
    given = standing.assignments(workload).get("main") or {}
    count = int(given.get("count") or job.pod_count(queued))
    if world.config.waits_for_pods:
        status |= standing.pods_ready(workload, job.pods_ready(queued, count), now)
    if status:
        steps.actions.append(patch_status("Workload", workload, status))


def _start(queued: Json, workload: Json, world: World, steps: Steps, now: float) -> None:
    template = spec(queued).get("template") or {}
    try:
        update = starting.pod_update(workload, "main", world.flavor)
        trouble = starting.conflicts(
            update, template.get("metadata") or {}, template.get("spec") or {}
        )
    except starting.CannotStart as conflict:
        update, trouble = {}, str(conflict)
    if trouble:
        status = standing.finish(workload, "FailedToStart", trouble, now)
        steps.actions.append(patch_status("Workload", workload, status))
        return
    given = standing.assignments(workload).get("main") or {}
    patch = job.start_patch(queued, update, int(given.get("count") or job.pod_count(queued)))
    note = f"Admitted by clusterQueue {standing.cluster_queue(workload)}"
    steps.actions.append(patch_object("Job", queued, patch, tell(queued, "Started", note)))


def matches(queued: Json, workload: Json) -> bool:
    """Whether the Workload still says what the Job says; a Job that runs carries what admission added."""
    pod_sets = spec(workload).get("podSets") or []
    if len(pod_sets) != 1 or not any(o.get("uid") == uid(queued) for o in owners(workload)):
        return False
    if spec(workload).get("maximumExecutionTimeSeconds") != composing.max_execution_seconds(queued):
        return False
    wanted, known = job.pod_sets(queued)[0], pod_sets[0]
    reserved = (
        standing.has_quota(workload)
        or not job.suspended(queued)
        or STOPPING in annotations_of(queued)
    )
    if not reserved and _differs(wanted, known):
        return False
    return _spec_of(wanted, reserved) == _spec_of(known, reserved)


def _differs(wanted: Json, known: Json) -> bool:
    return int(wanted["count"]) != int(known.get("count", 1)) or wanted.get(
        "minCount"
    ) != known.get("minCount")


def _spec_of(pod_set: Json, reserved: bool) -> Object:
    found = pod_set["template"].get("spec") or {}
    return {
        k: v
        for k, v in found.items()
        if v not in (None, [], {}) and not (reserved and k in INJECTED)
    }


def _rewrite(queued: Json, workload: Json, world: World, steps: Steps) -> None:
    """The Job was changed: its waiting Workload follows; one that holds quota is made anew."""
    if standing.has_quota(workload) or not job.suspended(queued):
        gone = tell(queued, "DeletedWorkload", f"Deleted not matching Workload: {key(workload)}")
        steps.actions.append(delete_object("Workload", workload, gone))
        return
    body: Object = {
        "spec": {
            "podSets": job.pod_sets(queued),
            "maximumExecutionTimeSeconds": composing.max_execution_seconds(queued),
        }
    }
    note = f"Updated not matching Workload for suspended job: {key(workload)}"
    steps.actions.append(
        patch_object("Workload", workload, body, tell(queued, "UpdatedWorkload", note))
    )
    _follow_queue(queued, workload, steps)


def _follow_queue(queued: Json, workload: Json, steps: Steps) -> None:
    if spec(workload).get("queueName") != job.queue_name(queued):
        body = {"spec": {"queueName": job.queue_name(queued)}}
        steps.actions.append(patch_object("Workload", workload, body))


def _follow_priority(queued: Json, workload: Json, world: World, steps: Steps) -> None:
    """The class the Job names now, also while it runs; a class that does not exist changes nothing."""
    _follow_queue_if_waiting(queued, workload, steps)
    wanted = labels(queued).get(PRIORITY_CLASS)
    known = spec(workload).get("priorityClassRef") or {}
    if not wanted or known.get("name") == wanted:
        return
    if known and known.get("kind") != "WorkloadPriorityClass":
        return
    if not known and standing.has_quota(workload):
        return
    found = world.classes().workload.get(wanted)
    if found is None:
        return
    ref = ("kueue.x-k8s.io", "WorkloadPriorityClass", wanted)
    body = {"spec": composing.Priority(value=found.value, ref=ref).as_json()}
    note = f"Updated workload priority class: {key(workload)}"
    steps.actions.append(
        patch_object("Workload", workload, body, tell(queued, "UpdatedWorkload", note))
    )


def _follow_queue_if_waiting(queued: Json, workload: Json, steps: Steps) -> None:
    if not standing.has_quota(workload):
        _follow_queue(queued, workload, steps)
