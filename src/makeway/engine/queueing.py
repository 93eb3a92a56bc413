"""Who waits in which queue: heads in order, and those who are known not to fit, parked until something changes.

Workloads that ask for the same thing at the same priority (equal *shapes*) are kept together: when one of them cannot fit,
the others cannot either, and all are parked and woken as one. So a wake-up costs as much as there are different shapes, not
workloads.

A line has one lane; where usage counts, one for each local queue, since what they have used changes with time, and with it who of
their heads is next, but not the order inside a lane.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Literal

from makeway.engine.ordering import LineKey, PendingKey, line_key, pending_key
from makeway.engine.policy import Policy
from makeway.model.workload import Workload, WorkloadId

Shape = tuple[object, ...]
Lane = str  # a local queue, "namespace/name"; "" where they are not told apart
UsageOf = Callable[[Lane], float]


class Requeue(Enum):
    """How an attempt ended, which decides where the workload waits for the next."""

    NO_FIT = "no-fit"
    NO_CANDIDATES = "no-candidates"
    NOT_NOMINATED = "not-nominated"
    NAMESPACE_MISMATCH = "namespace-mismatch"
    GATED = "gated"
    LOST = "lost"  # nominated, but another head took the room
    PENDING_PREEMPTION = "pending-preemption"


# Another look can succeed at once: nothing but the order of this round was in the way.
_RETRIED_AT_ONCE = frozenset({Requeue.LOST, Requeue.PENDING_PREEMPTION})
# An equal workload would fail for the same cause.
_SAME_FOR_EQUALS = frozenset({Requeue.NO_FIT, Requeue.NO_CANDIDATES})


def shape_of(workload: Workload) -> Shape:
    """All that decides whether it gets in; how long it runs decides whether it may use what is kept for others."""
    return (
        workload.priority,
        workload.pod_sets,
        workload.reclaimable,
        workload.gang,
        workload.preempts,
        workload.checkpoint.expected_runtime_s,
        workload.checkpoint.patience_s,
    )


class _Group:
    """Pending workloads of one shape, by lane."""

    __slots__ = ("heaps", "keys", "parked")

    def __init__(self) -> None:
        self.heaps: dict[Lane, list[tuple[PendingKey, WorkloadId]]] = {}
        self.keys: dict[WorkloadId, PendingKey] = {}
        self.parked = False

    def add(self, lane: Lane, workload: WorkloadId, key: PendingKey) -> None:
        self.keys[workload] = key
        heap = self.heaps.get(lane)
        if heap is None:
            heap = self.heaps[lane] = []
        heapq.heappush(heap, (key, workload))

    def first(self, lane: Lane) -> tuple[PendingKey, WorkloadId] | None:
        heap = self.heaps.get(lane)
        # Entries of workloads that left or changed are dropped when they surface.
        while heap and self.keys.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0] if heap else None


class PendingQueue:
    """One queue's waiting line."""

    def __init__(
        self,
        strategy: Literal["StrictFIFO", "BestEffortFIFO"],
        policy: Policy,
        usage_of: UsageOf | None = None,
    ) -> None:
        self.strategy = strategy
        self._policy = policy
        self._usage_of = usage_of  # None: local queues are not told apart
        self._workloads: dict[WorkloadId, Workload] = {}
        self._shapes: dict[WorkloadId, Shape] = {}
        self._groups: dict[Shape, _Group] = {}
        # Heads of active groups, by lane; entries that have become stale are dropped when they surface.
        self._lanes: dict[Lane, list[tuple[PendingKey, WorkloadId, int, Shape]]] = {"": []}
        self._count = itertools.count()
        # One by one: backoff, namespace, failed checks.
        self._parked: dict[WorkloadId, Workload] = {}
        self.sticky: WorkloadId | None = None

    def __len__(self) -> int:
        return len(self._workloads) + len(self._parked)

    def __contains__(self, workload: object) -> bool:
        return workload in self._workloads or workload in self._parked

    # -- coming and going ----------------------------------------------------------------------------------------

    def add(self, workload: Workload) -> None:
        """Waits here from now on; straight to the parked ones if an equal workload has just failed."""
        self.remove(workload.id, keep_mark=True)
        if workload.requeue_blocked or workload.requeue_at is not None:
            self._parked[workload.id] = workload  # `wake_one` lets it out when its time has come
            return
        self._activate(workload)

    def _activate(self, workload: Workload) -> None:
        shape = shape_of(workload)
        group = self._groups.get(shape)
        if group is None:
            group = self._groups[shape] = _Group()
        self._workloads[workload.id] = workload
        self._shapes[workload.id] = shape
        lane = self._lane_of(workload)
        group.add(lane, workload.id, pending_key(workload, self._policy))
        if not group.parked:
            self._offer(lane, shape, group)

    def _lane_of(self, workload: Workload) -> Lane:
        return "" if self._usage_of is None else workload.door

    def remove(self, workload: WorkloadId, *, keep_mark: bool = False) -> None:
        if self.sticky == workload and not keep_mark:
            self.sticky = None
        self._parked.pop(workload, None)
        left = self._workloads.pop(workload, None)
        if left is None:
            return
        shape = self._shapes.pop(workload)
        group = self._groups[shape]
        del group.keys[workload]
        if group.keys:
            if not group.parked:
                self._offer(self._lane_of(left), shape, group)
        elif not group.parked:
            # A parked group is remembered even when empty: it says what does not fit until the next wake-up.
            del self._groups[shape]

    def _offer(self, lane: Lane, shape: Shape, group: _Group) -> None:
        first = group.first(lane)
        if first is not None:
            order = self._lanes.get(lane)
            if order is None:
                order = self._lanes[lane] = []
            # The count keeps two shapes of one workload, an old and a new one, from being compared.
            heapq.heappush(order, (first[0], first[1], next(self._count), shape))

    # -- heads ---------------------------------------------------------------------------------------------------

    def head(self) -> Workload | None:
        """Who is next: the one that waits for its victims to leave, then by priority and age; usage before all that."""
        if self._usage_of is None:
            return self._first_in("")
        firsts = [first for lane in list(self._lanes) if (first := self._first_in(lane))]
        return min(firsts, key=self._line_key, default=None)

    def _first_in(self, lane: Lane) -> Workload | None:
        sticky = self._workloads.get(self.sticky) if self.sticky is not None else None
        if sticky is not None and self._lane_of(sticky) == lane and self._is_active(sticky.id):
            return sticky
        order = self._lanes[lane]
        while order:
            key, workload, _, shape = order[0]
            group = self._groups.get(shape)
            if group is not None and not group.parked and group.first(lane) == (key, workload):
                return self._workloads[workload]
            heapq.heappop(order)
        if lane:
            del self._lanes[lane]  # nobody of this local queue waits any more
        return None

    def _line_key(self, workload: Workload) -> LineKey:
        return line_key(
            pending_key(workload, self._policy),
            local_usage=0.0 if self._usage_of is None else self._usage_of(workload.door),
            sticky=workload.id == self.sticky,
        )

    def _is_active(self, workload: WorkloadId) -> bool:
        shape = self._shapes.get(workload)
        return shape is not None and not self._groups[shape].parked

    # -- after an attempt ----------------------------------------------------------------------------------------

    def requeue(self, workload: Workload, how: Requeue, *, untried_flavors: bool = False) -> bool:
        """The head failed: keep it in line or park it. True when it was parked."""
        if how is Requeue.PENDING_PREEMPTION and self._keeps_head():
            self.sticky = workload.id
        if self._stays_in_line(how, untried_flavors):
            return False
        if how in _SAME_FOR_EQUALS:
            self._groups[self._shapes[workload.id]].parked = True
        else:
            self.remove(workload.id, keep_mark=True)
            self._parked[workload.id] = workload
        return True

    def _keeps_head(self) -> bool:
        """Kueue keeps no room between cycles: there only the first place keeps a preemptor from being overtaken."""
        return self._policy.victims == "kueue" and self.strategy == "BestEffortFIFO"

    def _stays_in_line(self, how: Requeue, untried_flavors: bool) -> bool:
        if self.strategy == "StrictFIFO":
            return how is not Requeue.NAMESPACE_MISMATCH
        return untried_flavors or how in _RETRIED_AT_ONCE

    # -- waking --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Room may have appeared: everybody gets another look, except who is backing off."""
        for shape, group in list(self._groups.items()):
            if not group.parked:
                continue
            group.parked = False
            if group.keys:
                for lane in group.heaps:
                    self._offer(lane, shape, group)
            else:
                del self._groups[shape]
        for workload in list(self._parked.values()):
            if workload.requeue_at is None and not workload.requeue_blocked:
                del self._parked[workload.id]
                self._activate(workload)

    def wake_one(self, workload: WorkloadId) -> None:
        """This one's time has come, whatever it waited for."""
        parked = self._parked.pop(workload, None)
        if parked is not None:
            self._activate(parked)

    def reorder(self, policy: Policy, usage_of: UsageOf | None) -> None:
        """Another configuration, another order."""
        self._policy = policy
        self._usage_of = usage_of
        workloads = list(self._workloads.values())
        parked_shapes = {shape for shape, group in self._groups.items() if group.parked}
        self._workloads, self._shapes, self._groups, self._lanes = {}, {}, {}, {"": []}
        for workload in workloads:
            self._activate(workload)
        for shape in parked_shapes:
            self._groups.setdefault(shape, _Group()).parked = True

    # -- for people ----------------------------------------------------------------------------------------------

    def active(self) -> Iterator[WorkloadId]:
        return (workload for workload in self._workloads if self._is_active(workload))

    def parked(self) -> Iterator[WorkloadId]:
        yield from self._parked
        yield from (workload for workload in self._workloads if not self._is_active(workload))

    def in_order(self) -> list[Workload]:
        """Everybody, parked ones included, as `kubectl kueue` numbers them."""
        return sorted([*self._workloads.values(), *self._parked.values()], key=self._line_key)
