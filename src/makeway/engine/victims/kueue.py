"""Kueue's choice of victims, exactly: ask the legal candidates in order until the workload fits, then spare whom one can.

`choose` is the classical search; where shares decide (fair sharing) it hands over to `fair`.
"""

from __future__ import annotations

from typing import NamedTuple

from makeway.engine.ledger import Ledger
from makeway.engine.quota import QuotaNode
from makeway.engine.victims import fair
from makeway.engine.victims.candidates import (
    RULE_OF,
    Candidate,
    Candidates,
    Request,
    forbids_borrowing,
    legal_candidates,
)
from makeway.engine.victims.spare import Victim, fits, spare_unneeded


class Attempt(NamedTuple):
    borrow: bool


def choose(ledger: Ledger, request: Request) -> list[Victim]:
    """The victims, or none: nobody is evicted unless the whole request then fits."""
    if request.policy.fair_sharing:
        return fair.choose(ledger, request)
    candidates = legal_candidates(ledger, request)
    for attempt in _attempts(ledger, request, candidates):
        victims = _search(ledger, request, candidates, attempt)
        if victims:
            return victims
    return []


def _attempts(ledger: Ledger, request: Request, candidates: Candidates) -> list[Attempt]:
    """With and without borrowing, in the order that evicts least from others."""
    forbidden = forbids_borrowing(request.preemption)
    queue = ledger.queue(request.queue)
    under_nominal = all(queue.used(fr) < queue.quota(fr) for fr in request.need)
    if not candidates.from_other_queues or (forbidden and not under_nominal):
        return [Attempt(borrow=True)]
    if forbidden and not candidates.from_hierarchy:
        return [Attempt(borrow=False), Attempt(borrow=True)]
    return [Attempt(borrow=True), Attempt(borrow=False)]


def _search(
    ledger: Ledger, request: Request, candidates: Candidates, attempt: Attempt
) -> list[Victim]:
    victims: list[Victim] = []
    with ledger.what_if():
        for candidate in candidates:
            if not _may_still_fall(request, candidate, attempt):
                continue
            ledger.release(candidate.held.id)
            victims.append(Victim(candidate.held, RULE_OF[candidate.variant]))
            if fits(ledger, request, borrow=attempt.borrow):
                return spare_unneeded(ledger, request, victims, borrow=attempt.borrow)
    return []


def _may_still_fall(request: Request, candidate: Candidate, attempt: Attempt) -> bool:
    """Asked anew as victims leave, so that reclaiming stops once a borrower is back at its quota."""
    if candidate.meets_at is None:
        return True
    if attempt.borrow and candidate.variant == "reclaim-without-borrowing":
        return False
    node: QuotaNode | None = candidate.node
    while node is not None and node is not candidate.meets_at:
        if node.is_within_nominal(request.need):
            return False
        node = node.parent
    return True
