"""Kueue's choice of victims once more, written down from its rules and with nothing remembered: every sum is made anew.

Classical preemption and fair sharing, flat and nested, with lending and borrowing limits. It shares no code with the engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

FR = tuple[str, str]
Amounts = dict[FR, int]


class Node(msgspec.Struct, kw_only=True, eq=False):
    name: str
    parent: Node | None = None
    queue: bool = True
    nominal: Amounts = {}
    borrowing: Amounts = {}
    lending: Amounts = {}
    weight: float = 1.0
    children: list[Node] = []


class Work(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    queue: str
    priority: int
    created: float
    reserved: float
    usage: Amounts
    leaving: bool = False


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    priority: int
    created: float
    usage: Amounts
    need: frozenset[FR]
    within: str
    reclaim: str
    borrow: str
    threshold: int | None = None


class Book:
    """Who runs, and what follows from it."""

    def __init__(self, nodes: dict[str, Node], works: list[Work]) -> None:
        self.nodes = nodes
        self.works = list(works)
        self.extra: dict[str, Amounts] = {}  # counted as if it ran

    def subtree(self, node: Node, fr: FR) -> int:
        own = node.nominal.get(fr, 0)
        return own + sum(self.subtree(c, fr) - self.local(c, fr) for c in node.children)

    def local(self, node: Node, fr: FR) -> int:
        return max(0, self.subtree(node, fr) - node.lending[fr]) if fr in node.lending else 0

    def usage(self, node: Node, fr: FR) -> int:
        if node.queue:
            mine = sum(w.usage.get(fr, 0) for w in self.works if w.queue == node.name)
            return mine + self.extra.get(node.name, {}).get(fr, 0)
        return sum(max(0, self.usage(c, fr) - self.local(c, fr)) for c in node.children)

    def local_available(self, node: Node, fr: FR) -> int:
        return max(0, self.local(node, fr) - self.usage(node, fr))

    def available(self, node: Node, fr: FR) -> int:
        if node.parent is None:
            return self.subtree(node, fr) - self.usage(node, fr)
        above = self.available(node.parent, fr)
        if fr in node.borrowing:
            local = self.local(node, fr)
            visible = max(0, self.usage(node, fr) - local)
            above = min(above, self.subtree(node, fr) - local - visible + node.borrowing[fr])
        return self.local_available(node, fr) + above

    def potential(self, node: Node, fr: FR) -> int:
        if node.parent is None:
            return self.subtree(node, fr)
        found = self.local(node, fr) + self.potential(node.parent, fr)
        if fr in node.borrowing:
            found = min(found, self.subtree(node, fr) + node.borrowing[fr])
        return found

    def within_nominal(self, node: Node, frs: frozenset[FR]) -> bool:
        return all(self.usage(node, fr) <= self.subtree(node, fr) for fr in frs)

    def fits_nominal(self, node: Node, usage: Amounts) -> bool:
        return all(self.usage(node, fr) + a <= self.subtree(node, fr) for fr, a in usage.items())

    def fits(self, ask: Ask, *, borrow: bool) -> bool:
        node = self.nodes[ask.queue]
        if not borrow and not self.fits_nominal(node, ask.usage):
            return False
        return all(a <= max(0, self.available(node, fr)) for fr, a in ask.usage.items())

    def share(self, node: Node) -> tuple[bool, float]:
        """Endless (of weight zero and borrowing), and how much."""
        if node.parent is None:
            return False, 0.0
        known = self._known(node)
        borrowed: dict[str, int] = {}
        for fr in known:
            over = max(0, self.usage(node, fr) - self.subtree(node, fr))
            borrowed[fr[1]] = borrowed.get(fr[1], 0) + over
        ratio = 0.0
        for resource, amount in borrowed.items():
            lendable = sum(self.potential(node.parent, fr) for fr in known if fr[1] == resource)
            if amount and lendable > 0:
                ratio = max(ratio, 1000.0 * amount / lendable)
        if not ratio:
            return False, 0.0
        return (True, ratio) if node.weight == 0 else (False, ratio / node.weight)

    def _known(self, node: Node) -> set[FR]:
        root = list(up(node))[-1]
        return {fr for n in below(root) for fr in n.nominal}

    def borrows_anything(self, node: Node) -> bool:
        return node.parent is not None and not self.within_nominal(
            node, frozenset(self._known(node))
        )


def up(node: Node | None) -> Iterator[Node]:
    while node is not None:
        yield node
        node = node.parent


def below(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from below(child)


def passes(rule: str, ask: Ask, work: Work) -> bool:
    if rule == "Any":
        return True
    if rule == "LowerPriority":
        return ask.priority > work.priority
    if rule == "LowerOrNewerEqualPriority":
        newer = ask.priority == work.priority and ask.created < work.created
        return ask.priority > work.priority or newer
    return False


def order(ask: Ask, work: Work) -> tuple[object, ...]:
    return (
        not work.leaving,
        work.queue == ask.queue,
        work.priority,
        -work.reserved,
        work.name,
    )


# -- classical -------------------------------------------------------------------------------------------------------


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    work: Work
    variant: str
    meets_at: str = ""


_REASON = {
    "within": "InClusterQueue",
    "hierarchy": "InCohortReclamation",
    "no-borrow": "InCohortReclamation",
    "borrow": "InCohortReclaimWhileBorrowing",
}


def classical(book: Book, ask: Ask) -> list[tuple[str, str]]:
    lists = _lists(book, ask)
    others = [c for name in ("hierarchy", "priority") for c in lists[name]]
    node = book.nodes[ask.queue]
    forbidden = ask.borrow == "Never"
    under = all(book.usage(node, fr) < node.nominal.get(fr, 0) for fr in ask.need)
    if not others or (forbidden and not under):
        attempts = [True]
    elif forbidden and not lists["hierarchy"]:
        attempts = [False, True]
    else:
        attempts = [True, False]
    ordered = [
        candidate
        for leaving in (True, False)
        for name in ("hierarchy", "priority", "same")
        for candidate in lists[name]
        if candidate.work.leaving is leaving
    ]
    for borrow in attempts:
        found = _attempt(book, ask, ordered, borrow=borrow)
        if found:
            return found
    return []


def _lists(book: Book, ask: Ask) -> dict[str, list[Candidate]]:
    lists: dict[str, list[Candidate]] = {"hierarchy": [], "priority": [], "same": []}
    using = [w for w in book.works if any(fr in w.usage for fr in ask.need)]
    lists["same"] = [
        Candidate(work=w, variant="within")
        for w in using
        if w.queue == ask.queue and passes(ask.within, ask, w)
    ]
    node = book.nodes[ask.queue]
    if node.parent is not None and ask.reclaim != "Never":
        advantage = book.fits_nominal(node, ask.usage)
        left = {fr: max(0, a - book.local_available(node, fr)) for fr, a in ask.usage.items()}
        visited = node
        for cohort in list(up(node))[1:]:
            for queue in _over_quota(book, cohort, visited, ask.need):
                for work in using:
                    if work.queue == queue.name and passes(ask.reclaim, ask, work):
                        variant = _variant(ask, work, advantage)
                        lists["hierarchy" if advantage else "priority"].append(
                            Candidate(work=work, variant=variant, meets_at=cohort.name)
                        )
            advantage = advantage or book.fits_nominal(cohort, left)
            left = {fr: max(0, a - book.local_available(cohort, fr)) for fr, a in left.items()}
            visited = cohort
    for found in lists.values():
        found.sort(key=lambda c: order(ask, c.work))
    return lists


def _over_quota(book: Book, cohort: Node, visited: Node, need: frozenset[FR]) -> Iterator[Node]:
    for child in cohort.children:
        if child is visited or book.within_nominal(child, need):
            continue
        if child.queue:
            yield child
        else:
            yield from _over_quota(book, child, visited, need)


def _variant(ask: Ask, work: Work, advantage: bool) -> str:
    if advantage:
        return "hierarchy"
    if ask.borrow == "Never" or work.priority >= ask.priority:
        return "no-borrow"
    return "no-borrow" if ask.threshold is not None and work.priority > ask.threshold else "borrow"


def _attempt(
    book: Book, ask: Ask, ordered: list[Candidate], *, borrow: bool
) -> list[tuple[str, str]]:
    before = list(book.works)
    taken: list[Candidate] = []
    try:
        for candidate in ordered:
            if not _still(book, ask, candidate, borrow):
                continue
            book.works.remove(candidate.work)
            taken.append(candidate)
            if book.fits(ask, borrow=borrow):
                return [(c.work.name, _REASON[c.variant]) for c in _back(book, ask, taken, borrow)]
        return []
    finally:
        book.works = before


def _still(book: Book, ask: Ask, candidate: Candidate, borrow: bool) -> bool:
    if candidate.variant == "within":
        return True
    if borrow and candidate.variant == "no-borrow":
        return False
    path = list(up(book.nodes[candidate.work.queue]))
    meeting = next(i for i, n in enumerate(path) if n.name == candidate.meets_at)
    return not any(book.within_nominal(node, ask.need) for node in path[:meeting])


def _back(book: Book, ask: Ask, taken: list[Candidate], borrow: bool) -> list[Candidate]:
    kept = list(taken)
    for i in range(len(kept) - 2, -1, -1):
        book.works.append(kept[i].work)
        if book.fits(ask, borrow=borrow):
            kept[i] = kept[-1]
            kept.pop()
        else:
            book.works.remove(kept[i].work)
    return kept


# -- fair sharing ----------------------------------------------------------------------------------------------------


def fair(book: Book, ask: Ask, strategies: tuple[str, ...]) -> list[tuple[str, str]]:
    node = book.nodes[ask.queue]
    root = list(up(node))[-1]
    pools: dict[str, list[Work]] = {}
    for other in [n for n in below(root) if n.queue]:
        mine = [
            w for w in book.works if w.queue == other.name and any(fr in w.usage for fr in ask.need)
        ]
        if other is node:
            mine = [w for w in mine if passes(ask.within, ask, w)]
        elif ask.reclaim == "Never" or book.within_nominal(other, ask.need):
            mine = []
        else:
            mine = [w for w in mine if passes(ask.reclaim, ask, w)]
        if mine:
            pools[other.name] = sorted(mine, key=lambda w: order(ask, w))
    before = list(book.works)
    book.extra = {ask.queue: ask.usage}
    try:
        taken = _FairSearch(book, ask, root, strategies).run(pools)
        return [(w.name, reason) for w, reason in taken]
    finally:
        book.works, book.extra = before, {}


class _FairSearch:
    def __init__(self, book: Book, ask: Ask, root: Node, strategies: tuple[str, ...]) -> None:
        self.book = book
        self.ask = ask
        self.root = root
        self.node = book.nodes[ask.queue]
        self.strategies = strategies
        self.taken: list[tuple[Work, str]] = []

    def run(self, pools: dict[str, list[Work]]) -> list[tuple[Work, str]]:
        retry: dict[str, list[Work]] = {}
        done = self._first(pools, retry)
        if not done and len(self.strategies) > 1:
            done = self._second(retry)
        if not done:
            return []
        self.book.extra = {}
        kept = list(self.taken)
        for i in range(len(kept) - 2, -1, -1):
            self.book.works.append(kept[i][0])
            if self.book.fits(self.ask, borrow=True):
                kept[i] = kept[-1]
                kept.pop()
            else:
                self.book.works.remove(kept[i][0])
        return kept

    def _take(self, work: Work, reason: str) -> bool:
        self.book.works.remove(work)
        self.taken.append((work, reason))
        self.book.extra = {}
        fits = self.book.fits(self.ask, borrow=True)
        self.book.extra = {self.ask.queue: self.ask.usage}
        return fits

    def _first(self, pools: dict[str, list[Work]], retry: dict[str, list[Work]]) -> bool:
        entitled = self.book.within_nominal(self.node, self.ask.need)
        pruned: set[str] = set()
        while (target := self._pick(pools, pruned)) is not None:
            pool = pools[target.name]
            if target is self.node:
                if self._take(pool.pop(0), "InClusterQueue"):
                    return True
            elif entitled:
                if self._take(pool.pop(0), "InCohortReclamation"):
                    return True
            elif self._by_share(target, pool, retry):
                return True
        return False

    def _by_share(self, target: Node, pool: list[Work], retry: dict[str, list[Work]]) -> bool:
        mine, theirs = self._rivals(target)
        new, old = self.book.share(mine), self.book.share(theirs)
        if new[0] and not old[0]:
            retry.setdefault(target.name, []).extend(pool)
            pool.clear()
            return False
        while pool:
            work = pool.pop(0)
            if self._holds(self.strategies[0], new, old, theirs, work):
                return self._take(work, "InCohortFairSharing")
            retry.setdefault(target.name, []).append(work)
        return False

    def _second(self, retry: dict[str, list[Work]]) -> bool:
        pruned: set[str] = set()
        while (target := self._pick(retry, pruned)) is not None:
            mine, theirs = self._rivals(target)
            work = retry[target.name].pop(0)
            new, old = self.book.share(mine), self.book.share(theirs)
            if self._holds(self.strategies[1], new, old, theirs, work) and self._take(
                work, "InCohortFairSharing"
            ):
                return True
            pruned.add(target.name)
        return False

    def _holds(
        self,
        strategy: str,
        new: tuple[bool, float],
        old: tuple[bool, float],
        theirs: Node,
        work: Work,
    ) -> bool:
        if strategy == "LessThanInitialShare":
            return new < old
        self.book.works.remove(work)
        final = self.book.share(theirs)
        self.book.works.append(work)
        return new <= final

    def _rivals(self, target: Node) -> tuple[Node, Node]:
        mine, theirs = list(up(self.node)), list(up(target))
        common = next(n for n in mine if any(n is t for t in theirs))
        return (
            mine[next(i for i, n in enumerate(mine) if n is common) - 1],
            theirs[next(i for i, n in enumerate(theirs) if n is common) - 1],
        )

    def _pick(self, pools: dict[str, list[Work]], pruned: set[str]) -> Node | None:
        if self.root is self.node:
            return self.node if pools.get(self.node.name) else None
        while self.root.name not in pruned:
            found = self._descend(self.root, pools, pruned)
            if found is not None:
                return found
        return None

    def _descend(self, cohort: Node, pools: dict[str, list[Work]], pruned: set[str]) -> Node | None:
        best: Node | None = None
        best_share = (False, -math.inf)
        for child in (c for c in cohort.children if c.queue and c.name not in pruned):
            if not pools.get(child.name) or (
                child is not self.node and not self.book.borrows_anything(child)
            ):
                pruned.add(child.name)
                continue
            share = self.book.share(child)
            earlier = best is not None and order(self.ask, pools[child.name][0]) < order(
                self.ask, pools[best.name][0]
            )
            if share > best_share or (share == best_share and earlier):
                best, best_share = child, share
        best_cohort: Node | None = None
        cohort_share = (False, -math.inf)
        above = {n.name for n in up(self.node)}
        for child in (c for c in cohort.children if not c.queue and c.name not in pruned):
            if child.name not in above and not self.book.borrows_anything(child):
                pruned.add(child.name)
                continue
            share = self.book.share(child)
            if share >= cohort_share:
                best_cohort, cohort_share = child, share
        if best_cohort is not None and (best is None or cohort_share >= best_share):
            return self._descend(best_cohort, pools, pruned)
        if best is None:
            pruned.add(cohort.name)
        return best
