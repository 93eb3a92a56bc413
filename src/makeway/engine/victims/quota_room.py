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

from makeway.engine.ledger import Held, Ledger, Part
from makeway.engine.victims import fair
from makeway.engine.victims.candidates import (
    RULE_OF,
    Candidate,
    Request,
    fair_candidates,
    legal_candidates,
)
from makeway.engine.victims.least_loss import PRIORITY
from makeway.engine.victims.oracle import NOBODY, Gone
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

    def fits(self, gone: Gone = NOBODY) -> bool:
        with self.ledger.what_if():
            for workload in gone.whole:
                self.ledger.release(workload)
            for workload, pods in gone.lowered:
                held = self.ledger.get(workload)
                if held is not None:
                    self.ledger.give_back(Part(held, pods))
            return fits(self.ledger, self.request, borrow=True)

    def legal(self, gone: Gone) -> bool:
        turns = sorted(self._turns(gone), key=self._size)
        if self._fair:
            with self._as_if_it_ran():
                return self._each_at_its_turn(turns)
        with self.ledger.what_if():
            if not self._each_at_its_turn(turns):
                return False
            if any(c.variant == "reclaim-without-borrowing" for c, _ in turns):
                return fits(self.ledger, self.request, borrow=False)
        return True

    def _turns(self, gone: Gone) -> Iterator[tuple[Candidate, Held | None]]:
        """Who falls, and what comes back with it. A job is lowered pod by pod, so that not more than was lent is taken."""
        for workload in gone.whole | gone.singly:
            if workload in self.candidates:
                candidate = self.candidates[workload]
                yield candidate, candidate.held if workload in gone.whole else None
        for workload, pods in gone.lowered:
            if workload in self.candidates:
                candidate = self.candidates[workload]
                part = Part(candidate.held, 1)
                pod = Candidate(part, candidate.node, candidate.variant, candidate.meets_at)
                yield from ((pod, part) for _ in range(pods))

    def _each_at_its_turn(self, turns: list[tuple[Candidate, Held | None]]) -> bool:
        for candidate, given in turns:
            if not self._may_fall(candidate):
                return False
            if given is not None:
                self.ledger.give_back(given)
        return True

    def _size(self, turn: tuple[Candidate, Held | None]) -> tuple[int, str]:
        held = turn[1] or turn[0].held
        return sum(amount for fr, amount in held.usage.items() if fr in self.request.need), held.id

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

    def covers(self, units: Sequence[Gone]) -> list[tuple[int, tuple[int, ...]]]:
        """What is missing of each flavor and resource must be given back by those who use it."""
        queue = self.ledger.queue(self.request.queue)
        result: list[tuple[int, tuple[int, ...]]] = []
        for fr, amount in self.request.usage.items():
            missing = amount - max(0, queue.available(fr))
            if missing > 0:
                result.append((missing, tuple(self._gain(unit, fr) for unit in units)))
        return result

    def _gain(self, unit: Gone, fr: tuple[str, str]) -> int:
        whole = [self.ledger.get(workload) for workload in unit.whole]
        gained = sum(held.usage.get(fr, 0) for held in whole if held is not None)
        for workload, pods in unit.lowered:
            held = self.ledger.get(workload)
            if held is not None:
                gained += Part(held, pods).usage.get(fr, 0)
        return gained
