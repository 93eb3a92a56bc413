"""What a workload asks of quota, pod set by pod set: the requests of one pod times the pods that still need room."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from makeway.engine.policy import Policy
from makeway.model.resources import CPU, add, multiply
from makeway.model.workload import PodSet, Workload

PLAIN = Policy()


class Demand(msgspec.Struct, frozen=True):
    """Totals for `count` pods of one set."""

    pod_set: PodSet
    count: int
    requests: Mapping[str, int]


def demands(
    workload: Workload, counts: tuple[int, ...] | None = None, policy: Policy = PLAIN
) -> tuple[Demand, ...]:
    """`counts` replaces the size of each pod set, for partial admission."""
    reclaimable = dict(workload.reclaimable)
    result = []
    for index, pod_set in enumerate(workload.pod_sets):
        if counts is not None:
            count = counts[index]
        else:
            count = max(0, pod_set.count - reclaimable.get(pod_set.name, 0))
        one = counted(dict(pod_set.shape.requests), policy)
        requests = {name: max(0, multiply(amount, count)) for name, amount in one.items()}
        result.append(Demand(pod_set, count, requests))
    return tuple(result)


def counted(requests: dict[str, int], policy: Policy) -> dict[str, int]:
    """Of one pod, what quota sees: without what the administrator left out, and with what stands for something else."""
    if policy.excluded_prefixes:
        requests = {n: a for n, a in requests.items() if not n.startswith(policy.excluded_prefixes)}
    result = dict(requests)
    for rule in policy.transformations:
        amount = requests.get(rule.input)
        if amount is None:
            continue
        if rule.replaces:
            result.pop(rule.input, None)
        times = units(rule.input, amount)
        if rule.multiply_by is not None and rule.multiply_by in requests:
            times *= units(rule.multiply_by, requests[rule.multiply_by])
        for name, factor in rule.outputs:
            result[name] = max(0, add(result.get(name, 0), multiply(factor, times)))
    return result


def units(resource: str, amount: int) -> int:
    """Whole units, rounded up: factors are written per CPU, amounts are kept in millicores."""
    return -(-amount // 1000) if resource == CPU else amount


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
