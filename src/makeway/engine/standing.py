"""Why a workload that nobody looked at is where it is: the reasons that come before any decision.

`decide` gives reasons to the heads it looks at. This answers for all others, so that whoever waits can read why.
"""

from __future__ import annotations

from makeway.engine.state import State
from makeway.model.queue import Queue
from makeway.model.reason import Kind, Reason
from makeway.model.workload import Workload

EQUAL_FAILED = "Bypassed scheduling evaluation because an equivalent workload recently failed"
NOT_YET = "Workload is pending evaluation in the scheduling queue"


def why_waiting(state: State, workload: Workload, now: float) -> Reason | None:
    """None when it is not waiting at all: finished, or holding quota."""
    if workload.finished or workload.admission is not None:
        return None
    if not workload.active:
        return _reason("deactivated", "Deactivated", "The workload is deactivated")
    if workload.held_back:
        on_hold = workload.held_back == "Job is on hold"
        return _reason("gated", "OnHold" if on_hold else "AdmissionGated", workload.held_back)
    if workload.needs == "nodes":
        return _reason("behind", "PendingEvaluation", NOT_YET)
    return _queue_problem(state, workload) or _in_line(state, workload, now)


def _queue_problem(state: State, workload: Workload) -> Reason | None:
    """Its local queue or queue is missing, stopped or broken."""
    name = workload.local_queue or ""
    local = state.local_queues.get(f"{workload.namespace}/{name}")
    if local is None:
        return _reason("misconfigured", "Misconfigured", f"LocalQueue {name} doesn't exist")
    if local.terminating:
        message = f"LocalQueue {name} is terminating or missing"
        return _reason("misconfigured", "Misconfigured", message)
    if local.stop != "None":
        return _reason("queue-stopped", "Suspended", f"LocalQueue {name} is stopped")
    queue = state.queues.get(local.queue)
    if queue is None:
        message = f"ClusterQueue {local.queue} doesn't exist"
        return _reason("misconfigured", "Misconfigured", message)
    if queue.stop != "None":
        return _reason("queue-stopped", "Suspended", f"ClusterQueue {queue.name} is stopped")
    problem = state.inactive_because(queue.name)
    if problem:
        message = f"ClusterQueue {queue.name} is inactive"
        remedy = _remedy(state, queue) or f"ClusterQueue {queue.name} {problem}: mend that"
        return _reason("queue-stopped", "Suspended", message, cheapest=remedy)
    return None


def _remedy(state: State, queue: Queue) -> str:
    """Object, field and what to write there, for what an administrator got wrong."""
    if queue.name in state.ledger.tree.in_cycle:
        circle = " → ".join(_circle(state, queue))
        return (
            f"spec.cohortName of ClusterQueue {queue.name} leads into a circle of Cohorts ({circle}):"
            " change spec.parentName of one of them"
        )
    named = [flavor.flavor for group in queue.resource_groups for flavor in group.flavors]
    missing = sorted({name for name in named if name not in state.flavors})
    if missing:
        return (
            f"create ResourceFlavor {', '.join(missing)}, or take it out of spec.resourceGroups"
            f" of ClusterQueue {queue.name}"
        )
    checks = sorted({check.name for check in queue.checks if check.name not in state.checks})
    if checks:
        return (
            f"create AdmissionCheck {', '.join(checks)}, or take it out of"
            f" spec.admissionChecksStrategy of ClusterQueue {queue.name}"
        )
    return ""


def _circle(state: State, queue: Queue) -> list[str]:
    """From its cohort upwards until one comes up again."""
    path: list[str] = []
    name = queue.cohort
    while name is not None and name not in path:
        path.append(name)
        cohort = state.cohorts.get(name)
        name = cohort.parent if cohort is not None else None
    return [*path, name] if name is not None else path


def _in_line(state: State, workload: Workload, now: float) -> Reason:
    if workload.requeue_blocked or (workload.requeue_at or now) > now:
        return Reason(
            kind="backing-off",
            kueue="PendingEvaluation",
            message="The workload is backing off",
            until=workload.requeue_at,
        )
    queue = state.waits_in(workload.id)
    if queue is not None and workload.id in set(state.pending[queue].parked()):
        return _reason("equal-failed", "WaitingForQuota", EQUAL_FAILED)
    return _reason("behind", "PendingEvaluation", NOT_YET)


def _reason(kind: Kind, kueue: str, message: str, cheapest: str = "") -> Reason:
    return Reason(kind=kind, kueue=kueue, message=message, cheapest=cheapest)
