"""A Workload by itself, whatever stands behind it: deactivation, admission checks, stopped queues, timeouts, lost owners.

The order of the checks is Kueue's; the first that asks for something ends the call, and the change it makes brings the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from makeway.control.clock import timestamp
from makeway.control.durations import duration
from makeway.kinds import conditions
from makeway.kinds.frameworks import JOB_KINDS
from makeway.kinds.gated import GATED_KINDS
from makeway.kinds.metadata import (
    Json,
    Object,
    key,
    owners,
    seconds,
    spec,
    status,
    terminating,
)
from makeway.kinds.workload import read
from makeway.kube import standing
from makeway.kube.actions import (
    Patch,
    Steps,
    Tell,
    about,
    delete_object,
    free,
    patch_object,
    patch_status,
    tell,
)
from makeway.kube.events import ADMISSION, POD_CONTROLLER, WORKLOAD_CONTROLLER
from makeway.kube.queues import activity
from makeway.kube.world import World

DEFAULT_PODS_READY_S: Final = 1800.0


def reconcile(workload: Json, world: World, now: float) -> Steps:
    steps = Steps()
    if standing.finished(workload) or terminating(workload):
        if not world.owner_exists(workload):
            steps.actions += free("Workload", workload)
        if not steps.actions and not terminating(workload):
            _retained(workload, world, steps, now)
        return steps
    for check in (
        _orphaned,
        _deactivated,
        _reactivated,
        _unowned,
        _priority_class_changed,
        _checks,
        _stopped,
        _restarted,
        _backed_off,
        _too_slow,
        _too_long,
        _queue_trouble,
    ):
        found = check(workload, world, steps, now)
        if found is not None:
            steps.actions.append(found)
            break
    return steps


def _retained(workload: Json, world: World, steps: Steps, now: float) -> None:
    """A finished one is kept as long as the configuration says, for ever where it says nothing."""
    kept = world.config.object_retention_policies.workloads.after_finished
    if kept is None:
        return
    ended = conditions.since(workload, standing.FINISHED)
    due = (ended if ended is not None else now) + world.config.length(kept, 0.0)
    if now < due:
        steps.look_again(due)
        return
    told = _tell(workload, "Deleted", "Deleted finished workload due to elapsed retention")
    steps.actions.append(delete_object("Workload", workload, told))


def _tell(workload: Json, reason: str, note: str, *, warning: bool = False) -> Tell:
    return tell("Workload", workload, WORKLOAD_CONTROLLER, reason, note, warning=warning)


def evict(
    workload: Json,
    reason: str,
    message: str,
    now: float,
    *,
    cause: str = "",
    extra: Object | None = None,
) -> Patch:
    """Tell a workload to stop for a reason other than a preemption."""
    change = standing.evict(workload, reason, message, now, cause=cause) | (extra or {})
    if not standing.has_quota(workload):
        return patch_status("Workload", workload, change)  # it held nothing: nobody is told
    return patch_status(
        "Workload", workload, change, _tell(workload, f"EvictedDueTo{reason}", message)
    )


def _orphaned(workload: Json, world: World, _steps: Steps, now: float) -> Patch | None:
    if world.owner_exists(workload):
        return None
    change = standing.finish(
        workload, "OwnerNotFound", "The workload's owner no longer exists", now
    )
    return patch_status("Workload", workload, change)


def _deactivated(workload: Json, _world: World, _steps: Steps, now: float) -> Patch | None:
    """Inactive ones are evicted, and released at once when they hold nothing that runs."""
    if standing.active(workload):
        return None
    known = conditions.find(workload, standing.EVICTED) or {}
    if known.get("status") == "True" and str(known.get("reason", "")).startswith("Deactivated"):
        return None
    target = conditions.find(workload, standing.DEACTIVATION_TARGET)
    if target is None:
        return evict(workload, "Deactivated", "The workload is deactivated", now)
    reason, message = target.get("reason", ""), target.get("message", "")
    return evict(
        workload,
        f"DeactivatedDueTo{reason}",
        f"The workload is deactivated due to {message}",
        now,
        extra={"requeueState": None},
    )


def _unowned(workload: Json, _world: World, _steps: Steps, now: float) -> Patch | None:
    """Of a Workload that somebody wrote by hand nobody stops anything: who evicts it has its quota back at once."""
    if owners(workload) or not (standing.evicted(workload) and standing.has_quota(workload)):
        return None
    return patch_status("Workload", workload, standing.release(workload, now))


def _reactivated(workload: Json, world: World, _steps: Steps, now: float) -> Patch | None:
    """Set active again: it queues again. Kueue leaves those behind that it had deactivated itself; under its policy so do we."""
    if standing.has_quota(workload) or not standing.active(workload):
        return None
    known = conditions.find(workload, standing.REQUEUED) or {}
    waits = known.get("status") == "False" and str(known.get("reason", "")).startswith(
        "Deactivated"
    )
    left_behind = known.get("reason") != "Deactivated" and world.config.makeway.victims == "kueue"
    if not waits or left_behind:
        return None
    change = standing.requeue(workload, True, "Reactivated", "The workload was reactivated", now)
    return patch_status("Workload", workload, change | {"requeueState": None})


def _switch_off(workload: Json) -> Patch:
    return patch_object("Workload", workload, {"spec": {"active": False}})


def _priority_class_changed(
    workload: Json, world: World, _steps: Steps, _now: float
) -> Patch | None:
    """The value of a WorkloadPriorityClass reaches every workload that names it, waiting or running."""
    ref = spec(workload).get("priorityClassRef") or {}
    if ref.get("kind") != "WorkloadPriorityClass":
        return None
    found = world.copy.get("WorkloadPriorityClass", str(ref.get("name")))
    if found is None or found.get("value") == spec(workload).get("priority"):
        return None
    return patch_object("Workload", workload, {"spec": {"priority": found.get("value")}})


# Admission checks


def _checks(workload: Json, world: World, steps: Steps, now: float) -> Patch | None:
    queue = world.cluster_queue_of(workload)
    leaving = standing.evicted(workload)
    if queue is None or (leaving and standing.has_quota(workload)):
        return None
    known: list[Object] = status(workload).get("admissionChecks") or []
    wanted = required_checks(workload, queue)
    if {c["name"] for c in known} != set(wanted):
        return patch_status("Workload", workload, {"admissionChecks": _synced(known, wanted, now)})
    if leaving:
        return None
    rejected = [c for c in known if c.get("state") == "Rejected"]
    if rejected:
        return _reject(workload, rejected, now)
    retried = [c for c in known if c.get("state") == "Retry"]
    if retried and standing.has_quota(workload):
        return _retry(workload, retried, world, now)
    return None


def required_checks(workload: Json, queue: Json) -> list[str]:
    """The checks of its queue that concern a flavor it got; before it got one, those that concern every flavor."""
    strategy = (spec(queue).get("admissionChecksStrategy") or {}).get("admissionChecks") or []
    given = {
        flavor
        for assignment in standing.assignments(workload).values()
        for flavor in (assignment.get("flavors") or {}).values()
    }
    every = {
        flavor["name"]
        for group in spec(queue).get("resourceGroups") or []
        for flavor in group.get("flavors") or []
    }
    names = [
        rule["name"]
        for rule in strategy
        if not (only := set(rule.get("onFlavors") or ()))
        or (given & only if given else every <= only)
    ]
    return list(dict.fromkeys([*names, *(spec(queue).get("admissionChecks") or [])]))


def _synced(known: list[Object], wanted: list[str], now: float) -> list[Object]:
    by_name = {c["name"]: c for c in known}
    fresh = {"state": "Pending", "message": "", "lastTransitionTime": timestamp(now)}
    return [by_name.get(check) or {"name": check, **fresh} for check in wanted]


def _quoted(checks: list[Object]) -> str:
    return "; ".join(f'"{c["name"]}" ({c.get("message", "")})' for c in checks)


def _reject(workload: Json, rejected: list[Object], now: float) -> Patch | None:
    plural = "s" if len(rejected) > 1 else ""
    message = f"AdmissionCheck{plural} in Rejected state: {_quoted(rejected)}"
    if conditions.is_true(workload, standing.DEACTIVATION_TARGET):
        return _switch_off(workload) if standing.active(workload) else None
    change = standing.deactivation_target(workload, "AdmissionCheck", message, now)
    told = _tell(workload, "AdmissionCheckRejected", f"Deactivated due to {message}", warning=True)
    return patch_status("Workload", workload, change, told)


def _retry(workload: Json, retried: list[Object], world: World, now: float) -> Patch:
    plural = "s" if len(retried) > 1 else ""
    message = f"Evicted due to AdmissionCheck{plural} in Retry state: {_quoted(retried)}"
    delays = [int(c.get("requeueAfterSeconds") or 0) for c in retried]
    count = int((status(workload).get("requeueState") or {}).get("count") or 0)
    extra = standing.requeue_state(workload, count, now + max(delays)) if max(delays) else None
    patch = evict(workload, "AdmissionCheck", message, now, extra=extra)
    return msgspec.structs.replace(
        patch, then=(*patch.then, *_checks_changed(workload, retried, world))
    )


def _checks_changed(workload: Json, checks: list[Object], world: World) -> Iterator[Tell]:
    """The owner hears of checks that were set back."""
    owner = world.owner_of(workload)
    if owner is None:
        return
    kind, component = _teller(workload)
    for check in checks:
        yield Tell(
            about=about(kind, owner),
            reason="UpdatedAdmissionCheck",
            note=f"{check['name']}: {standing.RESET}{check.get('state')}",
            component=component,
        )


def _teller(workload: Json) -> tuple[str, str]:
    """The kind of its owner, and in whose name that is told things."""
    for owner in owners(workload):
        kind = str(owner.get("kind"))
        known = JOB_KINDS.get(kind) or GATED_KINDS.get(kind)
        if known is not None:
            return kind, known.component
    return "Pod", POD_CONTROLLER


# Stopped queues


def _stopped(workload: Json, world: World, _steps: Steps, now: float) -> Patch | None:
    if not standing.has_quota(workload) or standing.evicted(workload):
        return None
    for kind, queue in (
        ("ClusterQueue", world.cluster_queue_of(workload)),
        ("LocalQueue", world.local_queue_of(workload)),
    ):
        stop = str(spec(queue or {}).get("stopPolicy") or "None")
        drains = stop == "HoldAndDrain" or (stop == "Hold" and not standing.admitted(workload))
        if drains:
            return evict(workload, f"{kind}Stopped", f"The {kind} is stopped", now)
    return None


def _restarted(workload: Json, world: World, _steps: Steps, now: float) -> Patch | None:
    known = conditions.find(workload, standing.REQUEUED) or {}
    if known.get("status") != "False":
        return None
    for kind, queue in (
        ("ClusterQueue", world.cluster_queue_of(workload)),
        ("LocalQueue", world.local_queue_of(workload)),
    ):
        if known.get("reason") != f"{kind}Stopped" or queue is None:
            continue
        if str(spec(queue).get("stopPolicy") or "None") == "None":
            message = f"The {kind} was restarted after being stopped"
            change = standing.requeue(workload, True, f"{kind}Restarted", message, now)
            return patch_status("Workload", workload, change)
    return None


# Times


def _backed_off(workload: Json, _world: World, steps: Steps, now: float) -> Patch | None:
    """After a back-off it queues again."""
    known = conditions.find(workload, standing.REQUEUED) or {}
    reasons = ("PodsReadyTimeout", "AdmissionCheck")
    if known.get("status") != "False" or known.get("reason") not in reasons:
        return None
    if not standing.active(workload):
        return None
    state = status(workload).get("requeueState") or {}
    until = seconds(state.get("requeueAt"))
    if until is not None and until > now:
        steps.look_again(until)
        return None
    change = standing.requeue(
        workload, True, "BackoffFinished", "The workload backoff was finished", now
    )
    if state.get("requeueAt"):
        change["requeueState"] = {"requeueAt": None}
    return patch_status("Workload", workload, change)


def _too_slow(workload: Json, world: World, steps: Steps, now: float) -> Patch | None:
    """Pods that are not ready in time: evicted, with a back-off that grows."""
    waits = world.config.wait_for_pods_ready
    if (
        not world.config.waits_for_pods
        or not standing.admitted(workload)
        or standing.evicted(workload)
    ):
        return None
    known = conditions.find(workload, standing.PODS_READY) or {}
    if known.get("status") == "True":
        return None
    recovering = known.get("reason") == standing.RECOVERING[0]
    since = conditions.since(workload, standing.PODS_READY if recovering else standing.ADMITTED)
    limit = duration(waits.timeout) or DEFAULT_PODS_READY_S
    if recovering and waits.recovery_timeout is not None:
        limit = duration(waits.recovery_timeout) or limit
    if since is None or now < since + limit:
        steps.look_again(None if since is None else since + limit)
        return None
    return _slow(workload, world, now, cause="WaitForRecovery" if recovering else "WaitForStart")


def _slow(workload: Json, world: World, now: float, *, cause: str) -> Patch:
    strategy = world.config.wait_for_pods_ready.requeuing_strategy
    count = int((status(workload).get("requeueState") or {}).get("count") or 0) + 1
    if strategy.backoff_limit_count is not None and count > strategy.backoff_limit_count:
        if conditions.is_true(workload, standing.DEACTIVATION_TARGET):
            return _switch_off(workload)
        message = "exceeding the maximum number of re-queuing retries"
        change = standing.deactivation_target(workload, "RequeuingLimitExceeded", message, now)
        return patch_status("Workload", workload, change)
    pause = min(
        strategy.backoff_max_seconds, strategy.backoff_base_seconds * 2 ** min(count - 1, 30)
    )
    message = f"Exceeded the PodsReady timeout {key(workload)}"
    extra = standing.requeue_state(workload, count, now + pause)
    return evict(workload, "PodsReadyTimeout", message, now, cause=cause, extra=extra)


def _too_long(workload: Json, _world: World, steps: Steps, now: float) -> Patch | None:
    limit = spec(workload).get("maximumExecutionTimeSeconds")
    if not limit or not standing.admitted(workload) or standing.evicted(workload):
        return None
    left = float(limit) - standing.executed_s(workload, now)
    if left > 0:
        steps.look_again(now + left)
        return None
    if conditions.is_true(workload, standing.DEACTIVATION_TARGET):
        return _switch_off(workload)
    change = standing.deactivation_target(
        workload, "MaximumExecutionTimeExceeded", "exceeding the maximum execution time", now
    )
    note = f"The maximum execution time ({limit}s) exceeded"
    told = _tell(workload, "MaximumExecutionTimeExceeded", note, warning=True)
    return patch_status("Workload", workload, change, told)


# Queues that cannot take it


def _queue_trouble(workload: Json, world: World, _steps: Steps, now: float) -> Patch | None:
    """Nobody evaluates a workload whose queue is missing or closed: it is told here."""
    if standing.has_quota(workload) or not standing.active(workload):
        return None
    trouble = queue_trouble(workload, world)
    if trouble is not None:
        change = standing.wait(workload, *trouble, (), now)
        return patch_status("Workload", workload, change) if change else None
    refused = world.refusal(workload)
    if not refused:
        return None
    asked = world.asks(read(world.counted(workload)))
    change = standing.wait(workload, "Misconfigured", refused, asked, now)
    told = Tell(
        about=about("Workload", workload),
        type="Warning",
        reason="Misconfigured",
        note=refused,
        component=ADMISSION,
    )
    return patch_status("Workload", workload, change, told) if change else None


def queue_trouble(workload: Json, world: World) -> tuple[str, str] | None:
    """Reason and message, where the way to a ClusterQueue that admits is not open."""
    door = str(spec(workload).get("queueName") or "")
    local = world.local_queue_of(workload)
    if local is None or terminating(local):
        missing = "doesn't exist" if local is None else "is terminating or missing"
        return "Misconfigured", f"LocalQueue {door} {missing}"
    behind = str(spec(local).get("clusterQueue") or "")
    queue = world.copy.get("ClusterQueue", behind)
    if queue is None or terminating(queue):
        missing = "doesn't exist" if queue is None else "is terminating or missing"
        return "Misconfigured", f"ClusterQueue {behind} {missing}"
    if str(spec(local).get("stopPolicy") or "None") != "None":
        return "Suspended", f"LocalQueue {door} is inactive"
    if not activity(queue, world)[0]:
        return "Suspended", f"ClusterQueue {behind} is inactive"
    return None
