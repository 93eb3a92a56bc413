"""What a workload asks of quota, pod set by pod set: the requests of one pod times the pods that still need room."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from makeway.model.resources import multiply
from makeway.model.workload import PodSet, Workload


class Demand(msgspec.Struct, frozen=True):
    """Totals for `count` pods of one set."""

    pod_set: PodSet
    count: int
    requests: Mapping[str, int]


def demands(workload: Workload, counts: tuple[int, ...] | None = None) -> tuple[Demand, ...]:
    """`counts` replaces the size of each pod set, for partial admission."""
    reclaimable = dict(workload.reclaimable)
    result = []
    for index, pod_set in enumerate(workload.pod_sets):
        if counts is not None:
            count = counts[index]
        else:
            count = max(0, pod_set.count - reclaimable.get(pod_set.name, 0))
        requests = {
            name: max(0, multiply(amount, count)) for name, amount in pod_set.shape.requests
        }
        result.append(Demand(pod_set, count, requests))
    return tuple(result)


def smaller_counts(workload: Workload, step: int) -> tuple[int, ...]:
    """Partial admission, `step` of `largest_step` down from the full size, spread over the pod sets in proportion."""
    spare = _spare(workload)
    total = sum(spare)
    return tuple(
        demand.count - (slack * step // total if total else 0)
        for demand, slack in zip(demands(workload), spare, strict=True)
    )


def largest_step(workload: Workload) -> int:
    return sum(_spare(workload))


def _spare(workload: Workload) -> list[int]:
    return [
        0 if demand.pod_set.min_count is None else max(0, demand.count - demand.pod_set.min_count)
        for demand in demands(workload)
    ]
