"""Everything that could be evicted right now, as arrays: built once a cycle, asked by every preemptor of the cycle.

A unit is what falls together: a workload with its pods wherever they are, one independent pod, or one surplus pod of a gang.
Its room is a list of entries (unit, row, amounts), so that "what is free on each node once these are gone" is one expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from makeway.engine.nodes import Mask, NodeTable, Rows
from makeway.engine.ordering import used_most_first
from makeway.engine.victims.candidates import HasUsed
from makeway.model.node import NodeName
from makeway.model.workload import Pod, Workload, WorkloadId


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One unit before it becomes a row of the roster."""

    workload: Workload
    pods: tuple[Pod, ...]  # those on nodes that count towards its room
    whole: bool  # the workload falls; False: only these pods
    lowers: bool = False  # the pods are not replaced: its job is lowered, and their quota is free
    loss_ms: int
    started_at: float
    promised: tuple[tuple[NodeName, Rows], ...] = ()  # room kept for its pods to come
    budgets: tuple[str, ...] = ()  # disruption budgets it draws on, once for each pod
    protected: str = ""  # why it is safe from everybody, as a sentence


class Roster:
    def __init__(
        self, table: NodeTable, candidates: Sequence[Candidate], used: HasUsed | None = None
    ) -> None:
        self.table = table
        # Youngest first, then the name that sorts last: position is the tie-break, whatever order they came in.
        ordered = sorted(candidates, key=_fall_order, reverse=True)
        if used is not None:
            ordered = _used_most_first(ordered, used)
        self.candidates = ordered
        self.priority = np.array([c.workload.priority for c in ordered], np.int64)
        self.pod_priority = np.array([_pod_priority(c) for c in ordered], np.int64)
        self.loss_ms = np.array([c.loss_ms for c in ordered], np.int64)
        self.protected = np.array([bool(c.protected) for c in ordered], np.bool_)
        self.by_workload: dict[WorkloadId, list[int]] = {}
        whole_of: dict[WorkloadId, int] = {}
        units: list[int] = []
        rows: list[int] = []
        amounts: list[Rows] = []
        for unit, candidate in enumerate(ordered):
            self.by_workload.setdefault(candidate.workload.id, []).append(unit)
            if candidate.whole:
                whole_of[candidate.workload.id] = unit
            for row, amount in self._room(candidate):
                units.append(unit)
                rows.append(row)
                amounts.append(amount)
        self.part_of: list[int | None] = [
            None if c.whole else whole_of.get(c.workload.id) for c in ordered
        ]
        # Of a workload that gives up single pods: how many it could. Stopping all of it is never one victim instead of several.
        self.parts = np.ones(len(ordered), np.int64)
        for whole in self.part_of:
            if whole is not None:
                self.parts[whole] += 1
        unit_of, row_of = np.array(units, np.int64), np.array(rows, np.int64)
        spans = np.bincount(unit_of, minlength=len(ordered))
        share = self.loss_ms // np.maximum(spans, 1)
        # By row, so that a sum per row is a difference of running sums; within a row the cheapest first, then the youngest.
        # A unit on several nodes costs each of them its part; the parts never add up to more than the whole.
        order = np.lexsort((unit_of, share[unit_of], row_of))
        self.entry_unit = unit_of[order]
        self.entry_share = share[self.entry_unit]
        self.entry_row = row_of[order]
        width = len(table.columns)
        found = np.array([_widened(a, width) for a in amounts], np.int64).reshape(-1, width)
        self.entry_amount = found[order]
        self.row_start = np.searchsorted(self.entry_row, np.arange(len(table.live) + 1))
        self.rows_of_unit = spans
        self.row_of_unit = np.zeros(len(ordered), np.int64)  # where it is on one row only
        self.row_of_unit[self.entry_unit] = self.entry_row

    def __len__(self) -> int:
        return len(self.candidates)

    def _room(self, candidate: Candidate) -> Iterable[tuple[int, Rows]]:
        row_of, need = self.table.row_of, self.table.need
        if len(candidate.pods) == 1 and not candidate.promised:
            pod = candidate.pods[0]
            row = row_of.get(pod.node) if pod.node is not None else None
            return () if row is None else ((row, need(pod.shape)),)
        room: dict[int, Rows] = {}
        for pod in candidate.pods:
            row = row_of.get(pod.node) if pod.node is not None else None
            if row is not None:
                room[row] = need(pod.shape) + room[row] if row in room else need(pod.shape)
        for name, amount in candidate.promised:
            row = row_of.get(name)
            if row is not None:
                room[row] = _widened(amount, len(self.table.columns)) + room.get(row, 0)
        return room.items()

    def freed(self, gone: Mask, columns: Rows) -> Rows:
        """Per row what these units give back of these columns."""
        given = self.entry_amount[:, columns] * gone[self.entry_unit][:, None]
        running = np.zeros((len(given) + 1, len(columns)), np.int64)
        np.cumsum(given, axis=0, out=running[1:])
        result: Rows = running[self.row_start[1:]] - running[self.row_start[:-1]]
        return result


def lift(table: NodeTable, candidate: Candidate) -> None:
    """Inside a what-if: the unit is gone, with its pods and with the room kept for those to come."""
    for pod in candidate.pods:
        row = table.row_of.get(pod.node) if pod.node is not None else None
        if row is not None:
            table.lift(pod, row)
    for name, amount in candidate.promised:
        row = table.row_of.get(name)
        if row is not None:
            table.take(row, -amount)


def _pod_priority(candidate: Candidate) -> int:
    if len(candidate.pods) == 1:
        return candidate.pods[0].priority
    return max((pod.priority for pod in candidate.pods), default=candidate.workload.priority)


def _widened(amount: Rows, width: int) -> Rows:
    if len(amount) == width:
        return amount
    return np.concatenate([amount, np.zeros(width - len(amount), np.int64)])


def _used_most_first(ordered: list[Candidate], used: HasUsed) -> list[Candidate]:
    """Queues where usage counts deal their places out anew among their own; nobody else's place changes."""
    places: dict[str, list[int]] = {}
    for place, candidate in enumerate(ordered):
        admission = candidate.workload.admission
        if admission is not None and used.applies_to(admission.queue):
            places.setdefault(admission.queue, []).append(place)
    for mine in places.values():
        dealt = used_most_first([ordered[i] for i in mine], lambda c: used.of(c.workload.door))
        for place, candidate in zip(mine, dealt, strict=True):
            ordered[place] = candidate
    return ordered


def _fall_order(candidate: Candidate) -> tuple[float, str, tuple[str, ...]]:
    return (candidate.started_at, candidate.workload.id, tuple(p.id for p in candidate.pods))
