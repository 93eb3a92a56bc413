"""The quota half of the victims' oracle: does the request fit its queue once these are gone, and may they all be taken?

A set is legal if in some order each victim passes its rule at its turn: who belongs to another queue may be taken only while
that queue (and every cohort on the way) uses more than it owns. Taking the small ones first keeps a borrower borrowing longest,
so that one order is tried. Units that may be reclaimed only without borrowing ask for a request within nominal quota. Under
fair sharing the shares are compared anew at every turn instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain

from makeway.engine.ledger import Ledger
from makeway.engine.victims import fair
from makeway.engine.victims.candidates import (
    RULE_OF,
    Candidate,
    Request,
    fair_candidates,
    legal_candidates,
)
from makeway.engine.victims.least_loss import PRIORITY
from makeway.engine.victims.spare import fits
from makeway.model.workload import WorkloadId


class QuotaRoom:
    """For one request, on the ledger as it stands (inside somebody's what-if)."""

    def __init__(
        self, ledger: Ledger, request: Request, release_leaving: Callable[[], object]
    ) -> None:
        self.ledger = ledger
        self.request = request
        self._release_leaving = release_leaving

    @contextmanager
    def once_they_are_gone(self) -> Iterator[None]:
        with self.ledger.what_if():
            self._release_leaving()
            yield

    @cached_property
    def candidates(self) -> dict[WorkloadId, Candidate]:
        """Looked for when somebody has to fall: most requests find free room and never ask."""
        found: Iterable[Candidate] = legal_candidates(self.ledger, self.request)
        if self._fair:
            found = chain.from_iterable(fair_candidates(self.ledger, self.request).values())
        return {candidate.held.id: candidate for candidate in found}

    @property
    def _fair(self) -> bool:
        return self.request.policy.fair_sharing

    def rule(self, workload: WorkloadId) -> str:
        """By which a victim falls: of the queues where they are between the two, else pod priority."""
        candidate = self.candidates.get(workload)
        if candidate is None:
            return PRIORITY
        if not self._fair or candidate.variant == "within-queue":
            return RULE_OF[candidate.variant]
        with self._as_if_it_ran():
            entitled = fair.is_entitled(self.ledger, self.request)
        return RULE_OF["hierarchical-reclaim" if entitled else "fair-sharing"]

    @contextmanager
    def _as_if_it_ran(self) -> Iterator[None]:
        with self.ledger.what_if():
            self.ledger.add_usage(self.request.queue, self.request.usage)
            yield

    def fits(self, gone: frozenset[WorkloadId]) -> bool:
        with self.ledger.what_if():
            for workload in gone:
                self.ledger.release(workload)
            return fits(self.ledger, self.request, borrow=True)

    def legal(
        self, gone: frozenset[WorkloadId], singly: frozenset[WorkloadId] = frozenset()
    ) -> bool:
        asked = gone | singly
        mine = [self.candidates[workload] for workload in asked if workload in self.candidates]
        if self._fair:
            with self._as_if_it_ran():
                return self._each_at_its_turn(mine, gone)
        with self.ledger.what_if():
            if not self._each_at_its_turn(mine, gone):
                return False
            if any(c.variant == "reclaim-without-borrowing" for c in mine):
                return fits(self.ledger, self.request, borrow=False)
        return True

    def _each_at_its_turn(self, candidates: list[Candidate], gone: frozenset[WorkloadId]) -> bool:
        for candidate in sorted(candidates, key=self._size):
            if not self._may_fall(candidate):
                return False
            if candidate.held.id in gone:
                self.ledger.release(candidate.held.id)
        return True

    def _size(self, candidate: Candidate) -> tuple[int, str]:
        needed = sum(
            amount for fr, amount in candidate.held.usage.items() if fr in self.request.need
        )
        return needed, candidate.held.id

    def _may_fall(self, candidate: Candidate) -> bool:
        if self._fair:
            return fair.may_fall(self.ledger, self.request, candidate)
        return candidate.variant == "within-queue" or self._still_borrows(candidate)

    def _still_borrows(self, candidate: Candidate) -> bool:
        if candidate.node.is_within_nominal(self.request.need):
            return False
        for cohort in candidate.node.ancestors():
            if cohort is candidate.meets_at:
                break
            if cohort.is_within_nominal(self.request.need):
                return False
        return True

    def covers(self, workloads: Sequence[WorkloadId]) -> list[tuple[int, tuple[int, ...]]]:
        """What is missing of each flavor and resource must be given back by those who use it."""
        queue = self.ledger.queue(self.request.queue)
        result: list[tuple[int, tuple[int, ...]]] = []
        for fr, amount in self.request.usage.items():
            missing = amount - max(0, queue.available(fr))
            if missing > 0:
                gains = tuple(self._gain(workload, fr) for workload in workloads)
                result.append((missing, gains))
        return result

    def _gain(self, workload: WorkloadId, fr: tuple[str, str]) -> int:
        held = self.ledger.get(workload)
        return held.usage.get(fr, 0) if held is not None else 0
