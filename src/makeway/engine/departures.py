"""Who was asked to go in this cycle, and what that frees in sum: so that a what-if without them costs nothing per head."""

from __future__ import annotations

from makeway.engine.ledger import Held, Ledger, Part
from makeway.engine.quota import FlavorResource
from makeway.model.workload import WorkloadId


class Departures:
    def __init__(self) -> None:
        self._held: dict[WorkloadId, Held] = {}
        self._freed: dict[str, dict[FlavorResource, int]] = {}  # by queue

    def __bool__(self) -> bool:
        return bool(self._held)

    def __contains__(self, workload: object) -> bool:
        return workload in self._held

    def ids(self) -> set[WorkloadId]:
        return set(self._held)

    def add(self, held: Held) -> None:
        if held.id not in self._held:
            self._held[held.id] = held
            self._count(held, 1)

    def discard(self, held: Held) -> None:
        if self._held.pop(held.id, None) is not None:
            self._count(held, -1)

    def _count(self, held: Held, sign: int) -> None:
        freed = self._freed.setdefault(held.queue, {})
        for fr, amount in held.usage.items():
            freed[fr] = freed.get(fr, 0) + sign * amount

    def free_room(self, ledger: Ledger) -> None:
        """Inside a what-if: their quota as if they were gone. They stay members; searches leave them out by name."""
        for queue, freed in self._freed.items():
            ledger.remove_usage(queue, freed)

    def release_rest(self, ledger: Ledger) -> None:
        """Inside a what-if: those who still count, gone as members too. Who gives up a part stays a member."""
        for workload, held in self._held.items():
            if not isinstance(held, Part):
                ledger.release(workload)
