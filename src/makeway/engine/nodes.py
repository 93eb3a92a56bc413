"""NodeTable: what every node has, who is on it, and what stays free, as arrays.

A row is a node, a column a resource ("pods" is column 0). Rows are reused when nodes go. Everything that changes a row's room
is written to a log of touched rows, so that a cached view (which nodes suit a pod shape, how many fit) refreshes only those.
What-if work happens inside `with table.what_if():`, which undoes itself on every exit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from makeway.model.node import Node, NodeName
from makeway.model.resources import PODS, FrozenAmounts, is_accelerator
from makeway.model.workload import Pod, PodId, PodShape

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Vector = npt.NDArray[np.int64]

_LOG_LIMIT = 1 << 16


class NodeTable:
    def __init__(self) -> None:
        self.columns: dict[str, int] = {PODS: 0}
        self.row_of: dict[NodeName, int] = {}
        self.nodes: list[Node | None] = []
        self.alloc = np.zeros((0, 1), np.int64)
        self.free = np.zeros((0, 1), np.int64)
        self.live = np.zeros(0, np.bool_)
        self.pods_on: list[dict[PodId, Pod]] = []
        # Pods with rules about other pods; everybody else is spared looking for them.
        self.choosy: dict[PodId, Pod] = {}
        self.namespaces: dict[
            str, dict[str, str]
        ] = {}  # labels, for rules about pods of other namespaces
        self.touched: list[int] = []
        self.epoch = 0  # a new one: forget all caches of room
        self.layout = 0  # a new one: nodes came, went, or changed labels or taints
        self._spare: list[int] = []
        # What to take back: room, and the pod that was put there or lifted (True: it was there before).
        self._undo: list[tuple[int | Rows, Rows, Pod | None, bool]] | None = None
        self._codes: dict[str, tuple[int, Rows, dict[str, int]]] = {}
        self._devices: tuple[int, list[int]] | None = None
        self._needs: dict[FrozenAmounts, Vector] = {}
        self._rank: tuple[int, Rows] | None = None

    # --- nodes ---

    def upsert_node(self, node: Node) -> None:
        row = self.row_of.get(node.name)
        if row is None:
            row = self._new_row()
            self.row_of[node.name] = row
            self.layout += 1
        else:
            before = self.nodes[row]
            assert before is not None
            if _site(before) != _site(node):
                self.layout += 1
        allocatable = self.vector(node.allocatable)
        if PODS not in dict(node.allocatable):
            allocatable[0] = 110  # the kubelet's default, where a node states none
        self.free[row] += allocatable - self.alloc[row]
        self.alloc[row] = allocatable
        self.live[row] = True
        self.nodes[row] = node
        self._touch(row)

    def remove_node(self, name: NodeName) -> None:
        row = self.row_of.pop(name, None)
        if row is None:
            return
        for pod in self.pods_on[row].values():
            self.choosy.pop(pod.id, None)
        self.nodes[row] = None
        self.pods_on[row] = {}
        self.alloc[row] = 0
        self.free[row] = 0
        self.live[row] = False
        self._spare.append(row)
        self.layout += 1
        self._touch(row)

    def _new_row(self) -> int:
        if self._spare:
            return self._spare.pop()
        row = len(self.nodes)
        if row == len(self.live):
            self._grow_rows(max(64, 2 * row))
        self.nodes.append(None)
        self.pods_on.append({})
        return row

    def _grow_rows(self, rows: int) -> None:
        width = len(self.columns)
        for name in ("alloc", "free"):
            old = getattr(self, name)
            new = np.zeros((rows, width), np.int64)
            new[: old.shape[0], : old.shape[1]] = old
            setattr(self, name, new)
        self.live = np.concatenate([self.live, np.zeros(rows - len(self.live), np.bool_)])
        self.epoch += 1

    # --- amounts ---

    def column(self, resource: str) -> int:
        column = self.columns.get(resource)
        if column is None:
            column = self.columns[resource] = len(self.columns)
            blank = np.zeros((self.alloc.shape[0], 1), np.int64)
            self.alloc = np.hstack([self.alloc, blank])
            self.free = np.hstack([self.free, blank])
            self.epoch += 1
        return column

    @property
    def devices(self) -> list[int]:
        """The columns of accelerators."""
        if self._devices is None or self._devices[0] != len(self.columns):
            found = [column for name, column in self.columns.items() if is_accelerator(name)]
            self._devices = (len(self.columns), found)
        return self._devices[1]

    def vector(self, amounts: FrozenAmounts) -> Vector:
        for resource, _ in amounts:
            self.column(resource)
        vector = np.zeros(len(self.columns), np.int64)
        for resource, amount in amounts:
            vector[self.columns[resource]] = amount
        return vector

    def need(self, shape: PodShape) -> Vector:
        """What one pod of this shape takes, its slot included. Shared: not to be written to."""
        cached = self._needs.get(shape.requests)
        if cached is None or len(cached) != len(self.columns):
            cached = self.vector(shape.requests)
            cached[0] = 1
            self._needs[shape.requests] = cached
        return cached

    # --- pods and room ---

    def put(self, pod: Pod, row: int) -> None:
        self.pods_on[row][pod.id] = pod
        if pod.shape.anti_affinity or pod.shape.affinity:
            self.choosy[pod.id] = pod
        self._change(row, self.need(pod.shape))
        if self._undo is not None:
            self._undo.append((row, self.need(pod.shape), pod, False))

    def lift(self, pod: Pod, row: int) -> None:
        """The pod is gone from its node."""
        if self.pods_on[row].pop(pod.id, None) is None:
            return
        self.choosy.pop(pod.id, None)
        amount = -self.need(pod.shape)
        self._change(row, amount)
        if self._undo is not None:
            self._undo.append((row, amount, pod, True))

    def take(self, row: int, amount: Vector) -> None:
        """Room used (negative: given back)."""
        self._change(row, amount)
        if self._undo is not None:
            self._undo.append((row, amount, None, False))

    def take_many(self, rows: Rows, amounts: Rows) -> None:
        """Room used on several different rows at once."""
        self._change_many(rows, amounts)
        if self._undo is not None:
            self._undo.append((rows, amounts, None, False))

    def _change(self, row: int, amount: Vector) -> None:
        self.free[row, : len(amount)] -= amount
        self._touch(row)

    def _change_many(self, rows: Rows, amounts: Rows) -> None:
        self.free[rows, : amounts.shape[1]] -= amounts
        self.touched.extend(rows.tolist())
        self._cut_log()

    def _take_back(self, row: int | Rows, amount: Rows, pod: Pod | None, was_there: bool) -> None:
        if not isinstance(row, int):
            self._change_many(row, -amount)
            return
        self._change(row, -amount)
        if pod is None:
            return
        if was_there:
            self.pods_on[row][pod.id] = pod
            if pod.shape.anti_affinity or pod.shape.affinity:
                self.choosy[pod.id] = pod
        else:
            self.pods_on[row].pop(pod.id, None)
            self.choosy.pop(pod.id, None)

    def _touch(self, row: int) -> None:
        self.touched.append(row)
        self._cut_log()

    def _cut_log(self) -> None:
        if len(self.touched) > _LOG_LIMIT:
            self.touched = []
            self.epoch += 1

    def rows_touched_since(self, position: int) -> Rows:
        return np.array(sorted(set(self.touched[position:])), np.int64)

    @contextmanager
    def what_if(self) -> Iterator[None]:
        outer, self._undo = self._undo, []
        try:
            yield
        finally:
            journal, self._undo = self._undo, outer
            for row, amount, pod, was_there in reversed(journal):
                self._take_back(row, amount, pod, was_there)

    # --- labels as arrays ---

    def codes(self, key: str) -> tuple[Rows, dict[str, int]]:
        """For a label key: each row's value as a number (-1: no such label), and the numbers of the values."""
        cached = self._codes.get(key)
        if cached is not None and cached[0] == self.layout and len(cached[1]) == len(self.live):
            return cached[1], cached[2]
        values: dict[str, int] = {}
        codes = np.full(len(self.live), -1, np.int64)
        for row, node in enumerate(self.nodes):
            if node is not None and (value := node.labels.get(key)) is not None:
                codes[row] = values.setdefault(value, len(values))
        self._codes[key] = (self.layout, codes, values)
        return codes, values

    @property
    def rank(self) -> Rows:
        """Each row's place in the order of node names: the last word in every tie."""
        if (
            self._rank is None
            or self._rank[0] != self.layout
            or len(self._rank[1]) != len(self.live)
        ):
            rank = np.zeros(len(self.live), np.int64)
            for place, name in enumerate(sorted(self.row_of)):
                rank[self.row_of[name]] = place
            self._rank = (self.layout, rank)
        return self._rank[1]


def _site(node: Node) -> tuple[object, ...]:
    """What of a node decides who may come, room aside."""
    return (node.labels, node.taints, node.unschedulable, node.ready)
