"""What stands now, in numbers, counted when somebody asks: who waits, who holds quota, what queues and cohorts own and have given out.

Names and labels are Kueue's where the meaning is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from makeway.engine.fairness import share
from makeway.engine.quota import QuotaNode
from makeway.engine.state import State
from makeway.model.queue import Queue, Quota
from makeway.model.resources import in_units
from makeway.model.workload import Admission, Workload

Labels = tuple[tuple[str, str], ...]
Samples = dict[Labels, float]

STANDING: Final = {
    "kueue_pending_workloads": "Workloads in line, by queue; inadmissible ones wait for a change.",
    "kueue_reserving_active_workloads": "Workloads that hold quota, by queue.",
    "kueue_admitted_active_workloads": "Workloads that are admitted and not over, by queue.",
    "kueue_finished_workloads": "Workloads that are over and still there, by queue.",
    "kueue_cluster_queue_status": "1 for the state a queue is in.",
    "kueue_cluster_queue_info": "1 for each queue, with the cohort above it and the one at the top.",
    "kueue_cluster_queue_resource_reservation": "Quota that is reserved, by queue, flavor and resource.",
    "kueue_cluster_queue_resource_usage": "Quota of admitted workloads, by queue, flavor and resource.",
    "kueue_cluster_queue_resource_pending": "What workloads in line ask for, by queue and resource.",
    "kueue_cluster_queue_nominal_quota": "Quota that a queue owns.",
    "kueue_cluster_queue_borrowing_limit": "How much a queue may borrow; +Inf where nothing limits it.",
    "kueue_cluster_queue_lending_limit": "How much a queue may lend; +Inf where nothing limits it.",
    "kueue_cluster_queue_weighted_share": "A queue's share of what it borrows, by its weight.",
    "kueue_cohort_info": "1 for each cohort, with the one above it and the one at the top.",
    "kueue_cohort_subtree_quota": "Quota of a cohort and all below it that can be shared there.",
    "kueue_cohort_subtree_resource_reservations": "Quota that is reserved in the queues below a cohort.",
    "kueue_cohort_subtree_admitted_active_workloads": "Workloads that are admitted and not over in the queues below a cohort.",
    "kueue_cohort_weighted_share": "A cohort's share of what it borrows, by its weight.",
    "kueue_local_queue_pending_workloads": "Workloads in line, by local queue.",
    "kueue_local_queue_reserving_active_workloads": "Workloads that hold quota, by local queue.",
    "kueue_local_queue_admitted_active_workloads": "Workloads that are admitted and not over, by local queue.",
    "kueue_local_queue_finished_workloads": "Workloads that are over and still there, by local queue.",
    "kueue_local_queue_status": "1 for whether a local queue admits.",
    "kueue_local_queue_resource_reservation": "Quota that is reserved, by local queue, flavor and resource.",
    "kueue_local_queue_resource_usage": "Quota of admitted workloads, by local queue, flavor and resource.",
    "kueue_local_queue_admission_fair_sharing_usage": "What a local queue has used, as it counts where usage decides.",
    "makeway_holds": "Workloads for which room is kept while victims leave.",
    "makeway_nodes": "Nodes that are known.",
}


def standing(state: State) -> dict[str, Samples]:
    return {
        "makeway_holds": {(): len(state.holds)},
        "makeway_nodes": {(): len(state.nodes)},
        **_lines(state),
        **_workloads(state),
        **_quotas(state),
        **_cohorts(state),
        **_shares(state),
        "kueue_local_queue_admission_fair_sharing_usage": _usage_of_local_queues(state),
    }


# ---- who waits --------------------------------------------------------------------------------------


def _lines(state: State) -> dict[str, Samples]:
    pending: Samples = {}
    status: Samples = {}
    asked: Samples = {}
    doors: dict[Labels, float] = defaultdict(float)
    for queue in state.queues:
        name = ("cluster_queue", str(queue))
        line = state.pending.get(queue)
        wants: Counter[str] = Counter()
        for standing_in, who in (
            ("active", list(line.active()) if line else []),
            ("inadmissible", list(line.parked()) if line else []),
        ):
            pending[name, ("status", standing_in)] = len(who)
            for workload in map(state.workloads.__getitem__, who):
                wants.update(_requests(workload))
                doors[(*_door(workload), ("status", standing_in))] += 1
        for resource, amount in wants.items():
            asked[name, ("resource", resource)] = _in_units(resource, amount)
        status[name, ("status", "active" if state.is_active(queue) else "pending")] = 1
    open_doors: Samples = {
        (("name", door.name), ("namespace", door.namespace), ("active", _admits(state, key))): 1.0
        for key, door in state.local_queues.items()
    }
    return {
        "kueue_pending_workloads": pending,
        "kueue_cluster_queue_status": status,
        "kueue_cluster_queue_resource_pending": asked,
        "kueue_local_queue_pending_workloads": dict(doors),
        "kueue_local_queue_status": open_doors,
    }


def _requests(workload: Workload) -> dict[str, int]:
    total: Counter[str] = Counter()
    for pod_set in workload.pod_sets:
        for resource, amount in pod_set.shape.requests:
            total[resource] += amount * pod_set.count
    return total


def _admits(state: State, key: str) -> str:
    door = state.local_queues[key]
    goes_on = door.stop == "None" and not door.terminating
    return (
        "true"
        if goes_on and door.queue in state.queues and state.is_active(door.queue)
        else "false"
    )


def _door(workload: Workload) -> Labels:
    return (("name", str(workload.local_queue or "")), ("namespace", workload.namespace))


# ---- who holds quota, and who is over ----------------------------------------------------------------


def _workloads(state: State) -> dict[str, Samples]:
    counts: dict[str, Counter[Labels]] = defaultdict(Counter)
    for workload in state.workloads.values():
        queue = state.queue_of(workload) if workload.admission is None else workload.admission.queue
        if queue is None:
            continue
        for word in _stands(workload):
            counts[f"kueue_{word}"][(("cluster_queue", str(queue)),)] += 1
            if workload.local_queue:
                counts[f"kueue_local_queue_{word}"][_door(workload)] += 1
    held = [w for w in state.workloads.values() if w.admission is not None and not w.finished]
    found: dict[str, Samples] = {
        "kueue_local_queue_resource_reservation": _given(held),
        "kueue_local_queue_resource_usage": _given(w for w in held if _admitted(w)),
    }
    for name, count in counts.items():
        found[name] = {labels: float(n) for labels, n in count.items()}
    return found


def _stands(workload: Workload) -> Iterator[str]:
    if workload.finished:
        yield "finished_workloads"
    elif workload.admission is not None:
        yield "reserving_active_workloads"
        if workload.admission.admitted:
            yield "admitted_active_workloads"


def _admitted(workload: Workload) -> bool:
    return workload.admission is not None and workload.admission.admitted


def _given(workloads: Iterable[Workload]) -> Samples:
    """What local queues' workloads were given."""
    amounts: Counter[tuple[Labels, str, str]] = Counter()
    for workload in workloads:
        if workload.local_queue and workload.admission is not None:
            for flavor, resource, amount in _amounts(workload.admission):
                amounts[_door(workload), flavor, resource] += amount
    return {
        (*door, ("flavor", flavor), ("resource", resource)): _in_units(resource, amount)
        for (door, flavor, resource), amount in amounts.items()
    }


def _amounts(admission: Admission) -> Iterator[tuple[str, str, int]]:
    for assignment in admission.assignments:
        flavors = dict(assignment.flavors)
        for resource, amount in assignment.usage:
            if resource in flavors:
                yield str(flavors[resource]), resource, amount


def _usage_of_local_queues(state: State) -> Samples:
    """As of the last cycle."""
    return {
        (
            ("name", local.name),
            ("namespace", local.namespace),
            ("cluster_queue", str(local.queue)),
        ): (state.usage.of(door))
        for door, local in state.local_queues.items()
        if state.usage.applies_to(local.queue)
    }


# ---- what queues and cohorts own ---------------------------------------------------------------------


def _quotas(state: State) -> dict[str, Samples]:
    """What queues own, may borrow and lend, and have given out."""
    prefix = "kueue_cluster_queue"
    words = ("nominal_quota", "borrowing_limit", "lending_limit")
    found: dict[str, Samples] = {
        f"{prefix}_{what}": {} for what in (*words, "resource_reservation", "resource_usage")
    }
    used = _used(state)
    for name, queue in state.queues.items():
        usage = state.ledger.tree.queues[name].usage if name in state.ledger.tree.queues else {}
        for flavor, quota in _owned(queue):
            labels = (
                ("cohort", str(queue.cohort or "")),
                ("cluster_queue", str(name)),
                ("flavor", flavor),
                ("resource", quota.resource),
            )
            amounts = {
                "nominal_quota": quota.nominal,
                "borrowing_limit": quota.borrowing_limit,
                "lending_limit": quota.lending_limit,
                "resource_reservation": usage.get((flavor, quota.resource), 0),
                "resource_usage": used[str(name), flavor, quota.resource],
            }
            for what, amount in amounts.items():
                found[f"{prefix}_{what}"][labels] = _in_units(quota.resource, amount)
    return found


def _used(state: State) -> Counter[tuple[str, str, str]]:
    """By queue, flavor and resource: what admitted workloads were given."""
    amounts: Counter[tuple[str, str, str]] = Counter()
    for workload in state.workloads.values():
        if workload.admission is not None and workload.admission.admitted and not workload.finished:
            for flavor, resource, amount in _amounts(workload.admission):
                amounts[str(workload.admission.queue), flavor, resource] += amount
    return amounts


def _owned(queue: Queue) -> Iterator[tuple[str, Quota]]:
    for group in queue.resource_groups:
        for flavor in group.flavors:
            for quota in flavor.quotas:
                yield str(flavor.flavor), quota


def _cohorts(state: State) -> dict[str, Samples]:
    tree = state.ledger.tree
    running = Counter(
        str(w.admission.queue)
        for w in state.workloads.values()
        if w.admission is not None and w.admission.admitted and not w.finished
    )
    quota: Samples = {}
    reserved: Samples = {}
    for cohort in tree.cohorts.values():
        name = ("cohort", cohort.name)
        below: Counter[tuple[str, str]] = Counter()
        for queue in cohort.queues_below():
            below.update(queue.usage)
        for (flavor, resource), amount in cohort.subtree.items():
            labels = (name, ("flavor", flavor), ("resource", resource))
            quota[labels] = _in_units(resource, amount)
            reserved[labels] = _in_units(resource, below[flavor, resource])
    return {
        "kueue_cohort_subtree_quota": quota,
        "kueue_cohort_subtree_resource_reservations": reserved,
        "kueue_cohort_subtree_admitted_active_workloads": {
            (("cohort", cohort.name),): sum(running[q.name] for q in cohort.queues_below())
            for cohort in tree.cohorts.values()
        },
        "kueue_cohort_info": {_above("cohort", node): 1.0 for node in tree.cohorts.values()},
        "kueue_cluster_queue_info": {
            _above("cluster_queue", node): 1.0 for node in tree.queues.values()
        },
    }


def _above(kind: str, node: QuotaNode) -> Labels:
    parent, root = node.parent, node.root()
    return (
        (kind, node.name),
        ("parent_cohort", parent.name if parent is not None else ""),
        ("root_cohort", "" if root.is_queue else root.name),
    )


def _in_units(resource: str, amount: int | None) -> float:
    """Cores and not thousandths, as Kueue has it; no limit is an infinite one."""
    if amount is None:
        return float("inf")
    return in_units(resource, amount)


def _shares(state: State) -> dict[str, Samples]:
    tree = state.ledger.tree
    return {
        "kueue_cluster_queue_weighted_share": {
            (("cluster_queue", node.name), ("cohort", node.parent.name)): _share(node)
            for node in tree.queues.values()
            if node.parent is not None
        },
        "kueue_cohort_weighted_share": {
            (("cohort", node.name),): _share(node) for node in tree.cohorts.values()
        },
    }


def _share(node: QuotaNode) -> float:
    found = share(node)
    return float("nan") if found.endless else float(found.rounded())
