"""Which nodes a pod shape may use, and if not, why not, in kube-scheduler's order and words.

Static rules (name, cordon, taints, labels, volumes) depend on the node alone and are cached per shape. Room depends on who is
there. Rules about other pods (ports, affinity, spread) are asked only of shapes that have them, or where a neighbour has them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from makeway.engine.nodes import Mask, NodeTable, Rows
from makeway.model.node import Node
from makeway.model.reason import NodeVerdict
from makeway.model.selectors import HARD_EFFECTS, NodeTerm, Taint, untolerated
from makeway.model.workload import HostPort, Pod, PodShape, PodTerm, Spread

_UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")

WRONG_NAME = "node(s) didn't match the requested node name"
CORDONED = "node(s) were unschedulable"
TAINTED = "node(s) had untolerated taint(s)"
AFFINITY = "node(s) didn't match Pod's node affinity/selector"
NOT_NAMED = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
PORTS = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY_PODS = "Too many pods"
VOLUME = "node(s) didn't match PersistentVolume's node affinity"
NO_VOLUME = "node(s) didn't find available persistent volumes to bind"
SPREAD_LABEL = "node(s) didn't match pod topology spread constraints (missing required label)"
SPREAD = "node(s) didn't match pod topology spread constraints"
POD_AFFINITY = "node(s) didn't match pod affinity rules"
POD_ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
# Removing pods from the node cannot help with these.
UNRESOLVABLE = frozenset(
    {
        WRONG_NAME,
        CORDONED,
        TAINTED,
        AFFINITY,
        NOT_NAMED,
        VOLUME,
        NO_VOLUME,
        SPREAD_LABEL,
        POD_AFFINITY,
    }
)


def site_verdict(shape: PodShape, node: Node) -> str:
    """Why this node is out of the question for the shape whoever is on it; "" if it is not."""
    if shape.required_terms and not _named(shape.required_terms, node):
        return NOT_NAMED
    if shape.node_name is not None and shape.node_name != node.name:
        return WRONG_NAME
    if node.unschedulable and untolerated((_UNSCHEDULABLE,), shape.tolerations):
        return CORDONED
    if node.taints and untolerated(node.taints, shape.tolerations, HARD_EFFECTS):
        return TAINTED
    if not _asked_for(shape, node):
        return AFFINITY
    if any(not _any_term(terms, node) for terms in shape.volume_terms):
        return VOLUME
    if any(not _any_term(terms, node) for terms in shape.late_volume_terms):
        return NO_VOLUME
    return ""


def _asked_for(shape: PodShape, node: Node) -> bool:
    """Whether the node is one that the shape's selector and affinity name."""
    if any(node.labels.get(key) != value for key, value in shape.node_selector):
        return False
    return shape.required_terms is None or _any_term(shape.required_terms, node)


def _named(terms: tuple[NodeTerm, ...], node: Node) -> bool:
    """Affinity that names its nodes in every term leaves all others out before anything else is asked of them."""
    return any(
        all(
            requirement.matches({"metadata.name": node.name})
            for requirement in term.fields
            if requirement.operator == "In"
        )
        for term in terms
    )


def _any_term(terms: tuple[NodeTerm, ...], node: Node) -> bool:
    return any(term.matches(node.name, node.labels) for term in terms)


def room_verdicts(table: NodeTable, shape: PodShape, row: int) -> tuple[list[str], bool]:
    """What is short on this node for one pod, and whether it would be short on the empty node too."""
    need = table.need(shape)
    free, alloc = table.free[row], table.alloc[row]
    if free[0] < 1:
        verdicts = [TOO_MANY_PODS]
    else:
        verdicts = []
    hopeless = False
    for resource, column in table.columns.items():
        if column and need[column] > 0 and need[column] > free[column]:
            verdicts.append(f"Insufficient {resource}")
            hopeless = hopeless or bool(need[column] > alloc[column])
    return verdicts, hopeless


# --- rules about other pods ---


def depends_on_neighbours(table: NodeTable, shape: PodShape) -> bool:
    """Whether pods of this shape must be placed one by one."""
    hard_spread = any(spread.hard for spread in shape.spread)
    return bool(
        shape.host_ports or shape.affinity or shape.anti_affinity or hard_spread or table.choosy
    )


def neighbour_verdicts(table: NodeTable, shape: PodShape, rows: Rows) -> dict[int, str]:
    """The rows that rules about other pods exclude, and why."""
    out: dict[int, str] = {}
    for mask_of, cause in (
        (_ports_free, PORTS),
        (_spread_labels, SPREAD_LABEL),
        (_spread_even, SPREAD),
        (_near_wanted, POD_AFFINITY),
        (_far_from_unwanted, POD_ANTI_AFFINITY),
        (_welcome, EXISTING_ANTI_AFFINITY),
    ):
        suits = mask_of(table, shape)
        if suits is None:
            continue
        for row in rows[~suits[rows]].tolist():
            out.setdefault(row, cause)
    return out


def neighbour_mask(table: NodeTable, shape: PodShape) -> Mask | None:
    """The rows that rules about other pods leave; None when there are no such rules."""
    result: Mask | None = None
    for mask_of in (
        _ports_free,
        _spread_labels,
        _spread_even,
        _near_wanted,
        _far_from_unwanted,
        _welcome,
    ):
        suits = mask_of(table, shape)
        if suits is not None:
            result = suits if result is None else result & suits
    return result


def _ports_free(table: NodeTable, shape: PodShape) -> Mask | None:
    if not shape.host_ports:
        return None
    mask = table.live.copy()
    for row, pods in enumerate(table.pods_on):
        if any(
            _clash(mine, theirs)
            for pod in pods.values()
            for theirs in pod.shape.host_ports
            for mine in shape.host_ports
        ):
            mask[row] = False
    return mask


def _clash(mine: HostPort, theirs: HostPort) -> bool:
    if (mine.port, mine.protocol) != (theirs.port, theirs.protocol):
        return False
    return mine.ip == theirs.ip or "0.0.0.0" in (mine.ip, theirs.ip)


def _matches(table: NodeTable, term: PodTerm, pod: Pod) -> bool:
    namespace = pod.shape.namespace
    if namespace not in term.namespaces:
        labels = table.namespaces.get(namespace, {})
        if term.namespace_selector is None or not term.namespace_selector.matches(labels):
            return False
    return term.selector is not None and term.selector.matches(dict(pod.shape.labels))


def _pod_like(shape: PodShape) -> Pod:
    return Pod(id="", workload="", shape=shape)  # type: ignore[arg-type]  # a stand-in for matching only


def _domains_with(table: NodeTable, key: str, holds: list[int]) -> Mask:
    """Rows in the same domain of `key` as any of these rows."""
    codes, values = table.codes(key)
    present = np.zeros(len(values) + 1, np.bool_)
    present[codes[holds]] = True
    present[-1] = False  # code -1: no such label
    return present[codes]


def _rows_of(table: NodeTable, term: PodTerm) -> list[int]:
    return [
        row
        for row, pods in enumerate(table.pods_on)
        if any(_matches(table, term, pod) for pod in pods.values())
    ]


def _near_wanted(table: NodeTable, shape: PodShape) -> Mask | None:
    required = [term for term in shape.affinity if not term.weight]
    if not required:
        return None
    # One existing pod must match all terms; its domains then count for each term's key.
    wanted = [
        row
        for row, pods in enumerate(table.pods_on)
        if any(all(_matches(table, term, pod) for term in required) for pod in pods.values())
    ]
    if not wanted:
        # The first of a group that wants its own kind: any node that has the labels.
        if not all(_matches(table, term, _pod_like(shape)) for term in required):
            return np.zeros(len(table.live), np.bool_)
        mask = table.live.copy()
        for term in required:
            mask &= table.codes(term.topology_key)[0] >= 0
        return mask
    mask = table.live.copy()
    for term in required:
        mask &= _domains_with(table, term.topology_key, wanted)
    return mask


def _far_from_unwanted(table: NodeTable, shape: PodShape) -> Mask | None:
    required = [term for term in shape.anti_affinity if not term.weight]
    if not required:
        return None
    mask = table.live.copy()
    for term in required:
        mask &= ~_domains_with(table, term.topology_key, _rows_of(table, term))
    return mask


def _welcome(table: NodeTable, shape: PodShape) -> Mask | None:
    """Nobody already there has anti-affinity against the shape."""
    if not table.choosy:
        return None
    newcomer = _pod_like(shape)
    mask: Mask | None = None
    for pod in table.choosy.values():
        row = table.row_of.get(pod.node) if pod.node else None
        for term in pod.shape.anti_affinity:
            if not term.weight and row is not None and _matches(table, term, newcomer):
                mask = table.live.copy() if mask is None else mask
                mask &= ~_domains_with(table, term.topology_key, [row])
    return mask


def _spread_labels(table: NodeTable, shape: PodShape) -> Mask | None:
    hard = [spread for spread in shape.spread if spread.hard]
    if not hard:
        return None
    mask = table.live.copy()
    for spread in hard:
        mask &= table.codes(spread.topology_key)[0] >= 0
    return mask


def _spread_even(table: NodeTable, shape: PodShape) -> Mask | None:
    hard = [spread for spread in shape.spread if spread.hard]
    if not hard:
        return None
    mask = table.live.copy()
    for spread in hard:
        mask &= _within_skew(table, shape, spread)
    return mask


def _within_skew(table: NodeTable, shape: PodShape, spread: Spread) -> Mask:
    codes, values = table.codes(spread.topology_key)
    eligible = _spread_eligible(table, shape, spread)
    counts = spread_counts(table, shape, spread, eligible)
    domains = sorted(set(codes[eligible].tolist()) - {-1})
    lowest = min((counts[d] for d in domains), default=0)
    if len(domains) < spread.min_domains:
        lowest = 0
    itself = 1 if spread.selector is not None and spread.selector.matches(dict(shape.labels)) else 0
    within = np.zeros(len(values) + 1, np.bool_)
    for code in range(len(values)):
        within[code] = counts[code] + itself - lowest <= spread.max_skew
    within[-1] = True  # a node without the label is judged by _spread_labels
    return within[codes]


def _spread_eligible(table: NodeTable, shape: PodShape, spread: Spread) -> Mask:
    mask = table.live.copy()
    for constraint in shape.spread:
        mask &= table.codes(constraint.topology_key)[0] >= 0
    for row in np.flatnonzero(mask).tolist():
        node = table.nodes[row]
        assert node is not None
        # Each for itself: a node that is tainted and elsewhere is elsewhere all the same.
        elsewhere = spread.honor_affinity and not _asked_for(shape, node)
        tainted = spread.honor_taints and untolerated(node.taints, shape.tolerations, HARD_EFFECTS)
        if elsewhere or tainted:
            mask[row] = False
    return mask


def spread_counts(
    table: NodeTable, shape: PodShape, spread: Spread, eligible: Mask
) -> Counter[int]:
    """Matching pods of the namespace per domain; those already leaving do not count."""
    codes, _ = table.codes(spread.topology_key)
    counts: Counter[int] = Counter()
    if spread.selector is None:
        return counts
    for row in np.flatnonzero(eligible).tolist():
        for pod in table.pods_on[row].values():
            if (
                pod.shape.namespace == shape.namespace
                and pod.gone_by is None
                and spread.selector.matches(dict(pod.shape.labels))
            ):
                counts[int(codes[row])] += 1
    return counts


def verdicts(table: NodeTable, shape: PodShape) -> tuple[NodeVerdict, ...]:
    """Why no node takes the shape: causes with how many nodes each refused, sorted as kube-scheduler prints them."""
    causes: Counter[str] = Counter()
    rows = np.flatnonzero(table.live)
    neighbours = (
        neighbour_verdicts(table, shape, rows) if depends_on_neighbours(table, shape) else {}
    )
    for row in rows.tolist():
        node = table.nodes[row]
        assert node is not None
        site = site_verdict(shape, node)
        if site:
            causes[site] += 1
            continue
        if neighbours.get(row) == PORTS:
            causes[PORTS] += 1
            continue
        short, _ = room_verdicts(table, shape, row)
        for cause in short:
            causes[cause] += 1
        if not short and row in neighbours:
            causes[neighbours[row]] += 1
    return tuple(NodeVerdict(cause=cause, count=count) for cause, count in sorted(causes.items()))
