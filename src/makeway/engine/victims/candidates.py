"""Whom the rules allow to be evicted for a workload, and by which rule.

Pairwise and independent of any search: `legal_candidates` is what every victim policy chooses from. A queue that stays within
its nominal quota is safe from other queues, whatever the priorities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from makeway.engine.ledger import Held, Ledger
from makeway.engine.ordering import candidate_key, queue_timestamp
from makeway.engine.policy import Policy
from makeway.engine.quota import FlavorResource, QuotaNode, Usage
from makeway.model.queue import PreemptionPolicy
from makeway.model.workload import Workload

Variant = Literal[
    "within-queue",
    "hierarchical-reclaim",
    "reclaim-without-borrowing",
    "reclaim-while-borrowing",
    "fair-sharing",
]
Rule = Literal[
    "InClusterQueue", "InCohortReclamation", "InCohortReclaimWhileBorrowing", "InCohortFairSharing"
]
RULE_OF: dict[Variant, Rule] = {
    "within-queue": "InClusterQueue",
    "hierarchical-reclaim": "InCohortReclamation",
    "reclaim-without-borrowing": "InCohortReclamation",
    "reclaim-while-borrowing": "InCohortReclaimWhileBorrowing",
    "fair-sharing": "InCohortFairSharing",
}


class Request:
    """Who wants in, where, with how much, and which part of it is short."""

    __slots__ = (
        "need",
        "now",
        "places",
        "policy",
        "preemption",
        "queue",
        "usable",
        "usage",
        "workload",
    )

    def __init__(
        self,
        *,
        workload: Workload,
        queue: str,
        usage: Usage,
        need: frozenset[FlavorResource],
        preemption: PreemptionPolicy,
        policy: Policy,
        now: float,
        usable: Callable[[str], bool] | None = None,
        places: Callable[[], bool] | None = None,
    ) -> None:
        self.workload = workload
        self.queue = queue
        self.usage = usage
        self.need = need
        self.preemption = preemption
        self.policy = policy
        self.now = now
        # Queues that are stopped or broken are left out: their workloads are no victims.
        self.usable = usable or (lambda queue: True)
        # Would the pods find nodes, with the ledger as it is now? None where quota alone decides.
        self.places = places


class Candidate:
    """A workload that may fall, the rule it would fall by, and the cohort where it meets the one who asks."""

    __slots__ = ("held", "meets_at", "node", "variant")

    def __init__(
        self, held: Held, node: QuotaNode, variant: Variant, meets_at: QuotaNode | None
    ) -> None:
        self.held = held
        self.node = node
        self.variant = variant
        self.meets_at = meets_at

    def __repr__(self) -> str:
        return f"Candidate({self.held.id}, {self.variant})"


class Candidates:
    """In the order in which they are asked, and how the lists behind that order were filled."""

    __slots__ = ("from_hierarchy", "from_other_queues", "ordered")

    def __init__(self, ordered: list[Candidate]) -> None:
        self.ordered = ordered
        variants = {candidate.variant for candidate in ordered}
        self.from_other_queues = bool(variants - {"within-queue"})
        self.from_hierarchy = "hierarchical-reclaim" in variants


def passes(rule: str, asking: Workload, candidate: Workload, policy: Policy) -> bool:
    """One policy word for one pair."""
    match rule:
        case "Any":
            return True
        case "LowerPriority":
            return asking.priority > candidate.priority
        case "LowerOrNewerEqualPriority":
            if asking.priority != candidate.priority:
                return asking.priority > candidate.priority
            return queue_timestamp(asking, policy) < queue_timestamp(candidate, policy)
        case _:
            return False


def _members(ledger: Ledger, request: Request, node: QuotaNode, rule: str) -> Iterator[Held]:
    """Workloads of one queue that use what is short and that the rule gives up."""
    if not request.usable(node.name):
        return
    for held in ledger.held_in(node.name).values():
        if held.uses(request.need) and passes(
            rule, request.workload, held.workload, request.policy
        ):
            yield held


def legal_candidates(ledger: Ledger, request: Request) -> Candidates:
    """By the queues' own policies (fair sharing has its own list, `fair_candidates`)."""
    queue = ledger.queue(request.queue)
    same = _same_queue(ledger, request, queue)
    hierarchy: list[Candidate] = []
    by_priority: list[Candidate] = []
    if queue.parent is not None and request.preemption.reclaim != "Never":
        _collect_from_cohorts(ledger, request, queue, hierarchy, by_priority)
    return Candidates(_in_asking_order(request, [hierarchy, by_priority, same]))


def _same_queue(ledger: Ledger, request: Request, queue: QuotaNode) -> list[Candidate]:
    members = _members(ledger, request, queue, request.preemption.within_queue)
    return [Candidate(held, queue, "within-queue", None) for held in members]


def _collect_from_cohorts(
    ledger: Ledger,
    request: Request,
    queue: QuotaNode,
    hierarchy: list[Candidate],
    by_priority: list[Candidate],
) -> None:
    """Climb to the root. As long as the request fits the quota below, what is above was only lent: reclaim it."""
    entitled = queue.fits_in_nominal(request.usage)
    remaining = {
        fr: max(0, amount - queue.local_available(fr)) for fr, amount in request.usage.items()
    }
    visited = queue
    for cohort in queue.ancestors():
        found = hierarchy if entitled else by_priority
        for node in _over_quota_queues(cohort, visited, request.need):
            for held in _members(ledger, request, node, request.preemption.reclaim):
                found.append(Candidate(held, node, _variant(request, held, entitled), cohort))
        entitled = entitled or not any(
            cohort.borrows_with(fr, rest) for fr, rest in remaining.items()
        )
        remaining = {
            fr: max(0, rest - cohort.local_available(fr)) for fr, rest in remaining.items()
        }
        visited = cohort


def _over_quota_queues(
    cohort: QuotaNode, visited: QuotaNode, need: frozenset[FlavorResource]
) -> Iterator[QuotaNode]:
    """Queues below that use more than they own; a subtree within its quota is not entered at all."""
    for queue in cohort.queues:
        if queue is not visited and not queue.is_within_nominal(need):
            yield queue
    for child in cohort.cohorts:
        if child is not visited and not child.is_within_nominal(need):
            yield from _over_quota_queues(child, visited, need)


def _variant(request: Request, held: Held, entitled: bool) -> Variant:
    if entitled:
        return "hierarchical-reclaim"
    if forbids_borrowing(request.preemption) or held.workload.priority >= request.workload.priority:
        return "reclaim-without-borrowing"
    threshold = request.preemption.borrow_max_priority
    if threshold is not None and held.workload.priority > threshold:
        return "reclaim-without-borrowing"
    return "reclaim-while-borrowing"


def forbids_borrowing(preemption: PreemptionPolicy) -> bool:
    return preemption.borrow == "Never"


def _in_asking_order(request: Request, lists: list[list[Candidate]]) -> list[Candidate]:
    """Who is already leaving comes first, from every list; then reclaimed quota, priority, and one's own queue last."""
    leaving: list[Candidate] = []
    staying: list[Candidate] = []
    for candidates in lists:
        for candidate in sort_candidates(request, candidates):
            (staying if candidate.held.workload.evicted_at is None else leaving).append(candidate)
    return leaving + staying


def sort_candidates(request: Request, candidates: list[Candidate]) -> list[Candidate]:
    return sorted(
        candidates,
        key=lambda c: candidate_key(
            c.held.workload, own_queue=c.held.queue == request.queue, now=request.now
        ),
    )


def fair_candidates(ledger: Ledger, request: Request) -> list[Candidate]:
    """Under fair sharing every borrower of the whole tree can be asked; shares decide later who has to give."""
    queue = ledger.queue(request.queue)
    found = _same_queue(ledger, request, queue)
    if queue.parent is not None and request.preemption.reclaim != "Never":
        for node in queue.root().queues_below():
            if node is queue or not node.is_borrowing(request.need):
                continue
            for held in _members(ledger, request, node, request.preemption.reclaim):
                found.append(Candidate(held, node, "fair-sharing", None))
    return sort_candidates(request, found)
