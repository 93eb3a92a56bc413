"""How much free GPU on a node is of no use to the work that is seen: the FGD measure.

For a mix of requests with their popularity, a node's fragmentation is the expected number of its free GPUs that a request
drawn from the mix could not use there, because GPUs, CPU or memory do not suffice. Work is packed where it raises this least.
Figures are scaled to whole numbers so that plans never depend on float order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from makeway.engine.nodes import NodeTable, Rows
from makeway.model.resources import FrozenAmounts, is_accelerator

SCALE = 64  # popularity is counted in 64ths: small shifts in the mix change nothing
MOST_SHAPES = 12


class Mix:
    """The requests seen, with their popularity in 64ths."""

    def __init__(self, shapes: Iterable[tuple[FrozenAmounts, int]] = ()) -> None:
        counted = Counter[FrozenAmounts]()
        for requests, count in shapes:
            if any(is_accelerator(resource) and amount for resource, amount in requests):
                counted[requests] += count
        popular = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:MOST_SHAPES]
        whole = sum(count for _, count in popular)
        self.shares: tuple[tuple[FrozenAmounts, int], ...] = tuple(
            (requests, max(1, count * SCALE // whole)) for requests, count in popular
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mix) and self.shares == other.shares

    def __hash__(self) -> int:
        return hash(self.shares)

    def fragmentation(self, table: NodeTable, free: Rows) -> Rows:
        """Per row of `free` (a block of room): unusable accelerators times popularity."""
        idle = np.maximum(free[:, table.devices], 0).sum(axis=1)
        result = np.zeros(len(free), np.int64)
        for requests, share in self.shares:
            need = table.vector(requests)
            need[0] = 1
            width = min(len(need), free.shape[1])
            suits = (free[:, :width] >= need[:width]).all(axis=1)
            result += np.where(suits, 0, idle) * share
        return result

    def fragmentation_of(self, table: NodeTable, free: list[int]) -> int:
        """The same for a single row."""
        idle = sum(max(free[column], 0) for column in table.devices)
        if not idle:
            return 0
        unusable = 0
        for requests, share in self.shares:
            if free[0] < 1 or any(free[table.columns[r]] < amount for r, amount in requests):
                unusable += share
        return idle * unusable
