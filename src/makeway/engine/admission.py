"""The gate between "quota reserved" and "admitted": admission checks; and the doors that administrators close."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from makeway.engine.entries import Entry
from makeway.engine.proposal import FlavorAttempt, Mode, Possibility
from makeway.engine.state import State
from makeway.model.decision import Admit, Considered, Evict
from makeway.model.queue import Queue
from makeway.model.reason import Kind, Reason
from makeway.model.workload import Admission, Workload, WorkloadId

NOBODY = WorkloadId("")


def admit(entry: Entry, state: State, now: float) -> Admit:
    """Quota for the whole workload; fully admitted when no check is left open."""
    reserved = Admission(
        queue=entry.queue,
        assignments=entry.proposal.assignments(),
        reserved_at=now,
    )
    passed = checks_passed(entry.workload, reserved, state.queues[entry.queue])
    return Admit(
        workload=entry.workload.id,
        admission=msgspec.structs.replace(
            reserved, admitted=passed, admitted_at=now if passed else None
        ),
        considered=tuple(_considered(entry)),
        placement=entry.room.placement if entry.room is not None else (),
        borrowing=entry.proposal.borrowing,
    )


def checks_open(entry: Entry, state: State) -> bool:
    """Whether checks stand between this reservation and its admission."""
    reserved = Admission(
        queue=entry.queue, assignments=entry.proposal.assignments(), reserved_at=0.0
    )
    return not checks_passed(entry.workload, reserved, state.queues[entry.queue])


def _considered(entry: Entry) -> Iterator[Considered]:
    """What the event tells: every flavor that was not simply free."""
    for pod_set in entry.proposal.pod_sets:
        for attempt in pod_set.attempts:
            if attempt.mode is not Mode.FIT or attempt.offer.borrow:
                yield Considered(
                    pod_set=pod_set.name,
                    flavor=attempt.flavor,
                    mode=_mode_name(attempt),
                    borrow=attempt.offer.borrow,
                    reasons=attempt.reasons,
                )


def _mode_name(attempt: FlavorAttempt) -> str:
    return {
        Possibility.NO_FIT: "NoFit",
        Possibility.NO_CANDIDATES: "NoCandidates",
        Possibility.PREEMPT: "Preempt",
        Possibility.RECLAIM: "Reclaim",
        Possibility.FIT: "Fit",
    }[attempt.offer.possibility]


def required_checks(admission: Admission, queue: Queue) -> frozenset[str]:
    """Those that the queue asks for on the flavors that were assigned."""
    if not queue.checks:
        return frozenset()
    assigned = {flavor for a in admission.assignments for _, flavor in a.flavors}
    return frozenset(
        check.name
        for check in queue.checks
        if not check.on_flavors or assigned.intersection(check.on_flavors)
    )


def checks_passed(workload: Workload, admission: Admission, queue: Queue) -> bool:
    states = {check.name: check.state for check in workload.checks}
    return all(state == "Ready" for state in states.values()) and required_checks(
        admission, queue
    ) <= set(states)


def refused(state: State) -> Iterator[Evict]:
    """Workloads that hold quota, and whose checks send them back."""
    for workload in list(state.unchecked.values()):
        if workload.admission is not None and workload.evicted_at is None:
            refusal = _refused_by_checks(workload)
            if refusal is not None:
                yield refusal


def ready(state: State, now: float) -> Iterator[tuple[Workload, Admission]]:
    """Workloads that hold quota and have passed their last check, as they would be admitted."""
    for workload in list(state.unchecked.values()):
        held = workload.admission
        if held is None or held.admitted or workload.evicted_at is not None:
            continue
        queue = state.queues.get(held.queue)
        if queue is not None and checks_passed(workload, held, queue):
            yield workload, msgspec.structs.replace(held, admitted=True, admitted_at=now)


def _refused_by_checks(workload: Workload) -> Evict | None:
    """Rejected is final, whoever else says Retry; both count for workloads that already run, too."""
    rejected = _checks_in(workload, "Rejected")
    if rejected:
        message = f"The workload is deactivated due to {rejected}"
        return _send_back(workload, "DeactivatedDueToAdmissionCheck", message)
    retried = _checks_in(workload, "Retry")
    if retried:
        return _send_back(workload, "AdmissionCheck", f"Evicted due to {retried}")
    return None


def _checks_in(workload: Workload, state: str) -> str:
    found = [f'"{c.name}" ({c.message})' for c in workload.checks if c.state == state]
    if not found:
        return ""
    noun = "AdmissionCheck" if len(found) == 1 else "AdmissionChecks"
    return f"{noun} in {state} state: {'; '.join(found)}"


def drain_stopped(state: State) -> Iterator[Evict]:
    """A held queue takes back reservations that are not yet admitted; a drained one stops everybody."""
    for name in sorted(state.stopped_queues):
        for held in state.ledger.held_in(name).values():
            if _must_leave(held.workload, state.queues[name].stop):
                yield _send_back(
                    held.workload, "ClusterQueueStopped", "The ClusterQueue is stopped"
                )
    for key in sorted(state.stopped_local_queues):
        local = state.local_queues[key]
        queue_stopped = local.queue in state.stopped_queues
        for held in state.ledger.held_in(local.queue).values():
            here = (held.workload.namespace, held.workload.local_queue) == (
                local.namespace,
                local.name,
            )
            if here and not queue_stopped and _must_leave(held.workload, local.stop):
                yield _send_back(held.workload, "LocalQueueStopped", "The LocalQueue is stopped")


def _must_leave(workload: Workload, stop: str) -> bool:
    if workload.evicted_at is not None or workload.admission is None:
        return False
    return stop == "HoldAndDrain" or not workload.admission.admitted


def _send_back(workload: Workload, rule: str, message: str) -> Evict:
    kind: Kind = "checks" if rule.endswith("AdmissionCheck") else "queue-drained"
    return Evict(
        workload=workload.id,
        preemptor=NOBODY,
        reason=Reason(kind=kind, kueue=rule, rule=rule, message=message),
    )
