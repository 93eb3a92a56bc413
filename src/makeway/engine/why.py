"""Why a workload waits, asked for one workload, now: what is missing, who has it, what keeps them safe, what would help.

Nothing is decided here. The workload is nominated by itself, as a cycle would do it, and then a few times more with one thing
changed (a higher priority, fewer pods) to find the cheapest change that would let it in.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from makeway.engine.demand import smaller_counts
from makeway.engine.entries import Entry
from makeway.engine.ledger import Held
from makeway.engine.nominate import Nominator
from makeway.engine.policy import Policy
from makeway.engine.proposal import Mode
from makeway.engine.quota import QuotaNode
from makeway.engine.standing import why_waiting
from makeway.engine.state import State
from makeway.engine.victims.candidates import passes
from makeway.model.queue import PreemptionPolicy, QueueName
from makeway.model.reason import Holder, Reason, Shortage
from makeway.model.resources import format_amount
from makeway.model.workload import Workload, WorkloadId

MOST_HOLDERS = 5  # the largest; a list of hundreds explains nothing


def why(state: State, workload: WorkloadId, now: float, policy: Policy) -> Reason | None:
    """None when it does not wait. A reason of kind `fits` when the next cycle would take it."""
    asked = state.workloads[workload]
    standing = why_waiting(state, asked, now)
    queue = state.queue_of(asked)
    if standing is None or queue is None or standing.kind not in ("behind", "equal-failed"):
        return standing
    nominator = Nominator(state, now, policy)
    entry = nominator.nominate(workload, queue)
    if not entry.nominated:
        return entry.reason
    return _explain(state, nominator, entry)


def _explain(state: State, nominator: Nominator, entry: Entry) -> Reason:
    proposal = entry.proposal
    if proposal.mode is Mode.FIT:
        return Reason(kind="fits", message="It fits now and waits for its turn.")
    if entry.victims:
        names = ", ".join(victim.held.id for victim in entry.victims)
        return Reason(kind="waiting-for-victims", message=f"It would get in by preempting {names}.")
    return Reason(
        kind=proposal.no_fit.kind,
        kueue=proposal.no_fit.kueue or "WaitingForQuota",
        message=proposal.message,
        shortages=proposal.shortages,
        holders=tuple(_holders(state, entry, nominator.policy)),
        cheapest=_cheapest(nominator, entry),
    )


# -- who has it ------------------------------------------------------------------------------------------------------


def _holders(state: State, entry: Entry, policy: Policy) -> Iterator[Holder]:
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
            safe_because=_safe_because(state, entry, node, held, policy),
        )


def _safe_because(state: State, entry: Entry, node: QuotaNode, held: Held, policy: Policy) -> str:
    """The first rule that keeps this one from being evicted for the one who waits; "" when none does."""
    preemption = state.queues[entry.queue].preemption
    if held.workload.evicted_at is not None:
        return "it is already leaving"
    if node.name == entry.queue:
        return _refusal("withinClusterQueue", preemption.within_queue, entry.workload, held, policy)
    if node.is_within_nominal(held.usage):
        return f"ClusterQueue {node.name} is within its nominal quota"
    refused = _refusal("reclaimWithinCohort", preemption.reclaim, entry.workload, held, policy)
    return refused or _needs_borrowing(state, entry, preemption, policy)


def _refusal(field: str, rule: str, asking: Workload, held: Held, policy: Policy) -> str:
    if passes(rule, asking, held.workload, policy):
        return ""
    if rule in ("", "Never"):
        return f"{field} is Never"
    return f"its priority {held.workload.priority} is not below {asking.priority}"


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
            names = ", ".join(victim.held.id for victim in victims[:3])
            more = f" and {len(victims) - 3} more" if len(victims) > 3 else ""
            return f"a priority of {priority} would let it preempt {names}{more}"
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
