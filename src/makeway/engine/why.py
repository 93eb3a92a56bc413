"""Why a workload waits, asked for one workload, now: what is missing, who has it, what keeps them safe, what would help.

Nothing is decided here. The workload is nominated by itself, as a cycle would do it, and then a few times more with one thing
changed (a higher priority, fewer pods) to find the cheapest change that would let it in. This file asks quota; `why_nodes` asks
the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from makeway.engine.admission import checks_open, checks_passed, required_checks
from makeway.engine.demand import smaller_counts
from makeway.engine.entries import Entry
from makeway.engine.joint import Joint
from makeway.engine.ledger import Held
from makeway.engine.nominate import Nominator
from makeway.engine.occupancy import occupies
from makeway.engine.policy import Policy
from makeway.engine.proposal import Mode
from makeway.engine.quota import QuotaNode
from makeway.engine.seating import Seating
from makeway.engine.standing import why_waiting
from makeway.engine.state import State
from makeway.engine.victims.candidates import why_safe
from makeway.engine.why_nodes import (
    MOST_HOLDERS,
    NodeQuestion,
    held_terms,
    queued_terms,
    some_names,
    unqueued_terms,
)
from makeway.model.queue import PreemptionPolicy, Queue, QueueName
from makeway.model.reason import Holder, Reason, Shortage
from makeway.model.resources import format_amount
from makeway.model.workload import Admission, Workload, WorkloadId


def why(state: State, workload: WorkloadId, now: float, policy: Policy) -> Reason | None:
    """None when it does not wait. A reason of kind `fits` when the next cycle would take it."""
    asked = state.workloads[workload]
    if asked.finished:
        return None
    state.order_by(policy, now)
    found = _why(state, asked, now, policy)
    return found and _with_who_goes_first(state, asked, found)


def _with_who_goes_first(state: State, asked: Workload, reason: Reason) -> Reason:
    """Where local queues are told apart by what they have used: who has its turn before it, and why."""
    queue = state.waits_in(asked.id)
    head = state.pending[queue].head() if queue is not None else None
    if queue is None or head is None or head.id == asked.id:
        return reason
    because = state.why_after(asked, head, queue)
    if not because:
        return reason
    return msgspec.structs.replace(reason, goes_first=f"{head.id} has its turn first: {because}")


def _why(state: State, asked: Workload, now: float, policy: Policy) -> Reason | None:
    with _cycle_of(state, now, policy) as joint:
        if asked.admission is not None:
            return _why_no_nodes_yet(state, joint, asked, asked.admission)
        if (
            asked.needs == "nodes"
            and asked.id not in state.occupancy.waiting
            and _runs(state, asked)
        ):
            return None
        standing = why_waiting(state, asked, now)
        if standing is None or standing.kind not in ("behind", "equal-failed"):
            return standing
        if asked.needs == "nodes":
            return NodeQuestion(joint, asked, unqueued_terms).answer()
        queue = state.queue_of(asked)
        if queue is None:
            return standing
        nominator = Nominator(state, now, policy, None if policy.quota_only else joint)
        entry = nominator.nominate(asked.id, queue)
        if not entry.nominated:
            return entry.reason
        return _explain(state, nominator, joint, entry)


def _runs(state: State, workload: Workload) -> bool:
    return any(occupies(pod) for pod in state.occupancy.members(workload.id))


@contextmanager
def _cycle_of(state: State, now: float, policy: Policy) -> Iterator[Joint]:
    """All that a cycle would ask, as what-if work that undoes itself."""
    seating = Seating(state, now, policy)
    with seating.open(), state.ledger.what_if():
        yield Joint(state, seating, now, policy)


def _why_no_nodes_yet(
    state: State, joint: Joint, workload: Workload, held: Admission
) -> Reason | None:
    """It holds quota: it waits for its checks, for nodes, or not at all."""
    queue = state.queues.get(held.queue)
    if workload.evicted_at is not None:
        return None
    if not held.admitted and queue is not None and not checks_passed(workload, held, queue):
        return _open_checks(workload, held, queue)
    if not held.admitted:
        demands = joint.demands(workload, held.assignments)
        return NodeQuestion(joint, workload, held_terms(held), demands).answer()
    if workload.id not in state.occupancy.waiting:
        return None
    return NodeQuestion(joint, workload, held_terms(held)).answer()


def _open_checks(workload: Workload, held: Admission, queue: Queue) -> Reason:
    said = {check.name: check for check in workload.checks}
    names = sorted(required_checks(held, queue) | said.keys())
    waiting = [n for n in names if n not in said or said[n].state != "Ready"]
    parts = [f"{n} ({said[n].message})" if n in said and said[n].message else n for n in waiting]
    noun = "AdmissionCheck" if len(parts) == 1 else "AdmissionChecks"
    return Reason(
        kind="checks",
        kueue="UnsatisfiedAdmissionChecks",
        message=f"Its quota is reserved in ClusterQueue {held.queue}; waiting for {noun} {', '.join(parts)}",
        cheapest=f"{', '.join(waiting)} set to Ready by the controller that answers for it",
    )


def _explain(state: State, nominator: Nominator, joint: Joint, entry: Entry) -> Reason:
    proposal = entry.proposal
    if proposal.mode is Mode.FIT and checks_open(entry, state):
        return Reason(kind="fits", message="Its quota is free now; its admission checks come next.")
    if proposal.mode is Mode.FIT:
        demands = joint.demands(entry.workload, proposal.assignments())
        terms = queued_terms(entry.queue, proposal)
        return NodeQuestion(joint, entry.workload, terms, demands).answer()
    if entry.victims:
        names = ", ".join(victim.held.id for victim in entry.victims)
        return Reason(
            kind="waiting-for-victims",
            message=f"It would get in by preempting {names}.",
            loss=sum(joint.seating.eligible.price_of(v.held.id) for v in entry.victims) / 1000,
        )
    return Reason(
        kind=proposal.no_fit.kind,
        kueue=proposal.no_fit.kueue or "WaitingForQuota",
        message=proposal.message,
        shortages=proposal.shortages,
        holders=tuple(_holders(state, entry, nominator)),
        cheapest=_cheapest(nominator, entry),
    )


# -- who has it ------------------------------------------------------------------------------------------------------


def _holders(state: State, entry: Entry, nominator: Nominator) -> Iterator[Holder]:
    """Who uses what is short, anywhere in the cohort tree, the largest first."""
    short = {(s.flavor, s.resource) for s in entry.proposal.shortages}
    root = state.ledger.queue(entry.queue).root()
    nodes = [root] if root.is_queue else list(root.queues_below())
    found = [
        (sum(held.usage.get(fr, 0) for fr in short), node, held)
        for node in nodes
        for held in state.ledger.held_in(node.name).values()
        if held.uses(short)
    ]
    found.sort(key=lambda item: (-item[0], item[2].id))
    for _, node, held in found[:MOST_HOLDERS]:
        yield Holder(
            workload=held.id,
            priority=held.workload.priority,
            queue=node.name,
            safe_because=_safe_because(state, entry, node, held, nominator),
        )


def _safe_because(
    state: State, entry: Entry, node: QuotaNode, held: Held, nominator: Nominator
) -> str:
    """The first rule that keeps this one from being evicted for the one who waits; "" when none does."""
    preemption, policy = state.queues[entry.queue].preemption, nominator.policy
    if held.workload.evicted_at is not None:
        return "it is already leaving"
    if not entry.workload.preempts:
        return f"{entry.workload.id} has preemptionPolicy Never"
    if nominator.joint is not None and policy.victims == "least-loss":
        protected = nominator.joint.seating.eligible.protection_of(held.id)
        if protected:
            return protected
    refused = why_safe(node, entry.queue, preemption, entry.workload, held, policy)
    if refused or node.name == entry.queue:
        return refused
    return _needs_borrowing(state, entry, preemption, policy)


def _needs_borrowing(
    state: State, entry: Entry, preemption: PreemptionPolicy, policy: Policy
) -> str:
    """To evict others in order to borrow takes a permission of its own."""
    usage = entry.proposal.usage or {
        (s.flavor, s.resource): s.requested for s in entry.proposal.shortages
    }
    if policy.fair_sharing or preemption.borrow != "Never":
        return ""
    if state.ledger.queue(entry.queue).fits_in_nominal(usage):
        return ""
    return f"ClusterQueue {entry.queue} would have to borrow, and borrowWithinCohort is Never"


# -- what would help -------------------------------------------------------------------------------------------------


def _cheapest(nominator: Nominator, entry: Entry) -> str:
    """Fewer pods cost the owner least, then a higher priority, then quota that somebody has to give."""
    return (
        _fewer_pods(nominator, entry)
        or _higher_priority(nominator, entry)
        or _more_quota(entry.proposal.shortages)
    )


def _fewer_pods(nominator: Nominator, entry: Entry) -> str:
    workload = entry.workload
    if len(workload.pod_sets) != 1 or workload.pod_sets[0].count < 2:
        return ""
    count = workload.pod_sets[0].count
    shrinkable = msgspec.structs.replace(
        workload, pod_sets=(msgspec.structs.replace(workload.pod_sets[0], min_count=1),)
    )
    assigner = nominator.assigner(workload, entry.queue)
    low, high = 1, count - 1  # how many pods to leave out
    best = 0
    while low <= high:
        middle = (low + high) // 2
        counts = smaller_counts(shrinkable, middle)
        if assigner.assign(shrinkable, counts=counts).mode is Mode.FIT:
            best, high = count - middle, middle - 1
        else:
            low = middle + 1
    return f"{best} of its {count} pods would fit now" if best else ""


def _higher_priority(nominator: Nominator, entry: Entry) -> str:
    """The lowest priority that would find victims."""
    workload, queue = entry.workload, entry.queue
    for priority in _priorities_above(nominator.state, queue, workload.priority):
        raised = msgspec.structs.replace(workload, priority=priority)
        proposal = nominator.assigner(raised, queue).assign(raised)
        victims = nominator.victims_for(raised, queue, proposal)
        if victims:
            names = some_names(victim.held.id for victim in victims)
            return f"a priority of {priority} would let it preempt {names}"
    return ""


def _priorities_above(state: State, queue: QueueName, own: int) -> list[int]:
    root = state.ledger.queue(queue).root()
    nodes = [root] if root.is_queue else list(root.queues_below())
    held = {h.workload.priority for node in nodes for h in state.ledger.held_in(node.name).values()}
    return sorted(priority + 1 for priority in held if priority >= own)


def _more_quota(shortages: tuple[Shortage, ...]) -> str:
    if not shortages:
        return ""
    least = min(shortages, key=lambda s: s.missing)
    amount = format_amount(least.resource, least.missing)
    return f"{amount} more {least.resource} in flavor {least.flavor} for ClusterQueue {least.queue}"
