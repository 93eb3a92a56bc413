"""The default policy: among legal victim sets, the one that throws away the least work.

Large uniform cases (many equal pods, victims on one node each) are solved exactly by arrays. Everything else goes through the
search with its oracle, on the part of the cluster that could matter, with the arrays' lower bound as proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from makeway.engine.nodes import Mask, Vector
from makeway.engine.placement import Demand, Placer, Shortfall
from makeway.engine.victims import separable
from makeway.engine.victims.oracle import QuotaTest, RoomOracle
from makeway.engine.victims.roster import Candidate, Roster
from makeway.engine.victims.search import BUDGET, OTHERS, Unit, cheapest, in_steps, most_in_step
from makeway.model.reason import Alternative
from makeway.model.workload import Placed, WorkloadId

PRIORITY = "priority"
_MOST_NAMES = 8  # of one alternative
_MOST_UNITS = 96  # more than this and the search looks only at the nodes that are cheapest to clear


def by_priority(_workload: WorkloadId) -> str:
    """The rule where no queue is between two workloads."""
    return PRIORITY


class Victims(msgspec.Struct, frozen=True, kw_only=True):
    chosen: tuple[Candidate, ...]
    placement: tuple[Placed, ...]
    loss_ms: int
    bound_ms: int
    steps: int
    alternatives: tuple[Alternative, ...] = ()


class Legal(msgspec.Struct, frozen=True, kw_only=True):
    """Which units of the roster a preemptor may evict, by which priority each counts, and by which rule it would fall."""

    mask: Mask
    band: Vector
    rule: Callable[[WorkloadId], str] = by_priority


def find(
    placer: Placer,
    roster: Roster,
    demands: Sequence[Demand],
    legal: Legal,
    *,
    quota: QuotaTest | None = None,
    surplus: Mapping[WorkloadId, int] | None = None,
    budgets: Mapping[str, int] | None = None,
    budget: int = BUDGET,
) -> Victims | None:
    """The cheapest legal victims after which every demand is placed; None: nothing helps, so nobody falls."""
    if not legal.mask.any():
        return None
    units = np.flatnonzero(legal.mask).tolist()
    oracle = RoomOracle(placer, roster, units, demands, quota, surplus, budgets)
    if oracle.plain:
        ceiling = separable.lowest_ceiling(
            roster, oracle.need, oracle.suits, legal.mask, legal.band, demands[0].count
        )
        if ceiling is None:
            return None
        quick = _by_arrays(oracle, ceiling)
        if quick is not None:
            return quick
    if len(units) > _MOST_UNITS:
        units = _worth_a_look(oracle, legal)
        oracle = RoomOracle(placer, roster, units, demands, quota, surplus, budgets)
    found = cheapest(_units(roster, units, legal), oracle, budget)
    if found is None:
        return None
    victims = _victims(oracle, found.chosen, found.bound_ms, found.steps)
    others = [tuple(units[i] for i in other) for other in found.others]
    return _beside(victims, oracle.roster, others)


def _beside(
    victims: Victims | None, roster: Roster, others: Iterable[Sequence[int]]
) -> Victims | None:
    """With what else was looked at: at most a few, and none that is not dearer."""
    if victims is None:
        return None
    mine = _worth(victims.chosen)
    found: list[tuple[tuple[int, int, int], Alternative]] = []
    for units in others:
        candidates = [roster.candidates[unit] for unit in units]
        worth = _worth(candidates)
        if worth >= mine and set(map(id, candidates)) != set(map(id, victims.chosen)):
            found.append((worth, _alternative(candidates, worth, mine, victims.loss_ms)))
    dearer = tuple(other for _, other in sorted(found, key=lambda item: item[0])[:OTHERS])
    return msgspec.structs.replace(victims, alternatives=dearer)


def _worth(candidates: Iterable[Candidate]) -> tuple[int, int, int]:
    """Loss in steps, workloads, of which stopped whole: small is good."""
    fallen = list(candidates)
    touched = {candidate.workload.id for candidate in fallen}
    loss_ms = sum(candidate.loss_ms for candidate in fallen)
    return in_steps(loss_ms), len(touched), sum(candidate.whole for candidate in fallen)


def _alternative(
    candidates: Sequence[Candidate],
    worth: tuple[int, int, int],
    mine: tuple[int, int, int],
    loss_ms: int,
) -> Alternative:
    loses = sum(candidate.loss_ms for candidate in candidates)
    names = tuple(dict.fromkeys(candidate.workload.id for candidate in candidates))
    if worth[0] > mine[0]:
        because = f"loses {(loses - loss_ms) / 1000:.0f} GPU-seconds more"
    elif worth[1] > mine[1]:
        because = f"{worth[1]} workloads instead of {mine[1]}"
    elif worth[2] > mine[2]:
        because = "stops a whole workload"
    else:
        because = "older"
    return Alternative(victims=names[:_MOST_NAMES], loss=loses / 1000, because=because)


def _worth_a_look(oracle: RoomOracle, legal: Legal) -> list[int]:
    """Too many to search: those on the nodes that are cheapest to clear, and those that give quota back cheapest."""
    roster = oracle.roster
    units: set[int] = set()
    if oracle.plain:
        units.update(
            separable.nearby_units(
                roster, oracle.need, oracle.suits, legal.mask, oracle.demands[0].count, _MOST_UNITS
            )
        )
    for cover in oracle.covers():
        gained = 0
        by_price = sorted(
            (i for i in range(len(oracle.units)) if cover.gains[i] > 0),
            key=lambda i: (
                legal.band[oracle.units[i]],
                roster.loss_ms[oracle.units[i]] / cover.gains[i],
                i,
            ),
        )
        for taken, i in enumerate(by_price):
            if gained >= 2 * cover.need and taken >= _MOST_UNITS // 2:
                break
            units.add(oracle.units[i])
            gained += cover.gains[i]
    return sorted(units) if units else list(oracle.units)


def _units(roster: Roster, units: Sequence[int], legal: Legal) -> list[Unit]:
    position: dict[int | None, int] = {unit: i for i, unit in enumerate(units)}
    return [
        Unit(
            band=int(legal.band[unit]),
            loss_ms=int(roster.loss_ms[unit]),
            rank=unit,
            part_of=position.get(roster.part_of[unit]),
            workload=roster.candidates[unit].workload.id,
            whole=roster.candidates[unit].whole,
        )
        for unit in units
    ]


def _by_arrays(oracle: RoomOracle, ceiling: separable.Ceiling) -> Victims | None:
    """The exact answer, where every unit named lives on one node and nothing but room decides.

    Arrays find the least loss to the second; within a step of 60 GPU-seconds fewer, and then younger, victims count for more.
    """
    market = separable.Market(
        oracle.roster, oracle.need, oracle.suits, ceiling, oracle.demands[0].count
    )
    proposal = market.propose()
    if proposal is None or not proposal.exact:
        return None
    better = market.in_step(proposal.units, most_in_step)
    found = _exactly(oracle, better, proposal.bound_ms) if better is not None else None
    others = [proposal.units] if found is not None else []
    others += [other for other in market.others() if _legal(oracle, other)]
    found = found or _exactly(oracle, proposal.units, proposal.bound_ms)
    return _beside(found, oracle.roster, others)


def _legal(oracle: RoomOracle, units: Sequence[int]) -> bool:
    if oracle.quota is None and not oracle.budgets and not oracle.surplus:
        return True
    return oracle.restricted_to(units).legal(frozenset(range(len(units))))


def _exactly(oracle: RoomOracle, units: Sequence[int], bound_ms: int) -> Victims | None:
    """These units of the roster; None where the queues, or a budget, do not let them fall together."""
    only = oracle.restricted_to(units)
    everyone = tuple(range(len(units)))
    gone = frozenset(everyone)
    if not only.legal(gone) or (only.quota is not None and not only.fits(gone)):
        return None
    return _victims(only, everyone, bound_ms, 1)


def _victims(
    oracle: RoomOracle, chosen: Sequence[int], bound_ms: int, steps: int
) -> Victims | None:
    placement = oracle.place_without(frozenset(chosen)) if oracle.demands else ()
    if isinstance(placement, Shortfall):
        return None
    candidates = tuple(oracle.roster.candidates[oracle.units[i]] for i in chosen)
    return Victims(
        chosen=candidates,
        placement=placement,
        loss_ms=sum(candidate.loss_ms for candidate in candidates),
        bound_ms=bound_ms,
        steps=steps,
    )
