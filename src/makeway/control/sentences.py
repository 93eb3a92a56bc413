"""A reason as one sentence with numbers: why it waits, because of whom, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence

from makeway.model.reason import Holder, NodeVerdict, Reason, Shortage
from makeway.model.resources import format_amount


def sentence(reason: Reason) -> str:
    """For every surface: CLI, conditions, events."""
    if reason.kind in ("no-nodes-fit", "never-preempts", "topology") and not reason.kueue.endswith(
        "PlacementFailed"
    ):
        return _no_nodes(reason)
    if reason.kind == "waiting-for-victims" and not reason.message:
        return _waiting_for_victims(reason)
    if reason.kind == "patience":
        return f"waits for {_names(reason.holders)} to end, which costs nobody any work, rather than evict"
    if reason.kind == "gang-incomplete":
        return _gang_incomplete(reason)
    return reason.message or reason.kind.replace("-", " ")


def unschedulable(reason: Reason) -> str:
    """As kube-scheduler words it on a pod: `0/3 nodes are available: 3 Insufficient cpu. preemption: …`."""
    if not reason.nodes_total:
        return "no nodes available to schedule pods"
    head = (
        f"0/{reason.nodes_total} nodes are available: {reason.message or _list(reason.verdicts)}."
    )
    if reason.kind == "waiting-for-victims":
        return head
    if reason.not_eligible:
        return f"{head} no new claims to deallocate, preemption: {reason.not_eligible}"
    if reason.even_after:
        after = f"0/{reason.nodes_total} nodes are available: {_list(reason.even_after)}."
        return f"{head} no new claims to deallocate, preemption: {after}"
    return head


def _list(verdicts: Sequence[NodeVerdict]) -> str:
    return ", ".join(sorted(f"{verdict.count} {verdict.cause}" for verdict in verdicts))


def _no_nodes(reason: Reason) -> str:
    if not reason.nodes_total:
        return "there are no nodes"
    parts = [_needs_at_once(shortage) for shortage in reason.shortages]
    if reason.message:
        parts.append(reason.message)
    elif reason.verdicts:
        parts.append(f"0/{reason.nodes_total} nodes are available: {_list(reason.verdicts)}")
    if reason.not_eligible:
        parts.append("it may not evict anybody (preemptionPolicy: Never)")
    elif reason.even_after:
        parts.append(f"evicting does not help: {_list(reason.even_after)}")
    return "; ".join(part for part in parts if part)


def _needs_at_once(shortage: Shortage) -> str:
    if shortage.resource == "pods":
        return f"needs {shortage.requested} pods at once, and {shortage.nodes} nodes have room for {shortage.free}"
    return shortage_sentence(shortage)


def shortage_sentence(shortage: Shortage) -> str:
    """`8 nvidia.com/gpu more needed: 16 asked for, 8 of 24 free on 3 nodes`."""
    resource = shortage.resource

    def amount(number: int) -> str:
        return format_amount(resource, number)

    if resource == "pods" and not shortage.queue:
        return _needs_at_once(shortage)
    if shortage.queue:
        where = f"in flavor {shortage.flavor} of ClusterQueue {shortage.queue}"
        most = f" (at most {amount(shortage.limit)} there)" if shortage.limit else ""
    elif shortage.nodes == 1:
        where, most = "on the freest node", f" (the largest has {amount(shortage.limit)})"
    else:
        where, most = f"on {shortage.nodes} nodes", f" (which have {amount(shortage.limit)})"
    return (
        f"{amount(shortage.missing)} {resource} missing: {amount(shortage.requested)} asked for,"
        f" {amount(shortage.free)} free {where}{most}"
    )


def _waiting_for_victims(reason: Reason) -> str:
    cost = f" (cost: {reason.loss / 60:.1f} GPU-minutes of work)" if reason.loss else ""
    return f"waiting for {_names(reason.holders)} to stop{cost}"


def _names(holders: Sequence[Holder]) -> str:
    names = [holder.workload for holder in holders]
    if len(names) <= 3:
        return ", ".join(names) or "others"
    return f"{', '.join(names[:3])} and {len(names) - 3} more"


def _gang_incomplete(reason: Reason) -> str:
    shortage = reason.shortages[0]
    return f"{shortage.free} of {shortage.requested} pods exist; {shortage.missing} more must be created before it can start"
