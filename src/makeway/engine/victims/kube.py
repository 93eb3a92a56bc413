"""kube-scheduler's choice, for people who switch and want to see no difference first: one pod, victims on one node.

On every node where it could help, all pods of lower priority are taken away; if the pod then fits, they are put back one by
one, most important first (budget violations before all), and who no longer fits is a victim. One node is then picked by six
rules. The last of them, arbitrary there, is the node's name here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import msgspec
import numpy as np

from makeway.engine import filters
from makeway.engine.filters import UNRESOLVABLE, neighbour_mask, room_verdicts, site_verdict
from makeway.engine.nodes import NodeTable
from makeway.engine.placement import Demand, Placer
from makeway.engine.victims.least_loss import Legal, Victims
from makeway.engine.victims.roster import Roster
from makeway.model.node import Node
from makeway.model.reason import NodeVerdict
from makeway.model.workload import Budget, Placed, Pod, PodId, PodShape, WorkloadId

_OFFSET = 2**31  # makes more victims worse, also for negative priorities
NO_VICTIMS = "No preemption victims found for incoming pod"
NOT_HELPFUL = "Preemption is not helpful for scheduling"


class _Piece(NamedTuple):
    """Pods of one node that are put back together, or fall together as this unit."""

    unit: int
    pods: tuple[Pod, ...]
    importance: tuple[object, ...]


class _Option(msgspec.Struct, frozen=True, kw_only=True):
    """One node and what it would take."""

    row: int
    victims: tuple[int, ...]
    violations: int


def find(
    placer: Placer,
    roster: Roster,
    demand: Demand,
    legal: Legal,
    budgets: Mapping[str, Budget],
    now: float,
    surplus: Mapping[WorkloadId, int] | None = None,
) -> Victims | None:
    """`surplus`: how many pods each gang can give up before it falls whole."""
    table = placer.table
    on_row: dict[int, list[int]] = {}
    for unit, row in zip(roster.entry_unit.tolist(), roster.entry_row.tolist(), strict=True):
        alone = roster.rows_of_unit[unit] == 1 and bool(roster.candidates[unit].pods)
        if legal.mask[unit] and alone:
            on_row.setdefault(row, []).append(unit)
    suits = placer.view(demand.shape).suits
    options = []
    for row, units in on_row.items():
        if suits[row]:
            pieces = _pieces(roster, units, surplus or {}, now)
            option = _on_node(table, roster, demand.shape, row, pieces, budgets)
            options += [option] if option is not None else []
    if not options:
        return None
    best = min(options, key=lambda option: _preference(table, roster, option))
    node = table.nodes[best.row]
    assert node is not None
    chosen = tuple(roster.candidates[unit] for unit in best.victims)
    loss_ms = sum(candidate.loss_ms for candidate in chosen)
    return Victims(
        chosen=chosen,
        placement=(Placed(pod_set=demand.pod_set, node=node.name, count=1),),
        loss_ms=loss_ms,
        bound_ms=0,
        steps=len(options),
    )


def _pieces(
    roster: Roster, units: Sequence[int], surplus: Mapping[WorkloadId, int], now: float
) -> list[_Piece]:
    """What falls by itself on a node, most important first; a gang's minimum is one piece, and stands before its surplus."""
    gangs = {roster.candidates[u].workload.id: u for u in units if roster.candidates[u].whole}
    spare: dict[WorkloadId, list[int]] = {}
    pieces = []
    for unit in units:
        candidate = roster.candidates[unit]
        if roster.part_of[unit] is not None:
            spare.setdefault(candidate.workload.id, []).append(unit)
        elif not candidate.whole:
            pieces.append(_Piece(unit, candidate.pods, _importance(candidate.pods, now)))
    for workload, whole in gangs.items():
        given_up = _least_important(roster, spare.pop(workload, []), surplus.get(workload, 0), now)
        core = roster.candidates[whole].pods
        lead = _importance(core, now)
        singles = [_Piece(u, roster.candidates[u].pods, (*lead, i)) for i, u in given_up]
        gone = {pod.id for piece in singles for pod in piece.pods}
        kept = tuple(pod for pod in core if pod.id not in gone)
        pieces += [_Piece(whole, kept, lead), *singles]
    for workload, parts in spare.items():  # the rest of the gang is elsewhere
        for _, unit in _least_important(roster, parts, surplus.get(workload, 0), now):
            pods = roster.candidates[unit].pods
            pieces.append(_Piece(unit, pods, _importance(pods, now)))
    return sorted(pieces, key=lambda piece: piece.importance)


def _least_important(
    roster: Roster, units: Sequence[int], count: int, now: float
) -> list[tuple[int, int]]:
    """The last `count` of these, each with its place in the order."""
    order = sorted(units, key=lambda unit: _importance(roster.candidates[unit].pods, now))
    return list(enumerate(order))[max(0, len(order) - count) :]


def _on_node(
    table: NodeTable,
    roster: Roster,
    shape: PodShape,
    row: int,
    pieces: Sequence[_Piece],
    budgets: Mapping[str, Budget],
) -> _Option | None:
    violating = _violating(roster, pieces, budgets)
    fallen: dict[WorkloadId, None] = {}  # gangs that lost their minimum: the rest goes with it
    victims: list[_Piece] = []
    with table.what_if():
        for piece in pieces:
            for pod in piece.pods:
                table.lift(pod, row)
        if not _fits(table, shape, row):
            return None
        for piece in [p for p in pieces if p.unit in violating] + [
            p for p in pieces if p.unit not in violating
        ]:
            candidate = roster.candidates[piece.unit]
            if candidate.workload.id in fallen and not candidate.whole:
                continue
            for pod in piece.pods:
                table.put(pod, row)
            if not _fits(table, shape, row):
                for pod in piece.pods:
                    table.lift(pod, row)
                victims.append(piece)
                if candidate.whole:
                    fallen[candidate.workload.id] = None
    if not victims:
        return None
    victims.sort(key=lambda piece: piece.importance)
    return _Option(
        row=row,
        victims=tuple(piece.unit for piece in victims),
        violations=sum(1 for piece in victims if piece.unit in violating),
    )


def _fits(table: NodeTable, shape: PodShape, row: int) -> bool:
    if room_verdicts(table, shape, row)[0]:
        return False
    mask = neighbour_mask(table, shape)
    return mask is None or bool(mask[row])


def _importance(pods: Sequence[Pod], now: float) -> tuple[int, float, str]:
    """Most important first: higher priority, then the earlier start; not started counts as now."""
    pod = pods[0]
    started = pod.started_at if pod.started_at is not None else now
    return (-pod.priority, started, pod.id)


def _violating(roster: Roster, pieces: Sequence[_Piece], budgets: Mapping[str, Budget]) -> set[int]:
    """Walking from the most important, those that overdraw a budget: the important ones use it up first."""
    left = {budget.id: budget.allowed for budget in budgets.values()}
    violating: set[WorkloadId | int] = set()
    for piece in pieces:
        for budget in roster.candidates[piece.unit].budgets:
            left[budget] -= 1
            if left[budget] < 0:
                violating.add(_together(roster, piece))
                break
    return {piece.unit for piece in pieces if _together(roster, piece) in violating}


def _together(roster: Roster, piece: _Piece) -> WorkloadId | int:
    """The pieces of one gang are asked in one go, so that its minimum stays before its surplus."""
    candidate = roster.candidates[piece.unit]
    gang = candidate.whole or roster.part_of[piece.unit] is not None
    return candidate.workload.id if gang else piece.unit


def _preference(
    table: NodeTable, roster: Roster, option: _Option
) -> tuple[int, int, int, int, float, int]:
    pods = [pod for unit in option.victims for pod in roster.candidates[unit].pods]
    highest = max(pod.priority for pod in pods)
    earliest = min(
        (pod.started_at for pod in pods if pod.priority == highest and pod.started_at is not None),
        default=np.inf,
    )
    return (
        option.violations,
        highest,
        sum(pod.priority + _OFFSET for pod in pods),
        len(pods),
        -earliest,
        int(table.rank[option.row]),
    )


def why_evicting_does_not_help(
    table: NodeTable, shape: PodShape, priority: int, safe: Set[PodId] = frozenset()
) -> tuple[NodeVerdict, ...]:
    """Node by node, in kube-scheduler's words. `safe`: pods that are protected from everybody."""
    causes: Counter[str] = Counter()
    for row in np.flatnonzero(table.live).tolist():
        node = table.nodes[row]
        assert node is not None
        causes.update(_why_not_here(table, shape, priority, row, node, safe))
    return tuple(NodeVerdict(cause=cause, count=count) for cause, count in sorted(causes.items()))


def _why_not_here(
    table: NodeTable, shape: PodShape, priority: int, row: int, node: Node, safe: Set[PodId]
) -> list[str]:
    if site_verdict(shape, node):
        return [NOT_HELPFUL]
    neighbours = (
        filters.neighbour_verdicts(table, shape, np.array([row]))
        if filters.depends_on_neighbours(table, shape)
        else {}
    )
    short, hopeless = room_verdicts(table, shape, row)
    # The first check that fails decides whether evicting could help, and room is asked before neighbours.
    if hopeless or (not short and neighbours.get(row) in UNRESOLVABLE):
        return [NOT_HELPFUL]
    lower: list[Pod] = [
        pod for pod in table.pods_on[row].values() if pod.priority < priority and pod.id not in safe
    ]
    if not lower:
        return [NO_VICTIMS]
    with table.what_if():
        for pod in lower:
            table.lift(pod, row)
        short, _ = room_verdicts(table, shape, row)
        if short:
            return short
        after = filters.neighbour_verdicts(table, shape, np.array([row]))
    return [after[row]] if row in after else [NOT_HELPFUL]
