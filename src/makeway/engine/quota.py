"""How much a queue may use now: its own quota, what it borrows, what it lends.

Queues and cohorts form a tree. Per (flavor, resource) a node n with parent p has:

    subtree(queue)  = nominal                     subtree(cohort) = nominal + Σ children (subtree - local)
    local(n)        = subtree - lending limit     what the parent never sees; 0 without a limit
    usage(cohort)   = Σ children max(0, usage - local)
    available(root) = subtree - usage
    available(n)    = max(0, local - usage) + available(p), the second part capped by the borrowing limit
    potential(n)    = the same with nobody using anything

So every question is a walk from a queue to its root. Amounts are whole numbers; sums of quota saturate at int64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from makeway.model.queue import Cohort, CohortName, Queue, QueueName, ResourceGroup
from makeway.model.resources import add

FlavorResource = tuple[str, str]  # (flavor, resource): what quota is counted by
Usage = Mapping[FlavorResource, int]


class QuotaNode:
    """A queue or a cohort. Quota is fixed when the tree is built; usage is written through the Ledger alone."""

    __slots__ = (
        "_lendable",
        "_potential",
        "borrowing_limit",
        "cohorts",
        "height",
        "is_queue",
        "local",
        "name",
        "nominal",
        "parent",
        "queues",
        "subtree",
        "usage",
        "weight",
    )

    def __init__(self, name: str, *, is_queue: bool, weight: float = 1.0) -> None:
        self.name = name
        self.is_queue = is_queue
        self.weight = weight
        self.parent: QuotaNode | None = None
        self.cohorts: list[QuotaNode] = []
        self.queues: list[QuotaNode] = []
        self.height = 0
        self.nominal: dict[FlavorResource, int] = {}
        self.borrowing_limit: dict[FlavorResource, int] = {}
        self.subtree: dict[FlavorResource, int] = {}
        self.local: dict[FlavorResource, int] = {}  # subtree quota that the parent never sees
        self.usage: dict[FlavorResource, int] = {}
        self._potential: dict[FlavorResource, int] = {}
        self._lendable: dict[str, int] | None = None

    # -- the walk ------------------------------------------------------------------------------------------------

    def ancestors(self) -> Iterator[QuotaNode]:
        """From the parent to the root."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def root(self) -> QuotaNode:
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def path(self) -> str:
        """`/root/team/queue`, as preemption messages write it."""
        names = [node.name for node in self.ancestors()]
        return "/" + "/".join([*reversed(names), self.name])

    def queues_below(self) -> Iterator[QuotaNode]:
        yield from self.queues
        for cohort in self.cohorts:
            yield from cohort.queues_below()

    # -- how much ------------------------------------------------------------------------------------------------

    def used(self, fr: FlavorResource) -> int:
        return self.usage.get(fr, 0)

    def quota(self, fr: FlavorResource) -> int:
        """Of the whole subtree; for a queue that is its nominal quota."""
        return self.subtree.get(fr, 0)

    def local_available(self, fr: FlavorResource) -> int:
        local = self.local.get(fr, 0)
        return max(0, local - self.usage.get(fr, 0)) if local else 0

    def available(self, fr: FlavorResource) -> int:
        """What may still be used here, borrowing included. Negative after quota was cut."""
        usage = self.usage.get(fr, 0)
        subtree = self.subtree.get(fr, 0)
        if self.parent is None:
            return subtree - usage
        local = self.local.get(fr, 0)
        from_parent = self.parent.available(fr)
        limit = self.borrowing_limit.get(fr)
        if limit is not None:
            taken = max(0, usage - local)
            from_parent = min(from_parent, subtree - local - taken + limit)
        return max(0, local - usage) + from_parent

    def free(self, fr: FlavorResource) -> int:
        """`available`, never below zero: what a new workload may take."""
        return max(0, self.available(fr))

    def potential(self, fr: FlavorResource) -> int:
        """What could be used here if nobody used anything. Fixed with the tree, hence remembered."""
        known = self._potential.get(fr)
        if known is None:
            known = self._potential[fr] = self._compute_potential(fr)
        return known

    def _compute_potential(self, fr: FlavorResource) -> int:
        subtree = self.subtree.get(fr, 0)
        if self.parent is None:
            return subtree
        result = add(self.local.get(fr, 0), self.parent.potential(fr))
        limit = self.borrowing_limit.get(fr)
        return result if limit is None else min(result, add(subtree, limit))

    def lendable(self) -> dict[str, int]:
        """Per resource, over all flavors of the tree: what the nodes below could use at most. The measure of shares."""
        if self._lendable is None:
            totals: dict[str, int] = {}
            for fr in self.root().subtree:
                totals[fr[1]] = add(totals.get(fr[1], 0), self.potential(fr))
            self._lendable = totals
        return self._lendable

    # -- questions -----------------------------------------------------------------------------------------------

    def borrows_with(self, fr: FlavorResource, amount: int) -> bool:
        return self.usage.get(fr, 0) + amount > self.subtree.get(fr, 0)

    def is_borrowing(self, frs: Iterable[FlavorResource]) -> bool:
        return any(self.borrows_with(fr, 0) for fr in frs)

    def is_within_nominal(self, frs: Iterable[FlavorResource]) -> bool:
        """For these, the subtree uses no more than it owns: nobody outside may reclaim from it."""
        return not self.is_borrowing(frs)

    def fits(self, usage: Usage) -> bool:
        return all(amount <= self.free(fr) for fr, amount in usage.items())

    def fits_in_nominal(self, usage: Usage) -> bool:
        return not any(self.borrows_with(fr, amount) for fr, amount in usage.items())


def borrowing_height(queue: QuotaNode, fr: FlavorResource, amount: int) -> tuple[int, bool]:
    """How far up `amount` more must be borrowed from, and whether that place has a parent to reclaim from.

    0: from the queue's own quota. Otherwise the height of the lowest cohort whose subtree still holds it.
    """
    if queue.parent is None or not queue.borrows_with(fr, amount):
        return 0, queue.parent is not None
    remaining = amount - queue.local_available(fr)
    for cohort in queue.ancestors():
        if not cohort.borrows_with(fr, remaining):
            return cohort.height, cohort.parent is not None
        remaining -= cohort.local_available(fr)
    return queue.root().height, False


class QuotaTree:
    """All queues and cohorts. Cohorts that are only named exist without quota."""

    def __init__(
        self, queues: Mapping[QueueName, Queue], cohorts: Mapping[CohortName, Cohort]
    ) -> None:
        self.queues: dict[str, QuotaNode] = {}
        self.cohorts: dict[str, QuotaNode] = {}
        self.in_cycle: set[str] = (
            set()
        )  # queues below a cohort cycle: they admit nothing until it is cut
        self._link_cohorts(cohorts)
        self._link_queues(queues)
        for root in self._roots():
            _settle(root)

    def _link_cohorts(self, cohorts: Mapping[CohortName, Cohort]) -> None:
        parents = {name: cohort.parent for name, cohort in cohorts.items()}
        self._cyclic = {name for name in parents if _leads_into_cycle(name, parents)}
        for name in sorted(cohorts):
            cohort = cohorts[name]
            node = self._cohort(name)
            node.weight = cohort.weight
            _read_quotas(node, cohort.resource_groups)
            if cohort.parent is not None and name not in self._cyclic:
                node.parent = self._cohort(cohort.parent)
                node.parent.cohorts.append(node)

    def _link_queues(self, queues: Mapping[QueueName, Queue]) -> None:
        for name in sorted(queues):
            queue = queues[name]
            node = QuotaNode(name, is_queue=True, weight=queue.weight)
            _read_quotas(node, queue.resource_groups)
            self.queues[name] = node
            if queue.cohort is None:
                continue
            if queue.cohort in self._cyclic:
                self.in_cycle.add(name)
                continue
            node.parent = self._cohort(queue.cohort)
            node.parent.queues.append(node)

    def _cohort(self, name: str) -> QuotaNode:
        if name not in self.cohorts:
            self.cohorts[name] = QuotaNode(name, is_queue=False)
        return self.cohorts[name]

    def _roots(self) -> Iterator[QuotaNode]:
        for node in [*self.cohorts.values(), *self.queues.values()]:
            if node.parent is None:
                yield node

    def queue(self, name: str) -> QuotaNode:
        """Also one that no object describes: what is admitted there still has to be counted."""
        if name not in self.queues:
            self.queues[name] = QuotaNode(name, is_queue=True)
        return self.queues[name]

    def count_usage(self) -> None:
        """Roll the queues' usage up the cohorts, after a rebuild."""
        for root in self._roots():
            _roll_up(root)


def _leads_into_cycle(name: CohortName, parents: Mapping[CohortName, CohortName | None]) -> bool:
    seen: set[CohortName] = set()
    current: CohortName | None = name
    while current is not None:
        if current in seen:
            return True
        seen.add(current)
        current = parents.get(current)
    return False


def _read_quotas(node: QuotaNode, groups: tuple[ResourceGroup, ...]) -> None:
    lending: dict[FlavorResource, int] = {}
    for group in groups:
        for flavor in group.flavors:
            for quota in flavor.quotas:
                fr = (flavor.flavor, quota.resource)
                node.nominal[fr] = quota.nominal
                if quota.borrowing_limit is not None:
                    node.borrowing_limit[fr] = quota.borrowing_limit
                if quota.lending_limit is not None:
                    lending[fr] = quota.lending_limit
    node.local = lending  # the limits themselves, until `_settle` knows the subtree


def _settle(node: QuotaNode) -> None:
    """Children first: subtree quotas, hidden parts and heights."""
    node.subtree = dict(node.nominal)
    for child in [*node.cohorts, *node.queues]:
        _settle(child)
        for fr, amount in child.subtree.items():
            lent = amount - child.local.get(fr, 0)
            node.subtree[fr] = add(node.subtree.get(fr, 0), lent)
    lending = node.local
    node.local = {fr: max(0, node.subtree.get(fr, 0) - limit) for fr, limit in lending.items()}
    if node.cohorts:
        node.height = 1 + max(child.height for child in node.cohorts)
    elif node.queues:
        node.height = 1


def _roll_up(node: QuotaNode) -> None:
    if node.is_queue:
        return
    usage: dict[FlavorResource, int] = {}
    for child in [*node.cohorts, *node.queues]:
        _roll_up(child)
        for fr, amount in child.usage.items():
            above = max(0, amount - child.local.get(fr, 0))
            if above:
                usage[fr] = usage.get(fr, 0) + above
    node.usage = usage
