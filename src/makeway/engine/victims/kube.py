"""kube-scheduler's choice, for people who switch and want to see no difference first: one pod, victims on one node.

On every node where it could help, all pods of lower priority are taken away; if the pod then fits, they are put back one by
one, most important first (budget violations before all), and who no longer fits is a victim. One node is then picked by six
rules. The last of them, arbitrary there, is the node's name here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from makeway.engine import filters
from makeway.engine.filters import UNRESOLVABLE, neighbour_mask, room_verdicts, site_verdict
from makeway.engine.nodes import NodeTable
from makeway.engine.placement import Demand, Placer
from makeway.engine.victims.least_loss import Legal, Victims
from makeway.engine.victims.roster import Candidate, Roster
from makeway.model.node import Node
from makeway.model.reason import NodeVerdict
from makeway.model.workload import Budget, Placed, Pod, PodShape

_OFFSET = 2**31  # makes more victims worse, also for negative priorities
NO_VICTIMS = "No preemption victims found for incoming pod"
NOT_HELPFUL = "Preemption is not helpful for scheduling"


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
) -> Victims | None:
    table = placer.table
    on_row: dict[int, list[int]] = {}
    for unit, row in zip(roster.entry_unit.tolist(), roster.entry_row.tolist(), strict=True):
        alone = roster.rows_of_unit[unit] == 1 and bool(roster.candidates[unit].pods)
        if legal.mask[unit] and alone:
            on_row.setdefault(row, []).append(unit)
    suits = placer.view(demand.shape).suits
    options = [
        option
        for row, units in on_row.items()
        if suits[row]
        and (option := _on_node(table, roster, demand.shape, row, units, budgets, now)) is not None
    ]
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


def _on_node(
    table: NodeTable,
    roster: Roster,
    shape: PodShape,
    row: int,
    units: Sequence[int],
    budgets: Mapping[str, Budget],
    now: float,
) -> _Option | None:
    order = sorted(units, key=lambda unit: _importance(roster.candidates[unit], now))
    violating = _violating(roster, order, budgets)
    with table.what_if():
        for unit in order:
            for pod in roster.candidates[unit].pods:
                table.lift(pod, row)
        if not _fits(table, shape, row):
            return None
        victims: list[int] = []
        violations = 0
        for unit in [u for u in order if u in violating] + [u for u in order if u not in violating]:
            with_it = roster.candidates[unit].pods
            for pod in with_it:
                table.put(pod, row)
            if not _fits(table, shape, row):
                for pod in with_it:
                    table.lift(pod, row)
                victims.append(unit)
                violations += unit in violating
    if not victims:
        return None
    victims.sort(key=lambda unit: _importance(roster.candidates[unit], now))
    return _Option(row=row, victims=tuple(victims), violations=violations)


def _fits(table: NodeTable, shape: PodShape, row: int) -> bool:
    if room_verdicts(table, shape, row)[0]:
        return False
    mask = neighbour_mask(table, shape)
    return mask is None or bool(mask[row])


def _importance(candidate: Candidate, now: float) -> tuple[int, float, str]:
    """Most important first: higher priority, then the earlier start; not started counts as now."""
    pod = candidate.pods[0]
    started = pod.started_at if pod.started_at is not None else now
    return (-pod.priority, started, pod.id)


def _violating(roster: Roster, order: Sequence[int], budgets: Mapping[str, Budget]) -> set[int]:
    """Walking from the most important, those that overdraw a budget: the important ones use it up first."""
    left = {budget.id: budget.allowed for budget in budgets.values()}
    violating: set[int] = set()
    for unit in order:
        for budget in roster.candidates[unit].budgets:
            left[budget] -= 1
            if left[budget] < 0:
                violating.add(unit)
                break
    return violating


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
    table: NodeTable, shape: PodShape, priority: int
) -> tuple[NodeVerdict, ...]:
    """Node by node, in kube-scheduler's words."""
    causes: Counter[str] = Counter()
    for row in np.flatnonzero(table.live).tolist():
        node = table.nodes[row]
        assert node is not None
        causes.update(_why_not_here(table, shape, priority, row, node))
    return tuple(NodeVerdict(cause=cause, count=count) for cause, count in sorted(causes.items()))


def _why_not_here(
    table: NodeTable, shape: PodShape, priority: int, row: int, node: Node
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
    lower: list[Pod] = [pod for pod in table.pods_on[row].values() if pod.priority < priority]
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
