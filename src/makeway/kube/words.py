"""Why a pod has no node, in the words that kube-scheduler's and Koordinator's users know.

`0/3 nodes are available: 1 node(s) had untolerated taint …, 2 Insufficient cpu.`, followed by why evicting does not help
either. A pod for which somebody is leaving says only the first half.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from makeway.model.reason import NodeVerdict, Reason

NO_NODES: Final = "no nodes available to schedule pods"
KOORDINATOR: Final = "koord-scheduler"
# What kube-scheduler says of claims that nobody made, and Koordinator of victims that are not there.
NO_CLAIMS: Final = "no new claims to deallocate, "
NO_VICTIMS: Final = "No preemption victims found for incoming pod"
NO_POTENTIAL_VICTIMS: Final = "no potential victims"
TERMINATING: Final = "not eligible due to a terminating pod on the nominated node."
TERMINATING_THERE: Final = "not eligible due to terminating pod on the nominated node."


def fit_error(reason: Reason) -> str:
    """`0/3 nodes are available: …`."""
    if not reason.nodes_total:
        return NO_NODES
    if not reason.verdicts:
        # kube-scheduler's own tail: the plugin that looks at claims finds nothing to say.
        why = reason.message or reason.kind
        return f"0/{reason.nodes_total} nodes are available: {why}. not found"
    return f"0/{reason.nodes_total} nodes are available: {_histogram(reason.verdicts)}."


def unschedulable(reason: Reason, scheduler: str, *, draining: bool = False) -> str:
    """The whole message of a pod that waits. `draining`: its victims are on their way out already."""
    if reason.kind == "gang-incomplete" and reason.message:
        return reason.message
    said = fit_error(reason)
    if said == NO_NODES or not reason.verdicts:
        return said
    ours = scheduler == KOORDINATOR
    claims = "" if ours else NO_CLAIMS
    if reason.kind == "waiting-for-victims":
        leaving = TERMINATING_THERE if ours else TERMINATING
        return f"{said} {claims}preemption: {leaving}" if draining else said
    if reason.not_eligible:
        return f"{said} {claims}preemption: {reason.not_eligible}"
    if reason.even_after:
        causes = _histogram(_in_their_words(v, ours) for v in reason.even_after)
        total = reason.nodes_total
        return f"{said} {claims}preemption: 0/{total} nodes are available: {causes}."
    return said


def waiting(reason: Reason) -> str:
    """For a queued workload whose quota is there and whose nodes are not."""
    if reason.message:
        return reason.message
    if reason.kind == "gang-incomplete" and reason.shortages:
        lack = reason.shortages[0]
        return f"{lack.free} of the {lack.requested} pods that it needs at once exist"
    if reason.verdicts or reason.nodes_total:
        pods = next((s for s in reason.shortages if s.resource == "pods"), None)
        room = ""
        if pods is not None:
            near = f" within one {pods.level}" if pods.level else ""
            room = f" ({pods.free} of {pods.requested} pods would fit{near})"
        return f"The quota is there, the nodes are not{room}: {fit_error(reason)}"
    return reason.cheapest or reason.kind.replace("-", " ")


def _in_their_words(verdict: NodeVerdict, koordinator: bool) -> NodeVerdict:
    if koordinator and verdict.cause == NO_VICTIMS:
        return NodeVerdict(cause=NO_POTENTIAL_VICTIMS, count=verdict.count)
    return verdict


def _histogram(verdicts: Iterable[NodeVerdict]) -> str:
    """Sorted as text, as those programs do."""
    return ", ".join(sorted(f"{verdict.count} {verdict.cause}" for verdict in verdicts))
