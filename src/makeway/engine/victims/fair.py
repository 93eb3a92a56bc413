"""Kueue's victims under fair sharing: shares pick the queue to take from, again after every victim.

With the workload counted as if it ran, walk down from the root to the queue with the highest share that still has candidates.
Take from it while the configured strategy says that this evens shares out rather than turning the tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from makeway.engine.fairness import Share, almost_lowest_common, is_borrowing, share
from makeway.engine.ledger import Ledger
from makeway.engine.ordering import CandidateKey, candidate_key
from makeway.engine.policy import Strategy
from makeway.engine.quota import QuotaNode
from makeway.engine.victims.candidates import Candidate, Request, fair_candidates
from makeway.engine.victims.spare import Victim, fits, spare_unneeded


def choose(ledger: Ledger, request: Request) -> list[Victim]:
    candidates = fair_candidates(ledger, request)
    if not candidates:
        return []
    with ledger.what_if():
        return _Search(ledger, request).run(candidates)


def is_entitled(ledger: Ledger, request: Request) -> bool:
    """Quota that one owns is reclaimed without comparing shares. Asked with the request counted as if it ran."""
    return request.policy.fair_preempts_within_nominal and ledger.queue(
        request.queue
    ).is_within_nominal(request.need)


def may_fall(ledger: Ledger, request: Request, candidate: Candidate) -> bool:
    """One victim at its turn, with the request counted as if it ran: would taking it even shares out?"""
    queue = ledger.queue(request.queue)
    if candidate.node is queue:
        return True
    if not is_borrowing(candidate.node):
        return False
    if is_entitled(ledger, request):
        return True
    mine, theirs = almost_lowest_common(queue, candidate.node)
    mine_new, theirs_old = share(mine), share(theirs)
    if mine_new.endless and not theirs_old.endless:
        return False
    return any(
        strategy_allows(ledger, strategy, mine_new, theirs_old, theirs, candidate)
        for strategy in request.policy.fair_strategies
    )


def strategy_allows(
    ledger: Ledger,
    strategy: Strategy,
    mine_new: Share,
    theirs_old: Share,
    theirs: QuotaNode,
    candidate: Candidate,
) -> bool:
    if strategy == "LessThanInitialShare":
        return mine_new < theirs_old
    with ledger.what_if():
        ledger.give_back(candidate.held)
        return mine_new <= share(theirs)


class _Search:
    def __init__(self, ledger: Ledger, request: Request) -> None:
        self.ledger = ledger
        self.request = request
        self.queue = ledger.queue(request.queue)
        self.victims: list[Victim] = []

    def run(self, candidates: dict[QuotaNode, list[Candidate]]) -> list[Victim]:
        ledger, request = self.ledger, self.request
        ledger.add_usage(request.queue, request.usage)
        done, retry = self._first_pass(candidates)
        strategies = request.policy.fair_strategies
        if not done and len(strategies) > 1:
            done = self._second_pass(retry, strategies[1])
        ledger.remove_usage(request.queue, request.usage)
        if not done:
            return []
        return spare_unneeded(ledger, request, self.victims, borrow=True)

    def _first_pass(
        self, candidates: dict[QuotaNode, list[Candidate]]
    ) -> tuple[bool, list[Candidate]]:
        request = self.request
        strategy = request.policy.fair_strategies[0]
        entitled = is_entitled(self.ledger, request)
        retry: list[Candidate] = []
        tournament = _Tournament(request, self.queue, candidates)
        for target in tournament:
            if target is self.queue:
                if self._take(tournament.pop(target), "InClusterQueue"):
                    return True, retry
            elif entitled:
                if self._take(tournament.pop(target), "InCohortReclamation"):
                    return True, retry
            elif self._take_by_share(tournament, target, strategy, retry):
                return True, retry
        return False, retry

    def _take_by_share(
        self, tournament: _Tournament, target: QuotaNode, strategy: Strategy, retry: list[Candidate]
    ) -> bool:
        mine, theirs = almost_lowest_common(self.queue, target)
        mine_new, theirs_old = share(mine), share(theirs)
        if mine_new.endless and not theirs_old.endless:
            retry.extend(tournament.pop_all(target))
            return False
        while tournament.has(target):
            candidate = tournament.pop(target)
            if strategy_allows(self.ledger, strategy, mine_new, theirs_old, theirs, candidate):
                # Whether or not it fits now, shares have moved: the next queue is picked anew.
                return self._take(candidate, "InCohortFairSharing")
            retry.append(candidate)
        return False

    def _second_pass(self, retry: list[Candidate], strategy: Strategy) -> bool:
        """At most one more victim from each queue, by the second strategy."""
        by_queue: dict[QuotaNode, list[Candidate]] = {}
        for candidate in retry:
            by_queue.setdefault(candidate.node, []).append(candidate)
        tournament = _Tournament(self.request, self.queue, by_queue)
        for target in tournament:
            mine, theirs = almost_lowest_common(self.queue, target)
            holds = strategy_allows(
                self.ledger,
                strategy,
                share(mine),
                share(theirs),
                theirs,
                tournament.first(target),
            )
            candidate = tournament.pop(target)
            if holds and self._take(candidate, "InCohortFairSharing"):
                return True
            tournament.drop(target)
        return False

    def _take(self, candidate: Candidate, rule: str) -> bool:
        """True when the request fits after this one."""
        self.ledger.release(candidate.held.id)
        self.victims.append(Victim(candidate.held, rule))  # type: ignore[arg-type]
        with self.ledger.what_if():
            self.ledger.remove_usage(self.request.queue, self.request.usage)
            return fits(self.ledger, self.request, borrow=True)


class _Tournament:
    """Yields, again and again, the queue whose turn it is to give, until no queue has candidates left."""

    def __init__(
        self, request: Request, queue: QuotaNode, candidates: dict[QuotaNode, list[Candidate]]
    ) -> None:
        self.request = request
        self.queue = queue
        self.candidates = {node: deque(waiting) for node, waiting in candidates.items()}
        self.pruned: set[int] = set()
        self.above_queue = {id(node) for node in queue.ancestors()}

    def has(self, node: QuotaNode) -> bool:
        return bool(self.candidates.get(node))

    def first(self, node: QuotaNode) -> Candidate:
        return self.candidates[node][0]

    def pop(self, node: QuotaNode) -> Candidate:
        return self.candidates[node].popleft()

    def pop_all(self, node: QuotaNode) -> list[Candidate]:
        return list(self.candidates.pop(node, ()))

    def drop(self, node: QuotaNode) -> None:
        self.pruned.add(id(node))

    def __iter__(self) -> Iterator[QuotaNode]:
        root = self.queue.root()
        if root is self.queue:
            while self.has(self.queue) and id(self.queue) not in self.pruned:
                yield self.queue
            return
        while id(root) not in self.pruned:
            target = self._descend(root)
            if target is not None:
                yield target

    def _descend(self, cohort: QuotaNode) -> QuotaNode | None:
        best_queue, queue_share = self._best_queue(cohort)
        best_cohort, cohort_share = self._best_cohort(cohort)
        if best_cohort is not None and (best_queue is None or cohort_share >= queue_share):
            return self._descend(best_cohort)
        if best_queue is None:
            self.pruned.add(id(cohort))
        return best_queue

    def _best_queue(self, cohort: QuotaNode) -> tuple[QuotaNode | None, Share]:
        best: QuotaNode | None = None
        best_share = Share(False, -1.0)
        for queue in cohort.queues:
            if id(queue) in self.pruned:
                continue
            if not self.has(queue) or (queue is not self.queue and not is_borrowing(queue)):
                self.pruned.add(id(queue))
                continue
            current = share(queue)
            if current > best_share or (
                best is not None and current == best_share and self._asks_earlier(queue, best)
            ):
                best, best_share = queue, current
        return best, best_share

    def _asks_earlier(self, left: QuotaNode, right: QuotaNode) -> bool:
        return self._first_key(left) < self._first_key(right)

    def _first_key(self, node: QuotaNode) -> CandidateKey:
        held = self.first(node).held
        return candidate_key(held.workload, own_queue=held.queue == self.request.queue)

    def _best_cohort(self, cohort: QuotaNode) -> tuple[QuotaNode | None, Share]:
        best: QuotaNode | None = None
        best_share = Share(False, -1.0)
        for child in cohort.cohorts:
            if id(child) in self.pruned:
                continue
            if id(child) not in self.above_queue and not is_borrowing(child):
                self.pruned.add(id(child))
                continue
            current = share(child)
            if current >= best_share:
                best, best_share = child, current
        return best, best_share
