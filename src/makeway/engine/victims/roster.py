"""Everything that could be evicted right now, as arrays: built once a cycle, asked by every preemptor of the cycle.

A unit is what falls together: a workload with its pods wherever they are, one independent pod, or one surplus pod of a gang.
Its room is a list of entries (unit, row, amounts), so that "what is free on each node once these are gone" is one expression.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from makeway.engine.nodes import Mask, NodeTable, Rows
from makeway.model.workload import Pod, PodId, Workload, WorkloadId


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One unit before it becomes a row of the roster."""

    workload: Workload
    pods: tuple[Pod, ...]  # those on nodes that count towards its room
    whole: bool  # the workload falls; False: only these pods
    loss_ms: int
    started_at: float
    budgets: tuple[
        str, ...
    ] = ()  # disruption budgets that its eviction draws on, once for each pod
    protected: str = ""  # why it is safe from everybody, as a sentence


class Roster:
    def __init__(self, table: NodeTable, candidates: Sequence[Candidate]) -> None:
        self.table = table
        # Youngest first, then the name that sorts last: position is the tie-break, whatever order they came in.
        ordered = sorted(candidates, key=_fall_order, reverse=True)
        self.candidates = ordered
        self.priority = np.array([c.workload.priority for c in ordered], np.int64)
        self.pod_priority = np.array([_pod_priority(c) for c in ordered], np.int64)
        self.loss_ms = np.array([c.loss_ms for c in ordered], np.int64)
        self.protected = np.array([bool(c.protected) for c in ordered], np.bool_)
        self.index: dict[tuple[WorkloadId, tuple[PodId, ...]], int] = {}
        self.by_workload: dict[WorkloadId, list[int]] = {}
        whole_of: dict[WorkloadId, int] = {}
        entries: list[tuple[int, int]] = []
        amounts: list[Rows] = []
        for unit, candidate in enumerate(ordered):
            self.index[candidate.workload.id, tuple(p.id for p in candidate.pods)] = unit
            self.by_workload.setdefault(candidate.workload.id, []).append(unit)
            if candidate.whole:
                whole_of[candidate.workload.id] = unit
            for row, amount in self._room(candidate).items():
                entries.append((unit, row))
                amounts.append(amount)
        self.part_of: list[int | None] = [
            None if c.whole else whole_of.get(c.workload.id) for c in ordered
        ]
        self.entry_unit = np.array([unit for unit, _ in entries], np.int64)
        self.entry_row = np.array([row for _, row in entries], np.int64)
        width = len(table.columns)
        self.entry_amount = (
            np.stack([_widened(a, width) for a in amounts])
            if amounts
            else np.zeros((0, width), np.int64)
        )
        self.rows_of_unit = np.bincount(self.entry_unit, minlength=len(ordered))

    def __len__(self) -> int:
        return len(self.candidates)

    def _room(self, candidate: Candidate) -> dict[int, Rows]:
        room: dict[int, Rows] = {}
        for pod in candidate.pods:
            row = self.table.row_of.get(pod.node) if pod.node is not None else None
            if row is None:
                continue
            need = self.table.need(pod.shape)
            room[row] = need + room[row] if row in room else need
        return room

    def freed(self, gone: Mask) -> Rows:
        """Per row what these units give back (a block as wide as the table)."""
        result = np.zeros_like(self.table.free)
        chosen = gone[self.entry_unit]
        width = self.entry_amount.shape[1]
        np.add.at(result[:, :width], self.entry_row[chosen], self.entry_amount[chosen])
        return result


def _pod_priority(candidate: Candidate) -> int:
    return max((pod.priority for pod in candidate.pods), default=candidate.workload.priority)


def _widened(amount: Rows, width: int) -> Rows:
    if len(amount) == width:
        return amount
    return np.concatenate([amount, np.zeros(width - len(amount), np.int64)])


def _fall_order(candidate: Candidate) -> tuple[float, str, tuple[str, ...]]:
    return (candidate.started_at, candidate.workload.id, tuple(p.id for p in candidate.pods))
