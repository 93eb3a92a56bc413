"""How a Workload stands, written into its status: reserved, admitted, evicted, released, ready, finished.

Each function takes the Workload as it is and returns what changes in its status (a merge patch of `status`); nothing when
nothing changes. Reasons and messages are those that Kueue's users know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from makeway.control.clock import timestamp
from makeway.engine.demand import Demand
from makeway.kinds import conditions
from makeway.kinds.conditions import Conditions
from makeway.kinds.metadata import Json, Object, owners, seconds, status
from makeway.model.resources import format_amount
from makeway.model.workload import Admission

QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
PODS_READY: Final = "PodsReady"
EVICTED: Final = "Evicted"
PREEMPTED: Final = "Preempted"
REQUEUED: Final = "Requeued"
FINISHED: Final = "Finished"
DEACTIVATION_TARGET: Final = "DeactivationTarget"
REPLACEMENT: Final = "WaitingForReplacementPods"

NOT_READY: Final = ("WaitForStart", "Not all pods are ready or succeeded")
RECOVERING: Final = ("WaitForRecovery", "At least one pod has failed, waiting for recovery")
READY: Final = "All pods reached readiness and the workload is running"
RESET: Final = "Reset to Pending after eviction. Previously: "
NO_RESERVATION: Final = ("NoReservation", "The workload has no reservation")
UNSATISFIED: Final = ("UnsatisfiedAdmissionChecks", "The workload has not all checks ready")
# Evictions after which the workload is in the queue again at once.
REQUEUES_AT_ONCE: Final = frozenset({"Preempted", "NodeFailures"})
ON_HOLD: Final = "OnHold"


def has_quota(workload: Json) -> bool:
    return conditions.is_true(workload, QUOTA_RESERVED)


def admitted(workload: Json) -> bool:
    return conditions.is_true(workload, ADMITTED)


def evicted(workload: Json) -> bool:
    """Told to stop, and has not given its quota back yet."""
    return conditions.is_true(workload, EVICTED) and has_quota(workload)


def finished(workload: Json) -> bool:
    return conditions.is_true(workload, FINISHED)


def unready(workload: Json) -> bool:
    """Has its quota, and not all of its pods are ready yet."""
    return (
        admitted(workload)
        and not finished(workload)
        and not conditions.is_true(workload, PODS_READY)
    )


def active(workload: Json) -> bool:
    return bool((workload.get("spec") or {}).get("active", True))


def reserve(workload: Json, admission: Admission, now: float, *, all_checks_ready: bool) -> Object:
    """Quota is reserved, and unless checks are open the workload is admitted."""
    changed = Conditions(workload, now)
    changed.set(
        QUOTA_RESERVED, True, "QuotaReserved", f"Quota reserved in ClusterQueue {admission.queue}"
    )
    for kind in (EVICTED, PREEMPTED):
        known = changed.get(kind)
        if known is not None and known["status"] == "True":
            before = f"Previously: {known.get('message', '')}"
            changed.set(kind, False, "QuotaReserved", before)
    if all_checks_ready:
        changed.set(ADMITTED, True, "Admitted", "The workload is admitted")
    elif changed.get(ADMITTED) is not None:
        changed.set(ADMITTED, False, *UNSATISFIED)
    if changed.get(PODS_READY) is None and owners(workload):
        changed.set(PODS_READY, False, *NOT_READY)
    return changed.patch() | {
        "admission": admission_json(admission),
        "resourceRequests": None,
    }


def admission_json(admission: Admission) -> Object:
    return {
        "clusterQueue": admission.queue,
        "podSetAssignments": [
            {
                "name": given.pod_set,
                "flavors": dict(given.flavors),
                "resourceUsage": {
                    resource: format_amount(resource, amount) for resource, amount in given.usage
                },
                "count": given.count,
            }
            for given in admission.assignments
        ],
    }


def admit(workload: Json, now: float) -> Object:
    """The last check turned Ready."""
    changed = Conditions(workload, now)
    changed.set(ADMITTED, True, "Admitted", "The workload is admitted")
    return changed.patch()


def wait_for_nodes(workload: Json, reason: str, message: str, now: float) -> Object:
    """The quota is kept and the checks are ready; it is admitted when it has its nodes."""
    changed = Conditions(workload, now)
    changed.set(ADMITTED, False, reason, message)
    return changed.patch()


def wait(
    workload: Json, reason: str, message: str, demands: Sequence[Demand], now: float
) -> Object:
    """It has no quota, for this reason; what it asks for stands beside it."""
    changed = Conditions(workload, now)
    changed.set(QUOTA_RESERVED, False, reason, message)
    if changed.get(ADMITTED) is None:
        changed.set(ADMITTED, False, *NO_RESERVATION)
    if changed.get(PODS_READY) is None and owners(workload):
        changed.set(PODS_READY, False, *NOT_READY)
    patch = changed.patch()
    asked = [
        {
            "name": demand.pod_set.name,
            "resources": {
                resource: format_amount(resource, amount)
                for resource, amount in demand.requests.items()
            },
        }
        for demand in demands
    ]
    if asked and asked != status(workload).get("resourceRequests"):
        patch["resourceRequests"] = asked
    return patch


def evict(
    workload: Json,
    reason: str,
    message: str,
    now: float,
    *,
    cause: str = "",
    preempted: str = "",
) -> Object:
    """Tell it to stop. Quota and admission stay until its pods have stopped."""
    changed = Conditions(workload, now)
    changed.set(EVICTED, True, reason, message)
    if preempted:
        changed.set(PREEMPTED, True, preempted, message)
    changed.remove(DEACTIVATION_TARGET)
    patch = changed.patch()
    counted, _, due = reason.partition("DueTo")
    patch["schedulingStats"] = {"evictions": _counted(status(workload), counted, cause or due)}
    checks = _reset_checks(status(workload).get("admissionChecks") or [], now)
    if checks is not None:
        patch["admissionChecks"] = checks
    return patch


def _counted(said: Json, reason: str, cause: str) -> list[Object]:
    known = [dict(e) for e in (said.get("schedulingStats") or {}).get("evictions") or []]
    for entry in known:
        if entry.get("reason") == reason and (entry.get("underlyingCause") or "") == cause:
            entry["count"] = int(entry.get("count") or 0) + 1
            return known
    return [*known, {"reason": reason, "underlyingCause": cause, "count": 1}]


def _reset_checks(checks: list[Object], now: float) -> list[Object] | None:
    if all(check.get("state") == "Pending" for check in checks):
        return None
    return [_reset(check, now) for check in checks]


def _reset(check: Object, now: float) -> Object:
    state = check.get("state", "Pending")
    if state == "Pending":
        return check
    fresh: Object = {
        "name": check["name"],
        "state": "Pending",
        "message": RESET + state,
        "lastTransitionTime": timestamp(now),
    }
    if state == "Retry":
        fresh["retryCount"] = int(check.get("retryCount") or 0) + 1
    return fresh


def release(workload: Json, now: float, *, comes_back: bool = True) -> Object:
    """Its pods have stopped: quota is given back, and it queues again when its eviction allows."""
    reason, message = conditions.reason(workload, EVICTED), conditions.message(workload, EVICTED)
    changed = Conditions(workload, now)
    again = comes_back and reason in REQUEUES_AT_ONCE
    changed.set(REQUEUED, again, reason, message)
    changed.set(QUOTA_RESERVED, False, "PendingEvaluation", message)
    if changed.get(ADMITTED) is not None:
        open_checks = bool(status(workload).get("admissionChecks"))
        kind = (
            (
                "NoReservationUnsatisfiedChecks",
                "The workload has no reservation and not all checks ready",
            )
            if open_checks and not again
            else NO_RESERVATION
        )
        changed.set(ADMITTED, False, *kind)
    if changed.get(PODS_READY) is not None and comes_back:
        changed.set(PODS_READY, False, *NOT_READY)
    return changed.patch() | {"admission": None} | _ran_for(workload, now)


def _ran_for(workload: Json, now: float) -> Object:
    """The time that it was admitted, on top of what it had before."""
    since = conditions.since(workload, ADMITTED) if admitted(workload) else None
    if since is None:
        return {}
    before = int(status(workload).get("accumulatedPastExecutionTimeSeconds") or 0)
    return {"accumulatedPastExecutionTimeSeconds": before + max(0, int(now - since))}


def on_hold(workload: Json) -> bool:
    return conditions.reason(workload, QUOTA_RESERVED) == ON_HOLD


def put_on_hold(workload: Json, message: str, now: float) -> Object:
    """Its owner wants no pods for now: quota is given back, and it does not queue."""
    changed = Conditions(workload, now)
    changed.set(QUOTA_RESERVED, False, ON_HOLD, message)
    if changed.get(ADMITTED) is not None:
        changed.set(ADMITTED, False, *NO_RESERVATION)
    return changed.patch() | {"admission": None} | _ran_for(workload, now)


def take_off_hold(workload: Json, now: float) -> Object:
    changed = Conditions(workload, now)
    message = "Workload no longer on hold; waiting for quota reservation"
    changed.set(QUOTA_RESERVED, False, "PendingEvaluation", message)
    return changed.patch()


def requeue(workload: Json, value: bool, reason: str, message: str, now: float) -> Object:
    changed = Conditions(workload, now)
    changed.set(REQUEUED, value, reason, message)
    return changed.patch()


def pods_ready(workload: Json, ready: bool, now: float) -> Object:
    """Whether all pods are ready; only asked while it is admitted."""
    changed = Conditions(workload, now)
    known = changed.get(PODS_READY) or {}
    if ready:
        _all_ready(changed)
    elif known.get("status") == "True":
        changed.set(PODS_READY, False, *RECOVERING)
    elif not known:
        changed.set(PODS_READY, False, *NOT_READY)
    return changed.patch()


def _all_ready(changed: Conditions) -> None:
    known = changed.get(PODS_READY) or {}
    came_back = known.get("reason") == RECOVERING[0]
    if known.get("status") != "True":
        changed.set(PODS_READY, True, "Recovered" if came_back else "Started", READY)


def finish(
    workload: Json, reason: str, message: str, now: float, *, were_ready: bool = False
) -> Object:
    """`were_ready`: all its pods came up, and were done before anybody looked."""
    changed = Conditions(workload, now)
    if were_ready:
        _all_ready(changed)
    changed.set(FINISHED, True, reason, message)
    return changed.patch()


def deactivation_target(workload: Json, reason: str, message: str, now: float) -> Object:
    changed = Conditions(workload, now)
    changed.set(DEACTIVATION_TARGET, True, reason, message)
    return changed.patch()


def reclaimable(workload: Json, pods: Iterable[tuple[str, int]]) -> Object:
    """Pods per set that need no quota any more; the number never goes down while quota is reserved."""
    known = {r["name"]: int(r["count"]) for r in status(workload).get("reclaimablePods") or []}
    wanted = {name: max(count, known.get(name, 0)) for name, count in pods}
    wanted = {name: count for name, count in {**known, **wanted}.items() if count}
    if wanted == known:
        return {}
    return {"reclaimablePods": [{"name": n, "count": c} for n, c in sorted(wanted.items())]}


def requeue_state(workload: Json, count: int, at: float) -> Object:
    """Never earlier than said before."""
    before = seconds((status(workload).get("requeueState") or {}).get("requeueAt")) or 0.0
    return {"requeueState": {"count": count, "requeueAt": timestamp(max(at, before))}}


def assignments(workload: Json) -> dict[str, Object]:
    """The admission's pod sets by name."""
    admission = status(workload).get("admission") or {}
    return {a["name"]: a for a in admission.get("podSetAssignments") or []}


def cluster_queue(workload: Json) -> str:
    return str((status(workload).get("admission") or {}).get("clusterQueue") or "")


def executed_s(workload: Json, now: float) -> float:
    """How long it has been admitted, over all its starts."""
    before = float(status(workload).get("accumulatedPastExecutionTimeSeconds") or 0)
    since = conditions.since(workload, ADMITTED) if admitted(workload) else None
    return before + (now - since if since is not None else 0.0)
