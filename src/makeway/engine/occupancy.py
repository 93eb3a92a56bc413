"""Who is where: the node half of the ledger, kept up to date event by event.

A pod takes room from the moment it is bound (or decided to be) until its object is gone or its phase is terminal. A workload
that was promised nodes takes room there for the pods that do not exist yet.
"""

from __future__ import annotations

from collections import Counter

from makeway.engine.fragmentation import Mix
from makeway.engine.nodes import NodeTable, Vector
from makeway.engine.placement import Placer
from makeway.model.node import Node, NodeName
from makeway.model.resources import FrozenAmounts
from makeway.model.workload import Pod, PodId, Workload, WorkloadId


def terminal(pod: Pod) -> bool:
    return pod.phase in ("Succeeded", "Failed")


def occupies(pod: Pod) -> bool:
    return pod.node is not None and not terminal(pod)


def waits(pod: Pod) -> bool:
    """Exists, has no node, and nothing but a node is missing."""
    return pod.node is None and not pod.gated and pod.gone_by is None and not terminal(pod)


class Occupancy:
    def __init__(self, *, spread: bool = False) -> None:
        self.table = NodeTable()
        self.placer = Placer(self.table, spread=spread)
        self.pods: dict[PodId, Pod] = {}
        self.by_workload: dict[WorkloadId, dict[PodId, Pod]] = {}
        self.waiting: dict[WorkloadId, dict[PodId, None]] = {}  # pods that want a node
        self.leaving: dict[PodId, Pod] = {}  # told to stop, still there
        self.generation = 0  # moves on when room may have appeared
        self.promised: dict[WorkloadId, list[tuple[NodeName, Vector]]] = {}  # room for pods to come
        self._workloads: dict[WorkloadId, Workload] = {}
        self._elsewhere: dict[NodeName, dict[PodId, Pod]] = {}  # on nodes that we have not heard of
        self._seen: Counter[FrozenAmounts] = Counter()

    # --- nodes ---

    def upsert_node(self, node: Node) -> None:
        new = node.name not in self.table.row_of
        self.generation += 1
        self.table.upsert_node(node)
        if new:
            row = self.table.row_of[node.name]
            for pod in self._elsewhere.pop(node.name, {}).values():
                self.table.put(pod, row)
            for rooms in self.promised.values():
                for name, room in rooms:
                    if name == node.name:
                        self.table.take(row, room)

    def remove_node(self, name: NodeName) -> None:
        row = self.table.row_of.get(name)
        if row is None:
            return
        staying = dict(self.table.pods_on[row])
        self.table.remove_node(name)
        if staying:
            self._elsewhere[name] = staying

    # --- pods ---

    def upsert_pod(self, pod: Pod) -> None:
        before = self.pods.get(pod.id)
        if before == pod:
            return
        self.pods[pod.id] = pod
        self.by_workload.setdefault(pod.workload, {})[pod.id] = pod
        if before is not None and before.workload != pod.workload:
            self._stop_waiting(before)
            self._forget_member(before)
        if before is not None and _same_room(before, pod):
            self._update_in_place(before, pod)
        else:
            if before is not None and occupies(before):
                self._lift(before)
            if occupies(pod):
                self._put(pod)
        self._note_waiting(pod)
        if occupies(pod) and pod.gone_by is not None:
            self.leaving[pod.id] = pod
        else:
            self.leaving.pop(pod.id, None)
        self._renew_promise(pod.workload)

    def remove_pod(self, pod_id: PodId) -> None:
        pod = self.pods.pop(pod_id, None)
        if pod is None:
            return
        self.leaving.pop(pod_id, None)
        self._stop_waiting(pod)
        self._forget_member(pod)
        if occupies(pod):
            self._lift(pod)
        self._renew_promise(pod.workload)

    def _note_waiting(self, pod: Pod) -> None:
        if waits(pod):
            self.waiting.setdefault(pod.workload, {})[pod.id] = None
        else:
            self._stop_waiting(pod)

    def _stop_waiting(self, pod: Pod) -> None:
        waiting = self.waiting.get(pod.workload)
        if waiting is not None and pod.id in waiting:
            del waiting[pod.id]
            if not waiting:
                del self.waiting[pod.workload]

    def members(self, workload: WorkloadId) -> list[Pod]:
        return list(self.by_workload.get(workload, {}).values())

    def _forget_member(self, pod: Pod) -> None:
        members = self.by_workload.get(pod.workload)
        if members is not None:
            members.pop(pod.id, None)
            if not members:
                del self.by_workload[pod.workload]

    def _put(self, pod: Pod) -> None:
        assert pod.node is not None
        row = self.table.row_of.get(pod.node)
        if row is None:
            self._elsewhere.setdefault(pod.node, {})[pod.id] = pod
        else:
            self.table.put(pod, row)

    def _lift(self, pod: Pod) -> None:
        assert pod.node is not None
        self.generation += 1
        row = self.table.row_of.get(pod.node)
        if row is None:
            self._elsewhere.get(pod.node, {}).pop(pod.id, None)
        else:
            self.table.lift(pod, row)

    def _update_in_place(self, before: Pod, pod: Pod) -> None:
        if not occupies(pod):
            return
        assert pod.node is not None
        row = self.table.row_of.get(pod.node)
        home = self._elsewhere.setdefault(pod.node, {}) if row is None else self.table.pods_on[row]
        home[pod.id] = pod
        if pod.id in self.table.choosy:
            self.table.choosy[pod.id] = pod

    # --- workloads ---

    def upsert_workload(self, workload: Workload) -> None:
        before = self._workloads.get(workload.id)
        self._count(before, -1)
        self._workloads[workload.id] = workload
        self._count(workload, 1)
        if before is None or before.placement or workload.placement:
            self._renew_promise(workload.id)

    def remove_workload(self, workload_id: WorkloadId) -> None:
        self._count(self._workloads.pop(workload_id, None), -1)
        self._renew_promise(workload_id)

    def _count(self, workload: Workload | None, sign: int) -> None:
        if workload is None or workload.finished:
            return
        for pod_set in workload.pod_sets:
            requests = pod_set.shape.requests
            self._seen[requests] += sign * pod_set.count
            if not self._seen[requests]:
                del self._seen[requests]

    def refresh_mix(self) -> None:
        """What is asked for, as it stands: scores follow it."""
        mix = Mix(self._seen.items())
        if mix != self.placer.mix:
            self.placer.mix = mix

    def _renew_promise(self, workload_id: WorkloadId) -> None:
        workload = self._workloads.get(workload_id)
        for name, room in self.promised.pop(workload_id, ()):
            self.generation += 1
            row = self.table.row_of.get(name)
            if row is not None:
                self.table.take(row, -room)
        if (
            workload is None
            or not workload.placement
            or workload.finished
            or workload.evicted_at is not None
        ):
            return
        rooms = self._rooms_to_come(workload)
        if not rooms:
            return
        self.promised[workload_id] = rooms
        for name, room in rooms:
            row = self.table.row_of.get(name)
            if row is not None:
                self.table.take(row, room)

    def _rooms_to_come(self, workload: Workload) -> list[tuple[NodeName, Vector]]:
        shapes = {pod_set.name: pod_set.shape for pod_set in workload.pod_sets}
        return [
            (node, self.table.need(shapes[pod_set]) * count)
            for (pod_set, node), count in self.promised_places(workload).items()
            if pod_set in shapes
        ]

    def promised_places(self, workload: Workload) -> Counter[tuple[str, NodeName]]:
        """Places of the workload's placement that no pod has taken; no more of them than pods are to come."""
        here: Counter[tuple[str, NodeName]] = Counter()
        to_come: Counter[str] = Counter()
        for placed in workload.placement:
            to_come[placed.pod_set] += placed.count
        for pod in self.by_workload.get(workload.id, {}).values():
            if pod.node is not None and not terminal(pod):
                here[pod.pod_set, pod.node] += 1
                to_come[pod.pod_set] -= 1  # wherever it went, its place is not needed any more
            elif pod.phase == "Succeeded":
                to_come[pod.pod_set] -= 1
        left: Counter[tuple[str, NodeName]] = Counter()
        for placed in workload.placement:
            open_places = placed.count - here[placed.pod_set, placed.node]
            count = min(open_places, to_come[placed.pod_set])
            if count > 0:
                left[placed.pod_set, placed.node] = count
                to_come[placed.pod_set] -= count
        return left


def _same_room(before: Pod, pod: Pod) -> bool:
    if not occupies(before) or not occupies(pod):
        return occupies(before) == occupies(pod)
    return before.node == pod.node and before.shape == pod.shape
