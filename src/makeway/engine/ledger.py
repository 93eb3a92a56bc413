"""Who uses what, kept up to date, and the one mutable thing of the engine.

Every write goes through a journal while a `what_if()` is open, and is taken back when it closes, however it closes:

    with ledger.what_if():
        ledger.release(victim)
        room = ledger.queue(name).fits(usage)
    # the victim is back
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from makeway.engine.ordering import MemberKey, member_key
from makeway.engine.quota import FlavorResource, QuotaNode, QuotaTree, Usage
from makeway.model.queue import Cohort, CohortName, Queue, QueueName
from makeway.model.workload import Admission, Workload, WorkloadId

_ABSENT: Any = object()


class Held:
    """A workload with the quota it holds."""

    __slots__ = ("key", "queue", "usage", "workload")

    def __init__(self, workload: Workload, queue: str, usage: Usage) -> None:
        self.workload = workload
        self.queue = queue
        self.usage = usage
        self.key = member_key(workload)

    @property
    def id(self) -> WorkloadId:
        return self.workload.id

    def uses(self, frs: Iterable[FlavorResource]) -> bool:
        return any(fr in self.usage for fr in frs)


class Part(Held):
    """Part of what a workload holds: for the pods that its job gives up while it goes on."""

    __slots__ = ("which",)

    def __init__(self, held: Held, pods: int, which: str = "") -> None:
        super().__init__(held.workload, held.queue, _per_pod(held, pods))
        self.which = which

    @property
    def id(self) -> WorkloadId:
        """Not the workload's own: others may take another part of it."""
        return WorkloadId(f"{self.workload.id}#{self.which}")


def _per_pod(held: Held, count: int) -> dict[FlavorResource, int]:
    """What so many of its pods use; all of its pods are alike."""
    together = counted_pods(held.workload)
    return {fr: amount // together * count for fr, amount in held.usage.items()}


def counted_pods(workload: Workload) -> int:
    """The pods of a workload of one pod set that its quota is for now."""
    if workload.admission is None:
        return workload.pod_sets[0].count
    done = dict(workload.reclaimable).get(workload.pod_sets[0].name, 0)
    admitted = workload.admission.assignments[0].count
    return max(1, min(admitted, workload.pod_sets[0].count - done))


class Members(dict[WorkloadId, Held]):
    """The workloads that hold quota in one queue, also in the order in which they would be asked to step aside.

    The order is sorted when it is first asked for, and kept from then on: searches ask for it again and again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._order: list[tuple[MemberKey, Held]] | None = None

    def __setitem__(self, workload: WorkloadId, held: Held) -> None:
        self._forget(workload)
        super().__setitem__(workload, held)
        if self._order is not None:
            bisect.insort(self._order, (held.key, held), key=_key_of)

    def __delitem__(self, workload: WorkloadId) -> None:
        self._forget(workload)
        super().__delitem__(workload)

    def _forget(self, workload: WorkloadId) -> None:
        held = self.get(workload)
        if held is not None and self._order is not None:
            del self._order[bisect.bisect_left(self._order, held.key, key=_key_of)]

    def leaving(self) -> list[Held]:
        """Those already told to go, in order; a copy, so that it stays while members are released."""
        order = self._sorted()
        return [held for _, held in order[: self._first_staying(order)]]

    def staying(self) -> list[Held]:
        order = self._sorted()
        return [held for _, held in order[self._first_staying(order) :]]

    def _sorted(self) -> list[tuple[MemberKey, Held]]:
        if self._order is None:
            self._order = sorted(((held.key, held) for held in self.values()), key=_key_of)
        return self._order

    def _first_staying(self, order: list[tuple[MemberKey, Held]]) -> int:
        return bisect.bisect_left(order, True, key=lambda entry: entry[0][0])


def _key_of(entry: tuple[MemberKey, Held]) -> MemberKey:
    return entry[0]


def usage_of(workload: Workload, admission: Admission) -> dict[FlavorResource, int]:
    """What an admission costs now: pods that are done give their part back."""
    reclaimable = dict(workload.reclaimable)
    counts = {pod_set.name: pod_set.count for pod_set in workload.pod_sets}
    usage: dict[FlavorResource, int] = {}
    for assignment in admission.assignments:
        live = counts.get(assignment.pod_set, assignment.count) - reclaimable.get(
            assignment.pod_set, 0
        )
        flavors = dict(assignment.flavors)
        for resource, amount in assignment.usage:
            flavor = flavors.get(resource)
            if flavor is None:
                continue
            if assignment.count and live < assignment.count:
                amount = amount // assignment.count * max(0, live)
            usage[flavor, resource] = usage.get((flavor, resource), 0) + amount
    return usage


_NOBODY = Members()


class Ledger:
    def __init__(self) -> None:
        self._held: dict[str, Members] = {}  # by queue
        self._queue_of: dict[WorkloadId, str] = {}
        # By queue; the same tables as in the tree's nodes.
        self._usage: dict[str, dict[FlavorResource, int]] = {}
        self._generation: dict[str, int] = {}
        self._rebuilds = 0
        self._journal: list[tuple[dict[Any, Any], Any, Any]] | None = None
        self._tree = QuotaTree({}, {})

    # -- asking --------------------------------------------------------------------------------------------------

    @property
    def tree(self) -> QuotaTree:
        return self._tree

    def queue(self, name: str) -> QuotaNode:
        node = self._tree.queues.get(name)
        if node is None:
            node = self._tree.queue(name)
            node.usage = self._usage.setdefault(name, {})
        return node

    def held_in(self, queue: str) -> Members:
        members = self._held.get(queue)
        return _NOBODY if members is None else members

    def leaving(self) -> list[Held]:
        """Of all queues: those who were told to go and still hold their quota."""
        return [held for members in self._held.values() for held in members.leaving()]

    def get(self, workload: WorkloadId) -> Held | None:
        queue = self._queue_of.get(workload)
        return None if queue is None else self._held[queue][workload]

    def generation(self, queue: str) -> tuple[int, int]:
        """Moves on when room may have appeared: somebody left the queue, or quotas changed."""
        return self._rebuilds, self._generation.get(queue, 0)

    # -- writing -------------------------------------------------------------------------------------------------

    def rebuild(
        self, queues: Mapping[QueueName, Queue], cohorts: Mapping[CohortName, Cohort]
    ) -> None:
        """New quotas, same usage."""
        if self._journal is not None:
            raise RuntimeError("the quota tree cannot change inside a what-if")
        self._tree = QuotaTree(queues, cohorts)
        for name, usage in self._usage.items():
            self._tree.queue(name).usage = usage
        for name, node in self._tree.queues.items():
            self._usage.setdefault(name, node.usage)
        self._tree.count_usage()
        self._rebuilds += 1

    def reserve(self, held: Held) -> None:
        if held.id in self._queue_of:
            self.release(held.id)
        self._set(self._held.setdefault(held.queue, Members()), held.id, held)
        self._set(self._queue_of, held.id, held.queue)
        self.add_usage(held.queue, held.usage)

    def release(self, workload: WorkloadId) -> Held | None:
        queue = self._queue_of.get(workload)
        if queue is None:
            return None
        held = self._held[queue][workload]
        self._delete(self._held[queue], workload)
        self._delete(self._queue_of, workload)
        self.remove_usage(queue, held.usage)
        self._set(self._generation, queue, self._generation.get(queue, 0) + 1)
        return held

    def give_back(self, held: Held) -> None:
        """All that it holds, or the part that it gives up."""
        if isinstance(held, Part):
            self.remove_usage(held.queue, held.usage)
        else:
            self.release(held.id)

    def add_usage(self, queue: str, usage: Usage) -> None:
        node = self.queue(queue)
        for fr, amount in usage.items():
            self._add(node, fr, amount)

    def remove_usage(self, queue: str, usage: Usage) -> None:
        node = self.queue(queue)
        for fr, amount in usage.items():
            self._remove(node, fr, amount)

    def _add(self, node: QuotaNode, fr: FlavorResource, amount: int) -> None:
        # The parent sees only what exceeds the part that this node keeps to itself.
        current: QuotaNode | None = node
        while current is not None and amount:
            hidden = current.local_available(fr)
            self._set(current.usage, fr, current.usage.get(fr, 0) + amount)
            amount = max(0, amount - hidden)
            current = current.parent

    def _remove(self, node: QuotaNode, fr: FlavorResource, amount: int) -> None:
        current: QuotaNode | None = node
        while current is not None and amount:
            seen_above = current.usage.get(fr, 0) - current.local.get(fr, 0)
            left = current.usage.get(fr, 0) - amount
            if left:
                self._set(current.usage, fr, left)
            else:
                self._delete(current.usage, fr)
            amount = max(0, min(amount, seen_above))
            current = current.parent

    # -- what if -------------------------------------------------------------------------------------------------

    @contextmanager
    def what_if(self) -> Iterator[None]:
        """Everything written inside is undone at the end; what-ifs nest."""
        outermost = self._journal is None
        if self._journal is None:
            self._journal = []
        mark = len(self._journal)
        try:
            yield
        finally:
            self._undo_to(mark)
            if outermost:
                self._journal = None

    def mark(self) -> int:
        """Inside a what-if: this moment, for `changed_since`."""
        if self._journal is None:
            raise RuntimeError("mark() needs an open what_if()")
        return len(self._journal)

    def changed_since(self, mark: int) -> set[int]:
        """The `id` of every table (a node's usage, for one) that was written since."""
        return {id(table) for table, _, _ in (self._journal or ())[mark:]}

    def _undo_to(self, mark: int) -> None:
        journal = self._journal
        if journal is None:
            return
        while len(journal) > mark:
            target, key, old = journal.pop()
            if old is _ABSENT:
                del target[key]
            else:
                target[key] = old

    def _set(self, target: dict[Any, Any], key: Any, value: Any) -> None:
        if self._journal is not None:
            self._journal.append((target, key, target.get(key, _ABSENT)))
        target[key] = value

    def _delete(self, target: dict[Any, Any], key: Any) -> None:
        if key not in target:
            return
        if self._journal is not None:
            self._journal.append((target, key, target[key]))
        del target[key]
