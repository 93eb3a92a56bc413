"""All that the loop needs from outside: a cluster and a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from makeway.model.decision import Plan
from makeway.model.event import Event
from makeway.model.history import History


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""
        ...


class Cluster(Protocol):
    """A place where workloads run: what changed there, and what was decided about it."""

    async def wait(self, until: float | None) -> None:
        """Until something changed, or until this time."""
        ...

    async def settle(self) -> bool:
        """Bring everything in line that needs no decision: jobs to start and stop, statuses to write. False: all is so."""
        ...

    def changes(self) -> Sequence[Event]:
        """What changed since the last call."""
        ...

    def history(self) -> History:
        """What is remembered of each owner's evictions, as far back as it counts."""
        ...

    async def apply(self, plan: Plan) -> None:
        """Carry out what was decided. What could not be done shows in the next `changes`."""
        ...

    def wake_at(self) -> float | None:
        """When to settle again although nothing changed."""
        ...

    def decide_at(self) -> float | None:
        """When to decide again although nothing changed: something was held back by `apply`."""
        ...

    @property
    def idle(self) -> bool:
        """Nothing is under way and nothing waits to be looked at."""
        ...
