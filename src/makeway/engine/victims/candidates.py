"""Whom the rules allow to be evicted for a workload, and by which rule.

Pairwise and independent of any search: `legal_candidates` is what every victim policy chooses from. A queue that stays within
its nominal quota is safe from other queues, whatever the priorities.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Literal, Protocol

from makeway.engine.ledger import Held, Ledger
from makeway.engine.ordering import queue_timestamp, used_most_first
from makeway.engine.policy import Policy
from makeway.engine.quota import FlavorResource, QuotaNode, Usage
from makeway.engine.victims.search import in_steps
from makeway.model.queue import PreemptionPolicy
from makeway.model.workload import Workload, WorkloadId

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


def rule_named(name: str) -> Rule | None:
    """One of the queues' rules; None: it is not theirs."""
    return next((rule for rule in RULE_OF.values() if rule == name), None)


class HasUsed(Protocol):
    """Where local queues are told apart by what they have used, and how much that is."""

    def applies_to(self, queue: str) -> bool: ...

    def of(self, door: str) -> float: ...


class Request:
    """Who wants in, where, with how much, and which part of it is short."""

    __slots__ = (
        "excluded",
        "need",
        "now",
        "places",
        "policy",
        "preemption",
        "price",
        "queue",
        "usable",
        "usage",
        "used",
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
        excluded: Collection[WorkloadId] = (),
        price: Callable[[WorkloadId], int] | None = None,
        used: HasUsed | None = None,
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
        self.excluded = excluded  # workloads that are not to be asked
        # What evicting one would cost; None: nobody asks, and the youngest of the lowest priority falls first.
        self.price = price
        self.used = used  # None: nobody is told apart by that

    def has_used(self, held: Held) -> float:
        """Its local queue, where that counts."""
        if self.used is None or not self.used.applies_to(held.queue):
            return 0.0
        return self.used.of(held.workload.door)


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


class Source:
    """One queue's workloads that one rule gives up."""

    __slots__ = ("_ledger", "entitled", "meets_at", "node", "request", "rule")

    def __init__(
        self,
        ledger: Ledger,
        request: Request,
        node: QuotaNode,
        rule: str,
        *,
        meets_at: QuotaNode | None = None,
        entitled: bool = False,
    ) -> None:
        self._ledger = ledger
        self.request = request
        self.node = node
        self.rule = rule
        self.meets_at = meets_at
        self.entitled = entitled

    def candidates(self, *, leaving: bool) -> Iterator[Candidate]:
        """In order, one by one: a search rarely looks at all of them."""
        request = self.request
        if not request.usable(self.node.name):
            return
        for held in self._in_order(leaving=leaving):
            if (
                held.uses(request.need)
                and passes(self.rule, request.workload, held.workload, request.policy)
                and held.id not in request.excluded
            ):
                yield Candidate(held, self.node, self._variant(held), self.meets_at)

    def _in_order(self, *, leaving: bool) -> list[Held]:
        members = self._ledger.held_in(self.node.name)
        found = members.leaving() if leaving else members.staying()
        used = self.request.used
        if used is None or not used.applies_to(self.node.name):
            return found
        return used_most_first(found, self.request.has_used)

    def _variant(self, held: Held) -> Variant:
        if self.meets_at is None:
            return "within-queue"
        return _variant(self.request, held, self.entitled)


class Candidates:
    """Everybody who may fall, in the order in which they are asked."""

    def __init__(
        self, hierarchy: list[Source], by_priority: list[Source], same: list[Source]
    ) -> None:
        self._hierarchy = hierarchy
        self._by_priority = by_priority
        self._same = same

    def __iter__(self) -> Iterator[Candidate]:
        """Who is already leaving comes first, from every list; then reclaimed quota, priority, and one's own queue last."""
        for leaving in (True, False):
            for sources in (self._hierarchy, self._by_priority, self._same):
                yield from _merged(sources, leaving=leaving)

    @property
    def from_hierarchy(self) -> bool:
        return _any(self._hierarchy)

    @property
    def from_other_queues(self) -> bool:
        return self.from_hierarchy or _any(self._by_priority)


def _merged(sources: list[Source], *, leaving: bool) -> Iterator[Candidate]:
    parts = [source.candidates(leaving=leaving) for source in sources]
    return parts[0] if len(parts) == 1 else heapq.merge(*parts, key=lambda c: c.held.key)


def _any(sources: list[Source]) -> bool:
    return any(
        next(source.candidates(leaving=leaving), None) is not None
        for source in sources
        for leaving in (True, False)
    )


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


def why_safe(
    node: QuotaNode,
    queue: str,
    preemption: PreemptionPolicy,
    asking: Workload,
    held: Held,
    policy: Policy,
) -> str:
    """The first rule of the queues that keeps `held`, in the queue `node`, from being evicted for `asking`; "" if none does."""
    if node.name == queue:
        return _refusal("withinClusterQueue", preemption.within_queue, asking, held, policy)
    if node.is_within_nominal(held.usage):
        return f"ClusterQueue {node.name} is within its nominal quota"
    return _refusal("reclaimWithinCohort", preemption.reclaim, asking, held, policy)


def _refusal(field: str, rule: str, asking: Workload, held: Held, policy: Policy) -> str:
    if passes(rule, asking, held.workload, policy):
        return ""
    if rule in ("", "Never"):
        return f"{field} is Never"
    return f"its priority {held.workload.priority} is not below {asking.priority}"


def legal_candidates(ledger: Ledger, request: Request) -> Candidates:
    """By the queues' own policies (fair sharing has its own list, `fair_candidates`)."""
    queue = ledger.queue(request.queue)
    hierarchy: list[Source] = []
    by_priority: list[Source] = []
    if queue.parent is not None and request.preemption.reclaim != "Never":
        for source in _cohort_sources(ledger, request, queue):
            (hierarchy if source.entitled else by_priority).append(source)
    return Candidates(hierarchy, by_priority, [_same_queue(ledger, request, queue)])


def _same_queue(ledger: Ledger, request: Request, queue: QuotaNode) -> Source:
    return Source(ledger, request, queue, request.preemption.within_queue)


def _cohort_sources(ledger: Ledger, request: Request, queue: QuotaNode) -> Iterator[Source]:
    """Climb to the root. As long as the request fits the quota below, what is above was only lent: reclaim it."""
    entitled = queue.fits_in_nominal(request.usage)
    remaining = {
        fr: max(0, amount - queue.local_available(fr)) for fr, amount in request.usage.items()
    }
    visited = queue
    for cohort in queue.ancestors():
        for node in _over_quota_queues(cohort, visited, request.need):
            rule = request.preemption.reclaim
            yield Source(ledger, request, node, rule, meets_at=cohort, entitled=entitled)
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


def fair_candidates(ledger: Ledger, request: Request) -> dict[QuotaNode, list[Candidate]]:
    """Under fair sharing every borrower of the whole tree can be asked; shares decide later who has to give."""
    queue = ledger.queue(request.queue)
    sources = [_same_queue(ledger, request, queue)]
    if queue.parent is not None and request.preemption.reclaim != "Never":
        sources += [
            Source(ledger, request, node, request.preemption.reclaim, meets_at=node.parent)
            for node in queue.root().queues_below()
            if node is not queue and node.is_borrowing(request.need)
        ]
    found = {
        source.node: [
            c
            for leaving in (True, False)
            for c in _cheapest_first(source.candidates(leaving=leaving), request)
        ]
        for source in sources
    }
    return {node: candidates for node, candidates in found.items() if candidates}


def _cheapest_first(candidates: Iterable[Candidate], request: Request) -> Iterable[Candidate]:
    """Shares pick the queue; inside it the least loss of the lowest priority falls, where loss counts."""
    price = request.price
    if price is None:
        return candidates
    band_of = request.policy.band_of
    return sorted(
        candidates,
        key=lambda c: (
            band_of(c.held.workload.priority),
            in_steps(price(c.held.id)),
            -request.has_used(c.held),
            c.held.key,
        ),
    )
