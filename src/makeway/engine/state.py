"""All the engine knows, kept up to date event by event.

`apply` does work in proportion to what changed: a workload moves between "waits in a queue", "holds quota" and "neither";
queues and cohorts mark the quota tree for a rebuild that happens once, when it is next asked for. What is written here can be
rebuilt from the same objects in any order (a property test says so); only who is parked is memory, and forgetting it costs a
second look.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from makeway.engine.ledger import Held, Ledger, usage_of
from makeway.engine.local_usage import LocalUsage, UsageAt
from makeway.engine.occupancy import Occupancy
from makeway.engine.policy import Policy
from makeway.engine.proposal import Tried
from makeway.engine.queueing import PendingQueue, Shape, UsageOf, shape_of
from makeway.model.decision import Hold
from makeway.model.event import Event, Namespace, Object, Remove, Upsert
from makeway.model.history import History
from makeway.model.node import Node, NodeName, Topology
from makeway.model.queue import (
    AdmissionCheck,
    Cohort,
    CohortName,
    Flavor,
    FlavorName,
    LocalQueue,
    Queue,
    QueueName,
)
from makeway.model.reason import Reason
from makeway.model.workload import Budget, Pod, PodId, Workload, WorkloadId


class Progress(msgspec.Struct, frozen=True):
    """How far the scan of flavors came, so that the next attempt goes on from there."""

    tried: Tried
    shape: Shape
    generation: tuple[int, int]
    round: int


class State:
    def __init__(self) -> None:
        self.namespaces: dict[str, Namespace] = {}
        self.workloads: dict[WorkloadId, Workload] = {}
        self.pods: dict[PodId, Pod] = {}
        self.nodes: dict[NodeName, Node] = {}
        self.queues: dict[QueueName, Queue] = {}
        self.cohorts: dict[CohortName, Cohort] = {}
        self.local_queues: dict[str, LocalQueue] = {}  # by "namespace/name"
        self.flavors: dict[FlavorName, Flavor] = {}
        self.topologies: dict[str, Topology] = {}
        self.checks: dict[str, AdmissionCheck] = {}
        self.budgets: dict[str, Budget] = {}
        self.holds: dict[WorkloadId, Hold] = {}
        self.occupancy = Occupancy()  # the node half: who is where
        self.expired_holds: list[WorkloadId] = []  # dropped since the last plan, which says so
        self.history: History = {}  # by owner: when, and for whom, its work was evicted

        self.pending: dict[QueueName, PendingQueue] = {}
        # Looked at and found no nodes: not again before room may have appeared (the generation it was parked at).
        self.node_parked: dict[WorkloadId, int] = {}
        # Queues with somebody parked for want of nodes.
        self.waiting_for_nodes: dict[QueueName, None] = {}
        # Would wait, but no queue takes them; `standing.why_waiting` says why.
        self.unqueued: dict[WorkloadId, Workload] = {}
        # Hold quota, and their admission checks have something to say.
        self.unchecked: dict[WorkloadId, Workload] = {}
        self.unexplained: dict[WorkloadId, None] = {}  # in line, and never told why they wait
        # Why the last workload of this shape was parked.
        self.refusals: dict[tuple[QueueName, Shape], Reason] = {}
        self.progress: dict[WorkloadId, Progress] = {}
        # Somebody who is safe now will not be then: who waits gets another look.
        self.protected_until = math.inf
        self.rounds = 0  # ever decided; ages the progress above
        self.stopped_queues: set[QueueName] = set()
        self.stopped_local_queues: set[str] = set()
        self.local_usage = LocalUsage()
        self.usage = UsageAt(self.local_usage, self.local_queues)  # as of the last decision

        self._ledger = Ledger()
        self._tree_stale = False
        self._policy = Policy()
        self._waits_in: dict[WorkloadId, QueueName] = {}
        self._local_queue_of: dict[WorkloadId, str] = {}
        self._by_local_queue: dict[str, dict[WorkloadId, None]] = {}
        self._to_wake: dict[QueueName, None] = {}
        self._backing_off: list[tuple[float, WorkloadId]] = []
        self._problems: dict[QueueName, str] = {}
        self._settled_generation = 0

    # -- asking --------------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        if self._tree_stale:
            self._ledger.rebuild(self.queues, self.cohorts)
            self._tree_stale = False
        return self._ledger

    def queue_of(self, workload: Workload) -> QueueName | None:
        """Where it would wait, if its local queue and queue exist."""
        local = self.local_queues.get(f"{workload.namespace}/{workload.local_queue}")
        return None if local is None or local.queue not in self.queues else local.queue

    def is_active(self, queue: QueueName) -> bool:
        return not self.inactive_because(queue)

    def inactive_because(self, queue: QueueName) -> str:
        """Why a queue admits nobody, in the words of its Active condition; "" when it does."""
        known = self._problems.get(queue)
        if known is None:
            known = self._problems[queue] = self._find_problem(self.queues[queue])
        return known

    def _find_problem(self, queue: Queue) -> str:
        if queue.terminating:
            return "is terminating"
        parts = []
        if queue.stop != "None":
            parts.append("is stopped")
        names = [flavor.flavor for group in queue.resource_groups for flavor in group.flavors]
        parts += _listed(
            "references missing ResourceFlavor(s)", (n for n in names if n not in self.flavors)
        )
        checks = [check.name for check in queue.checks]
        parts += _listed(
            "references missing AdmissionCheck(s)", (n for n in checks if n not in self.checks)
        )
        idle = (n for n in checks if n in self.checks and not self.checks[n].active)
        parts += _listed("references inactive AdmissionCheck(s)", idle)
        parts += self._missing_topologies(names)
        if queue.name in self.ledger.tree.in_cycle:
            parts.append(f"its cohort {queue.cohort} is part of a cycle")
        return ", ".join(parts)

    def _missing_topologies(self, flavors: list[FlavorName]) -> Iterator[str]:
        for name in flavors:
            flavor = self.flavors.get(name)
            if flavor is not None and flavor.topology and flavor.topology not in self.topologies:
                yield f'there is no Topology "{flavor.topology}" for TAS flavor "{name}"'

    def waits_in(self, workload: WorkloadId) -> QueueName | None:
        return self._waits_in.get(workload)

    def why_after(self, workload: Workload, head: Workload, queue: QueueName) -> str:
        """What their local queues have used, where that is why the head of a line comes first; "" where it is not."""
        counts = self.usage.applies_to(queue)
        return self.usage.why_after(workload, head) if counts else ""

    # -- events --------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        match event:
            case Upsert(obj=obj):
                self._upsert(obj)
            case Remove(type=kind, key=key):
                self._remove(kind, key)

    def _upsert(self, obj: Object) -> None:
        match obj:
            case Workload():
                self._upsert_workload(obj)
            case Pod():
                self.pods[obj.id] = obj
                self.occupancy.upsert_pod(obj)
                self.node_parked.pop(obj.workload, None)
            case Node():
                self.nodes[obj.name] = obj
                self.occupancy.upsert_node(obj)
            case Hold():
                self.holds[obj.workload] = obj
            case Budget():
                self.budgets[obj.id] = obj
            case _:
                self._upsert_setting(obj)

    def _upsert_setting(
        self, obj: Queue | Cohort | LocalQueue | Flavor | Topology | AdmissionCheck | Namespace
    ) -> None:
        """Rare, and felt by everybody who waits."""
        self._problems.clear()
        match obj:
            case Queue():
                self._upsert_queue(obj)
                return
            case Cohort():
                self.cohorts[obj.name] = obj
                self._tree_stale = True
            case LocalQueue():
                self._upsert_local_queue(obj)
                return
            case Flavor():
                self.flavors[obj.name] = obj
            case Topology():
                self.topologies[obj.name] = obj
            case AdmissionCheck():
                self.checks[obj.name] = obj
            case Namespace():
                if self.namespaces.get(obj.name) == obj:
                    return
                self.namespaces[obj.name] = obj
                self.occupancy.table.namespaces[obj.name] = obj.labels
        self._wake_all()

    def _upsert_local_queue(self, local: LocalQueue) -> None:
        old = self.local_queues.get(local.key)
        self.local_queues[local.key] = local
        self.local_usage.note_sample(local.key, local.sampled_at)
        if old is not None and _leads_the_same_way(old, local):
            return  # what it has used was measured: who waits behind it stays in line
        _note(self.stopped_local_queues, local.key, local.stop != "None")
        self._replace_waiting(local.key)

    def _remove(self, kind: type[Object], key: str) -> None:
        if kind is Workload:
            self._remove_workload(WorkloadId(key))
            return
        if kind is Pod:
            self.occupancy.remove_pod(PodId(key))
        elif kind is Node:
            self.occupancy.remove_node(NodeName(key))
        elif kind is Hold:
            self.occupancy.generation += 1  # room that was kept is free
        table = self._table(kind)
        if table.pop(key, None) is None or kind in (Pod, Node, Budget, Hold):
            return
        self._problems.clear()
        if kind is Queue:
            self._tree_stale = True
            self.stopped_queues.discard(QueueName(key))
            self._count_usage_of(QueueName(key), False)
            self._replace_waiting_in(QueueName(key))
            self.pending.pop(QueueName(key), None)
        elif kind is LocalQueue:
            self.stopped_local_queues.discard(key)
            self.local_usage.note_sample(key, None)
            self._replace_waiting(key)
        else:
            self._tree_stale = self._tree_stale or kind is Cohort
            self._wake_all()

    def _table(self, kind: type[Object]) -> dict[str, Object]:
        tables: dict[type[Object], object] = {
            Pod: self.pods,
            Node: self.nodes,
            Queue: self.queues,
            Cohort: self.cohorts,
            LocalQueue: self.local_queues,
            Flavor: self.flavors,
            Topology: self.topologies,
            AdmissionCheck: self.checks,
            Budget: self.budgets,
            Namespace: self.namespaces,
            Hold: self.holds,
        }
        return tables[kind]  # type: ignore[return-value]  # one table per type, keyed by its id

    # -- workloads -----------------------------------------------------------------------------------------------

    def _upsert_workload(self, workload: Workload) -> None:
        old = self.workloads.get(workload.id)
        self.workloads[workload.id] = workload
        self.occupancy.upsert_workload(workload)
        self.node_parked.pop(workload.id, None)
        self._account(old, workload)
        waits = _waits(workload)
        if old is not None and _waits(old) and waits and _same_request(old, workload):
            # Only a status was written (often our own): its place in the line, or its rest, stays.
            return
        self._leave_line(workload.id)
        if waits:
            self._join_line(workload)

    def _remove_workload(self, key: WorkloadId) -> None:
        old = self.workloads.pop(key, None)
        if old is None:
            return
        self.occupancy.remove_workload(key)
        self.node_parked.pop(key, None)
        self._leave_line(key)
        self.unchecked.pop(key, None)
        self.local_usage.forget(key)
        self._release(key)

    def _account(self, old: Workload | None, workload: Workload) -> None:
        """Bring the ledger in line with what the workload holds."""
        self.unchecked.pop(workload.id, None)
        if self.local_usage.queues:
            self.local_usage.note(workload)
        admission = workload.admission
        # Deactivation frees the quota at once, before the pods are gone.
        if admission is None or workload.finished or not workload.active:
            self._release(workload.id)
            return
        if not admission.admitted or any(c.state in ("Retry", "Rejected") for c in workload.checks):
            self.unchecked[workload.id] = workload
        before = self._ledger.get(workload.id)
        usage = usage_of(workload, admission)
        self._ledger.reserve(Held(workload, admission.queue, usage))
        shrank = before is not None and (
            before.queue != admission.queue
            or any(usage.get(fr, 0) < amount for fr, amount in before.usage.items())
        )
        if shrank or (old is not None and old.priority != workload.priority):
            self.wake(QueueName(before.queue if before is not None else admission.queue))

    def _release(self, workload: WorkloadId) -> None:
        held = self._ledger.release(workload)
        if held is not None:
            self.wake(QueueName(held.queue))

    def _join_line(self, workload: Workload) -> None:
        if workload.needs == "nodes":
            return  # its pods say when it waits: see Occupancy.waiting
        key = f"{workload.namespace}/{workload.local_queue}"
        self._local_queue_of[workload.id] = key
        self._by_local_queue.setdefault(key, {})[workload.id] = None
        queue = self.queue_of(workload)
        local = self.local_queues.get(key)
        if queue is None or local is None or local.stop != "None" or local.terminating:
            self.unqueued[workload.id] = workload
            return
        self._waits_in[workload.id] = queue
        self.unexplained[workload.id] = None
        self._line(queue).add(workload)
        if workload.requeue_at is not None and not workload.requeue_blocked:
            heapq.heappush(self._backing_off, (workload.requeue_at, workload.id))

    def _leave_line(self, workload: WorkloadId) -> None:
        self.unqueued.pop(workload, None)
        self.unexplained.pop(workload, None)
        self.progress.pop(workload, None)
        queue = self._waits_in.pop(workload, None)
        if queue is not None and queue in self.pending:
            self.pending[queue].remove(workload)
        key = self._local_queue_of.pop(workload, None)
        if key is not None:
            del self._by_local_queue[key][workload]
            if not self._by_local_queue[key]:
                del self._by_local_queue[key]

    def _replace_waiting(self, local_queue: str) -> None:
        """The local queue came, went, stopped or resumed: its workloads find their line anew."""
        for key in list(self._by_local_queue.get(local_queue, {})):
            self._leave_line(key)
            self._join_line(self.workloads[key])

    def _replace_waiting_in(self, queue: QueueName) -> None:
        for key, local in list(self.local_queues.items()):
            if local.queue == queue:
                self._replace_waiting(key)

    # -- queues --------------------------------------------------------------------------------------------------

    def _upsert_queue(self, queue: Queue) -> None:
        old = self.queues.get(queue.name)
        self.queues[queue.name] = queue
        _note(self.stopped_queues, queue.name, queue.stop != "None")
        self._tree_stale = True
        counted = old is not None and old.usage_based_fair_sharing
        if counted != queue.usage_based_fair_sharing:
            self._count_usage_of(queue.name, queue.usage_based_fair_sharing)
        if old is None or _line_differs(old, queue):
            self.pending.pop(queue.name, None)
            self._replace_waiting_in(queue.name)
        self.wake(queue.name)

    def _line(self, queue: QueueName) -> PendingQueue:
        if queue not in self.pending:
            self.pending[queue] = PendingQueue(
                self.queues[queue].strategy, self._policy, self._usage_in(queue)
            )
        return self.pending[queue]

    def _usage_in(self, queue: QueueName) -> UsageOf | None:
        """What its line asks first, where the configuration and the queue both say so."""
        counts = self._policy.usage_order is not None and queue in self.local_usage.queues
        return self.usage.of if counts else None

    def _count_usage_of(self, queue: QueueName, counts: bool) -> None:
        """The queue tells its local queues apart by what they used, or does so no more: rare, so all its workloads are read."""
        _note(self.local_usage.queues, queue, counts)
        for workload in self.workloads.values():
            if workload.admission is not None and workload.admission.queue == queue:
                self.local_usage.note(workload)

    # -- waking --------------------------------------------------------------------------------------------------

    def wake(self, queue: QueueName) -> None:
        """Room may have appeared in this queue: everybody in its cohort tree gets another look, at the next `settle`."""
        self._to_wake[queue] = None

    def settle(self, now: float) -> None:
        """Do what events left for later, once for all of them: wake-ups, and holds and backoffs that ended."""
        for hold in [hold for hold in self.holds.values() if hold.until <= now]:
            del self.holds[hold.workload]
            self.expired_holds.append(hold.workload)
            self.occupancy.generation += 1
        if self.protected_until <= now:
            self.protected_until = math.inf
            self.occupancy.generation += 1
            self._wake_all()
        if self.occupancy.generation != self._settled_generation:
            self._settled_generation = self.occupancy.generation
            self._to_wake |= self.waiting_for_nodes
            self.waiting_for_nodes = {}
        roots = {id(root): root for root in (self.ledger.queue(q).root() for q in self._to_wake)}
        self._to_wake.clear()
        for root in roots.values():
            for node in [root] if root.is_queue else root.queues_below():
                line = self.pending.get(QueueName(node.name))
                if line is not None:
                    line.wake()
        self._wake_backed_off(now)

    def _wake_all(self) -> None:
        for line in self.pending.values():
            line.wake()

    def _wake_backed_off(self, now: float) -> None:
        """Those whose backoff has ended by now."""
        while self._backing_off and self._backing_off[0][0] <= now:
            at, key = heapq.heappop(self._backing_off)
            workload = self.workloads.get(key)
            queue = self._waits_in.get(key)
            if workload is not None and queue is not None and workload.requeue_at == at:
                self.pending[queue].wake_one(key)

    def order_by(self, policy: Policy, now: float) -> None:
        """Lines are kept in the order of the last policy; another one sorts them once."""
        old = self._policy
        self._policy = policy
        self.usage.look(policy.usage_order, now)
        if _order_of(old) != _order_of(policy):
            for queue, line in self.pending.items():
                line.reorder(policy, self._usage_in(queue))

    # -- progress of flavor scans --------------------------------------------------------------------------------

    def tried_flavors(self, workload: Workload, queue: QueueName) -> Tried:
        """Where the last scan stopped, unless that is no longer worth anything."""
        progress = self.progress.get(workload.id)
        if progress is None or progress.shape != shape_of(workload):
            return ()
        aged = self.rounds > progress.round + 1
        if aged and progress.generation != self.ledger.generation(queue):
            return ()
        return progress.tried

    def remember_tried(self, workload: Workload, queue: QueueName, tried: Tried) -> None:
        self.progress[workload.id] = Progress(
            tried, shape_of(workload), self.ledger.generation(queue), self.rounds
        )


def _order_of(policy: Policy) -> tuple[object, ...]:
    """What of a policy the lines depend on."""
    by_usage = policy.usage_order is not None
    return policy.requeuing_timestamp, policy.priority_within_cohort, policy.victims, by_usage


def _line_differs(old: Queue, new: Queue) -> bool:
    return (old.strategy, old.usage_based_fair_sharing) != (
        new.strategy,
        new.usage_based_fair_sharing,
    )


def _leads_the_same_way(old: LocalQueue, new: LocalQueue) -> bool:
    return (old.queue, old.stop, old.terminating) == (new.queue, new.stop, new.terminating)


def _waits(workload: Workload) -> bool:
    """May it be queued at all?"""
    return (
        workload.active
        and not workload.finished
        and workload.admission is None
        and not workload.held_back
        and not workload.foreign
    )


def _same_request(old: Workload, new: Workload) -> bool:
    """Nothing changed that could make another attempt end differently."""
    return (
        old.needs == new.needs
        and old.local_queue == new.local_queue
        and old.priority == new.priority
        and old.pod_sets == new.pod_sets
        and old.reclaimable == new.reclaimable
        and old.evicted_at == new.evicted_at
        and old.requeue_at == new.requeue_at
        and old.requeue_blocked == new.requeue_blocked
        and old.preemption_gated == new.preemption_gated
        and old.checks == new.checks
        and old.created_at == new.created_at
    )


def _note(names: set[Any], name: str, belongs: bool) -> None:
    (names.add if belongs else names.discard)(name)


def _listed(what: str, names: Iterator[str]) -> list[str]:
    joined = ",".join(sorted(set(names)))
    return [f"{what}: {joined}"] if joined else []
