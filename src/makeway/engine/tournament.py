"""In which order the heads of a round are served.

Classically: by how far each has to borrow, then priority, then age. Under fair sharing: a tournament up the cohort tree,
played anew after every winner, because serving one changes the shares of all.
"""

from __future__ import annotations

from collections.abc import Iterator

from makeway.engine.entries import Entry
from makeway.engine.fairness import Share, share
from makeway.engine.ledger import Ledger
from makeway.engine.ordering import entry_key, queue_timestamp
from makeway.engine.policy import Policy
from makeway.engine.quota import QuotaNode


def in_order(entries: list[Entry], ledger: Ledger, policy: Policy) -> Iterator[Entry]:
    """Yields entries one by one; what the caller does to the ledger in between counts for the next."""
    if policy.fair_sharing:
        yield from _Tournament(entries, ledger, policy)
    else:
        yield from sorted(entries, key=lambda entry: classical_key(entry, policy))


def classical_key(entry: Entry, policy: Policy) -> tuple[object, ...]:
    return entry_key(
        entry.workload,
        policy,
        borrowing=entry.proposal.borrowing,
        second_pass=entry.second_pass,
        preemptor=entry.is_preemptor,
    )


class _Standing:
    """An entry at one level of the tree: the share its subtree would have, and whether it would borrow for it."""

    __slots__ = ("borrows", "share")

    def __init__(self, share: Share, borrows: bool) -> None:
        self.share = share
        self.borrows = borrows


class _Tournament:
    def __init__(self, entries: list[Entry], ledger: Ledger, policy: Policy) -> None:
        self.ledger = ledger
        self.policy = policy
        self.left: dict[str, Entry] = {entry.queue: entry for entry in entries}
        # By queue of the entry, then by node on the way up. Kept from winner to winner where nothing changed.
        self.standings: dict[str, dict[int, _Standing]] = {}

    def __iter__(self) -> Iterator[Entry]:
        while self.left:
            queue = self.ledger.queue(min(self.left))
            if queue.parent is None:
                winner = self.left[queue.name]
            else:
                winner = self._winner_below(queue.root())
            del self.left[winner.queue]
            mark = self.ledger.mark()
            yield winner
            self._forget_changed(self.ledger.changed_since(mark))

    def _forget_changed(self, changed: set[int]) -> None:
        """Serving the winner moved the usage of some nodes; who stands below them has to be measured anew."""
        for name in list(self.standings):
            queue = self.ledger.queue(name)
            # The root itself is nobody's rival.
            path = [queue, *queue.ancestors()][:-1]
            if any(id(node.usage) in changed for node in path):
                del self.standings[name]

    def _winner_below(self, root: QuotaNode) -> Entry:
        for queue in root.queues_below():
            entry = self.left.get(queue.name)
            if entry is not None and queue.name not in self.standings:
                self._note_standings(queue, entry)
        winner = self._play(root)
        if winner is None:
            raise RuntimeError("a tournament without entries")
        return winner

    def _note_standings(self, queue: QuotaNode, entry: Entry) -> None:
        standings = self.standings[queue.name] = {}
        with self.ledger.what_if():
            self.ledger.add_usage(queue.name, entry.usage)
            for node in [queue, *queue.ancestors()]:
                borrows = node.is_borrowing(entry.proposal.usage)
                standings[id(node)] = _Standing(share(node), borrows)

    def _play(self, cohort: QuotaNode) -> Entry | None:
        best: Entry | None = None
        best_key: tuple[object, ...] = ()
        for child in [*cohort.cohorts, *cohort.queues]:
            entry = self.left.get(child.name) if child.is_queue else self._play(child)
            if entry is None:
                continue
            key = self._key(child, entry)
            if best is None or key < best_key:
                best, best_key = entry, key
        return best

    def _key(self, node: QuotaNode, entry: Entry) -> tuple[object, ...]:
        """Who stays within its own goes first, then the smaller share; priority and age only after that."""
        standing = self.standings[entry.queue][id(node)]
        return (
            not (self.policy.preemptors_first and entry.is_preemptor),
            self.policy.fair_prefers_non_borrowing and standing.borrows,
            standing.share,
            -entry.workload.priority if self.policy.priority_within_cohort else 0,
            queue_timestamp(entry.workload, self.policy),
            entry.workload.id,
        )
