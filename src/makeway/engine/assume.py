"""Decisions under way are part of the state until the watch confirms them: what we asked for counts as done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from makeway.engine.state import State
from makeway.model.decision import Admit, Evict, Hold, Plan
from makeway.model.event import Remove, Upsert
from makeway.model.workload import Admission, CheckState, Placed, Pod, Workload


def assume(state: State, plan: Plan, now: float) -> None:
    """A decision that then fails is taken back by applying the object as it really is."""
    for workload in plan.ended_holds:
        state.apply(Remove(type=Hold, key=workload))
    for decision in plan.decisions:
        match decision:
            case Admit():
                _admitted(state, decision)
            case Evict(already=False):
                _evicted(state, decision, now)
            case Hold():
                state.apply(Upsert(obj=decision))
            case _:
                pass


def _admitted(state: State, admit: Admit) -> None:
    workload = state.workloads[admit.workload]
    if admit.admission is not None or admit.placement:
        workload = msgspec.structs.replace(
            workload,
            admission=admit.admission or workload.admission,
            placement=admit.placement or workload.placement,
            evicted_at=None,
            evicted_reason="",
        )
        state.apply(Upsert(obj=workload))
    for bind in admit.binds:
        pod = state.pods.get(bind.pod)
        if pod is not None and pod.node is None:
            state.apply(Upsert(obj=msgspec.structs.replace(pod, node=bind.node, nominated=None)))


def _evicted(state: State, evict: Evict, now: float) -> None:
    workload = state.workloads.get(evict.workload)
    if workload is None:
        return
    if evict.pods and workload.placement:
        left = without_places(workload, [p for p in map(state.pods.get, evict.pods) if p])
        state.apply(Upsert(obj=msgspec.structs.replace(workload, placement=left)))
    for pod in state.occupancy.members(evict.workload):
        if (not evict.pods or pod.id in evict.pods) and pod.gone_by is None:
            state.apply(Upsert(obj=_leaving(pod, now + evict.notice_s)))
    if not evict.pods and workload.admission is not None:
        told = msgspec.structs.replace(workload, evicted_at=now, evicted_reason=evict.reason.kueue)
        state.apply(Upsert(obj=told))


def without_places(workload: Workload, pods: Iterable[Pod]) -> tuple[Placed, ...]:
    """Its promised places without those of these pods: who is evicted singly has no promise to come back to."""
    given_up = Counter((pod.pod_set, pod.node) for pod in pods)
    left = []
    for place in workload.placement:
        taken = min(place.count, given_up[place.pod_set, place.node])
        given_up[place.pod_set, place.node] -= taken
        if place.count > taken:
            left.append(msgspec.structs.replace(place, count=place.count - taken))
    return tuple(left)


def lowered(admission: Admission, keeps: int) -> Admission:
    """As if it had been admitted with so many pods from the start; never with more than it has."""
    given = admission.assignments[0]
    count = min(keeps, given.count)
    fewer = msgspec.structs.replace(
        given,
        usage=tuple((resource, amount // given.count * count) for resource, amount in given.usage),
        count=count,
    )
    return msgspec.structs.replace(admission, assignments=(fewer, *admission.assignments[1:]))


def _leaving(pod: Pod, gone_by: float) -> Pod:
    return msgspec.structs.replace(pod, gone_by=gone_by, disrupted=True)


def released(workload: Workload) -> Workload:
    """As it waits again, once it is stopped and its quota is given back."""
    return msgspec.structs.replace(
        workload,
        admission=None,
        placement=(),
        evicted_at=None,
        last_eviction_reason=workload.evicted_reason,
        checks=tuple(CheckState(name=check.name) for check in workload.checks),
    )
