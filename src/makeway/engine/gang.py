"""All pods or none: which pods of a workload must be placed together now, and which may follow.

A gang's core is what it still lacks to its minimum; members that already run count. The first to arrive are the core, the last
(then by name) are surplus: they take free room and evict nobody. Gangs named together are one workload with a minimum each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from makeway.engine.occupancy import terminal, waits
from makeway.engine.placement import Demand
from makeway.model.decision import Bind
from makeway.model.workload import Placed, Pod, PodShape, Workload


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    core: tuple[Pod, ...] = ()  # all of these or none
    surplus: tuple[Pod, ...] = ()  # one by one, where there is room
    missing: int = 0  # members that do not exist yet, without which it cannot start
    minimum: int = 0
    running: int = 0


def ask(workload: Workload, pods: Iterable[Pod]) -> Ask:
    """What the workload wants of the nodes now."""
    everyone = list(pods)
    waiting = sorted((pod for pod in everyone if waits(pod)), key=lambda p: (p.created_at, p.id))
    if workload.gang is None:
        return Ask(surplus=tuple(waiting))
    core: list[Pod] = []
    surplus: list[Pod] = []
    missing = running = wanted = 0
    gang_of = _gangs(workload)
    for name, minimum in minimums(workload):
        members = [pod for pod in everyone if gang_of.get(pod.pod_set, name) == name]
        alive = sum(1 for pod in members if _counts(pod))
        lacking = max(0, minimum - alive)
        mine = [pod for pod in waiting if gang_of.get(pod.pod_set, name) == name]
        core += mine[:lacking]
        surplus += mine[lacking:]
        missing += max(0, lacking - len(mine))
        running += alive
        wanted += minimum
    return Ask(
        core=tuple(core), surplus=tuple(surplus), missing=missing, minimum=wanted, running=running
    )


def _counts(pod: Pod) -> bool:
    """Members that run, or ran to their end, count towards the minimum."""
    return pod.phase == "Succeeded" or (
        pod.node is not None and pod.gone_by is None and not terminal(pod)
    )


def _gangs(workload: Workload) -> dict[str, str]:
    """Which member gang each pod set belongs to. One minimum for all: one gang, whatever the sets are called."""
    assert workload.gang is not None
    named = [name for name, _ in workload.gang.minimums]
    only = named[0] if len(named) == 1 else None
    return {p.name: p.gang or only or p.name for p in workload.pod_sets}


def minimums(workload: Workload) -> list[tuple[str, int]]:
    """Each member gang with its minimum; every pod where none is said."""
    assert workload.gang is not None
    if workload.gang.minimums:
        return list(workload.gang.minimums)
    counts: dict[str, int] = {}
    for pod_set in workload.pod_sets:
        name = pod_set.gang or pod_set.name
        counts[name] = counts.get(name, 0) + pod_set.count
    return list(counts.items())


def surplus_of(workload: Workload, pods: Sequence[Pod]) -> int:
    """How many running pods it could lose singly and go on: above a gang's minimum, where its kind allows.

    Of independent pods all, if they come back by themselves; the last one takes its workload with it.
    """
    if workload.gang is None:
        return len(pods) - 1 if all(pod.owned for pod in pods) else 0
    if not workload.gang.gives_up_surplus:
        return 0
    spare = 0
    gang_of = _gangs(workload)
    for name, minimum in minimums(workload):
        members = [pod for pod in pods if gang_of.get(pod.pod_set, name) == name]
        spare += max(0, sum(1 for pod in members if _counts(pod)) - minimum)
    return spare


def demands_of(workload: Workload, pods: Sequence[Pod]) -> list[Demand]:
    """The pods as demands: equal shapes together."""
    sets = {pod_set.name: pod_set for pod_set in workload.pod_sets}
    groups: dict[tuple[str, PodShape], int] = {}
    for pod in pods:
        key = (pod.pod_set, pod.shape)
        groups[key] = groups.get(key, 0) + 1
    return [
        Demand(
            pod_set=f"{name}\x00{i}",
            shape=shape,
            count=count,
            topology=sets[name].topology if name in sets else None,
            near=(sets[name].group if name in sets else None) or name,
        )
        for i, ((name, shape), count) in enumerate(groups.items())
    ]


def binds_of(
    demands: Sequence[Demand], pods: Sequence[Pod], placed: Sequence[Placed]
) -> tuple[Bind, ...]:
    """Which pod goes to which of the places: in order, so that the same input gives the same plan."""
    places: dict[str, list[Placed]] = {}
    for place in placed:
        places.setdefault(place.pod_set, []).append(place)
    binds: list[Bind] = []
    for demand in demands:
        name = demand.pod_set.split("\x00", 1)[0]
        mine = [pod for pod in pods if pod.pod_set == name and pod.shape == demand.shape]
        nodes = [p.node for p in places.get(demand.pod_set, ()) for _ in range(p.count)]
        binds += [Bind(pod=pod.id, node=node) for pod, node in zip(mine, nodes, strict=False)]
    return tuple(binds)
