"""Which flavor each pod set gets, and why not the others.

Pod sets are served in order; resources of one group get one flavor together. Flavors are tried in the queue's order of
preference, and each attempt ends in a mode (from "fits" down to "does not") and a height to borrow from. The queue's
fungibility says when to stop and which of two imperfect flavors is the better one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from makeway.engine.demand import Demand, demands
from makeway.engine.fungibility import is_preferred, tries_next
from makeway.engine.policy import Policy
from makeway.engine.proposal import (
    Choice,
    FlavorAttempt,
    Mode,
    NoFitReason,
    Offer,
    PodSetProposal,
    Possibility,
    Proposal,
    Tried,
)
from makeway.engine.quota import FlavorResource, QuotaNode, borrowing_height
from makeway.model.queue import Flavor, FlavorName, Queue, ResourceGroup
from makeway.model.reason import Shortage
from makeway.model.resources import PODS, add, format_amount
from makeway.model.selectors import NodeTerm, Requirement, untolerated
from makeway.model.workload import PodShape, Workload

# Would preemption make room for so much of this one flavor and resource, and how far up would it borrow then?
Oracle = Callable[[FlavorResource, int], Offer]


class Assigner:
    """Assigns flavors to one workload in one queue. Asks the quota tree, changes nothing."""

    def __init__(
        self,
        *,
        queue: Queue,
        node: QuotaNode,
        flavors: Mapping[FlavorName, Flavor],
        policy: Policy,
        oracle: Oracle,
        only: frozenset[FlavorResource] | None = None,
    ) -> None:
        self.queue = queue
        self.node = node
        self.flavors = flavors
        self.policy = policy
        self.oracle = oracle
        self.only = only  # look at these flavors alone: when victims are chosen anew

    def assign(
        self, workload: Workload, *, counts: tuple[int, ...] | None = None, tried: Tried = ()
    ) -> Proposal:
        assumed: dict[FlavorResource, int] = {}
        done: dict[int, PodSetProposal] = {}
        for unit in _units([self._with_pods(d) for d in demands(workload, counts, self.policy)]):
            found = self._assign_unit(unit, assumed, tried)
            done.update(found)
            for proposal in found.values():
                for resource, choice in proposal.choices.items():
                    fr = (choice.flavor, resource)
                    assumed[fr] = add(assumed.get(fr, 0), proposal.requests[resource])
            if any(p.mode is Mode.NO_FIT for p in found.values()):
                break
        return _summarize([done[index] for index in sorted(done)], assumed)

    def _with_pods(self, demand: Demand) -> Demand:
        """The number of pods is a resource of its own where the queue counts it."""
        if _group_of(self.queue, PODS) is None:
            return demand
        return Demand(demand.pod_set, demand.count, {**demand.requests, PODS: demand.count})

    def _assign_unit(
        self,
        unit: Sequence[tuple[int, Demand]],
        assumed: Mapping[FlavorResource, int],
        tried: Tried,
    ) -> dict[int, PodSetProposal]:
        """Pod sets that must get the same flavors: asked for together, noted one by one."""
        first = unit[0][0]
        last_tried = tried[first] if first < len(tried) else {}
        found = self._find_flavors([demand for _, demand in unit], assumed, last_tried)
        return {
            index: PodSetProposal(
                name=demand.pod_set.name,
                count=demand.count,
                requests=demand.requests,
                choices={r: c for r, c in found.choices.items() if r in demand.requests},
                reasons=tuple(found.reasons),
                attempts=tuple(found.attempts),
                no_fit=found.no_fit,
                shortages=tuple(found.shortages),
                error=self._clash(demand, found.choices),
            )
            for index, demand in unit
        }

    def _find_flavors(
        self,
        unit: Sequence[Demand],
        assumed: Mapping[FlavorResource, int],
        last_tried: Mapping[str, int],
    ) -> _Found:
        """One resource group after the other; the first that cannot be had ends it."""
        requests = _sum(demand.requests for demand in unit)
        shapes = [demand.pod_set.shape for demand in unit]
        found = _Found()
        for resource in sorted(requests):
            if resource in found.choices:
                continue
            group = _group_of(self.queue, resource)
            if group is not None:
                start = last_tried.get(resource, -1) + 1
                scan = _Scan(self, group, requests, shapes, assumed, start)
                scan.run()
                found.take(scan)
            elif requests[resource] and not self.policy.ignore_undeclared:
                found.refuse(f"resource {resource} unavailable in ClusterQueue")
            if found.no_fit:
                break
        return found

    def _clash(self, demand: Demand, choices: Mapping[str, Choice]) -> str:
        """A pod runs on one node, so it cannot be kept together in two topologies."""
        if demand.pod_set.topology is None:
            return ""
        named = {choices[r].flavor for r in demand.requests if r in choices}
        with_topology = sorted(f for f in named if f in self.flavors and self.flavors[f].topology)
        if len(with_topology) < 2:
            return ""
        return f"more than one TAS flavor assigned: {', '.join(with_topology)}"

    def offer(
        self, fr: FlavorResource, assumed: int, request: int
    ) -> tuple[Offer, str, NoFitReason, Shortage | None]:
        """One flavor, one resource: fits, could fit after preemption, or does not."""
        flavor, resource = fr
        wanted = add(assumed, request)
        maximum = self.node.potential(fr)
        if wanted > maximum:
            reason = (
                f"insufficient quota for {resource} in flavor {flavor}, previously considered podsets requests"
                f" ({format_amount(resource, assumed)}) + current podset request"
                f" ({format_amount(resource, request)}) > maximum capacity ({format_amount(resource, maximum)})"
            )
            shortage = self._shortage(fr, wanted, wanted - maximum, maximum, maximum)
            return Offer(Possibility.NO_FIT, 0), reason, NoFitReason.EXCEEDS_MAX_QUOTA, shortage
        height, may_reclaim = borrowing_height(self.node, fr, wanted)
        free = self.node.free(fr)
        if wanted <= free:
            return Offer(Possibility.FIT, height), "", NoFitReason.NONE, None
        missing = wanted - free
        reason = (
            f"insufficient unused quota for {resource} in flavor {flavor},"
            f" {format_amount(resource, missing)} more needed"
        )
        shortage = self._shortage(fr, wanted, missing, free, maximum)
        # Without a claim to the quota there is nothing to preempt for, not even inside one's own queue.
        if wanted <= self.node.quota(fr) or may_reclaim or self._may_borrow_by_force():
            return self.oracle(fr, wanted), reason, NoFitReason.NONE, shortage
        return Offer(Possibility.NO_FIT, height), reason, NoFitReason.WAITING_FOR_QUOTA, shortage

    def _may_borrow_by_force(self) -> bool:
        preemption = self.queue.preemption
        return preemption.borrow != "Never" or (
            self.policy.fair_sharing and preemption.reclaim != "Never"
        )

    def _shortage(
        self, fr: FlavorResource, wanted: int, missing: int, free: int, limit: int
    ) -> Shortage:
        return Shortage(
            resource=fr[1],
            flavor=fr[0],
            queue=self.queue.name,
            missing=missing,
            requested=wanted,
            free=free,
            limit=limit,
        )


class _Found:
    """What the resource groups of a unit came to, together."""

    def __init__(self) -> None:
        self.choices: dict[str, Choice] = {}
        self.reasons: list[str] = []
        self.shortages: list[Shortage] = []
        self.attempts: list[FlavorAttempt] = []
        self.no_fit = NoFitReason.NONE

    def take(self, scan: _Scan) -> None:
        self.attempts += scan.attempts
        if not scan.choices:
            # Without this group the others are of no use: only its reasons count.
            self.choices, self.reasons, self.shortages = {}, scan.reasons, scan.shortages
            self.no_fit = scan.mildest_no_fit()
            return
        self.choices |= scan.choices
        if not scan.fits:
            self.reasons += scan.reasons
            self.shortages += scan.shortages

    def refuse(self, reason: str) -> None:
        self.choices, self.reasons, self.shortages = {}, [reason], []
        self.no_fit = NoFitReason.NO_MATCHING_FLAVOR


class _Scan:
    """One resource group, its flavors in order, for one unit of pod sets."""

    def __init__(
        self,
        assigner: Assigner,
        group: ResourceGroup,
        requests: Mapping[str, int],
        shapes: Sequence[PodShape],
        assumed: Mapping[FlavorResource, int],
        start: int,
    ) -> None:
        self.assigner = assigner
        self.group = group
        self.requests = {r: requests[r] for r in sorted(requests) if r in group.resources}
        self.shapes = shapes
        self.assumed = assumed
        self.start = start
        self.fungibility = assigner.queue.fungibility
        self.best = Offer(Possibility.NO_FIT, 0)
        self.choices: dict[str, Choice] = {}
        self.reasons: list[str] = []
        self.shortages: list[Shortage] = []
        self.attempts: list[FlavorAttempt] = []

    def run(self) -> None:
        flavors = self.group.flavors
        last = self.start
        for index in range(self.start, len(flavors)):
            name = flavors[index].flavor
            if self._left_out(name):
                continue
            last = index
            mismatch = self._mismatch(name)
            if mismatch:
                self._note(
                    name, Offer(Possibility.NO_FIT, 0), [mismatch], NoFitReason.NO_MATCHING_FLAVOR
                )
                continue
            offer, choices = self._try(name)
            stop = not tries_next(offer, self.fungibility)
            if stop or is_preferred(offer, self.best, self.fungibility):
                self.best, self.choices = offer, choices
            if stop:
                break
        if last == len(flavors) - 1:
            last = -1
        self.choices = {
            r: Choice(c.flavor, c.possibility, c.borrow, last) for r, c in self.choices.items()
        }

    def _left_out(self, flavor: FlavorName) -> bool:
        only = self.assigner.only
        return only is not None and not any((flavor, r) in only for r in self.requests)

    def _try(self, flavor: FlavorName) -> tuple[Offer, dict[str, Choice]]:
        worst = Offer(Possibility.FIT, 0)
        choices: dict[str, Choice] = {}
        reasons: list[str] = []
        no_fit = NoFitReason.NONE
        for resource, amount in self.requests.items():
            fr = (flavor, resource)
            offer, reason, why, shortage = self.assigner.offer(fr, self.assumed.get(fr, 0), amount)
            if reason:
                reasons.append(reason)
            if shortage is not None:
                self.shortages.append(shortage)
            if is_preferred(worst, offer, self.fungibility):
                worst = offer
            if worst.possibility is Possibility.NO_FIT:
                no_fit, choices = why, {}
                break
            choices[resource] = Choice(flavor, offer.possibility, offer.borrow)
        self._note(flavor, worst, reasons, no_fit)
        return worst, choices

    def _note(
        self, flavor: FlavorName, offer: Offer, reasons: list[str], no_fit: NoFitReason
    ) -> None:
        self.reasons += reasons
        self.attempts.append(FlavorAttempt(flavor, offer, tuple(reasons), no_fit))

    def _mismatch(self, name: FlavorName) -> str:
        """Why the pods could not run on this flavor's nodes at all."""
        flavor = self.assigner.flavors.get(name)
        if flavor is None:
            return f"flavor {name} not found"
        for shape in self.shapes:
            taint = untolerated(flavor.node_taints, shape.tolerations + flavor.tolerations)
            if taint is not None:
                printed = f"{{{taint.key} {taint.value} {taint.effect} <nil>}}"
                return f"untolerated taint {printed} in flavor {name}"
            if not matches_labels(shape, flavor.node_labels):
                return f"flavor {name} doesn't match node affinity"
        return ""

    @property
    def fits(self) -> bool:
        return all(choice.mode is Mode.FIT for choice in self.choices.values())

    def mildest_no_fit(self) -> NoFitReason:
        """One flavor short of quota is enough to say so, even if others could never match."""
        return min(
            (a.no_fit for a in self.attempts if a.no_fit), default=NoFitReason.NO_MATCHING_FLAVOR
        )


def matches_labels(shape: PodShape, labels: Mapping[str, str]) -> bool:
    """Only what the pod says about this flavor's own labels counts; other labels are the nodes' business."""
    if any(labels[key] != value for key, value in shape.node_selector if key in labels):
        return False
    if shape.required_terms is None:
        return True
    terms = [_restricted(term, labels) for term in shape.required_terms]
    if any(not term for term in terms):
        return True
    return any(all(r.matches(labels) for r in term) for term in terms)


def _restricted(term: NodeTerm, labels: Mapping[str, str]) -> tuple[Requirement, ...]:
    return tuple(r for r in term.labels if r.key in labels)


def _group_of(queue: Queue, resource: str) -> ResourceGroup | None:
    return next((group for group in queue.resource_groups if resource in group.resources), None)


def _units(wanted: Sequence[Demand]) -> list[list[tuple[int, Demand]]]:
    """Pod sets of one group are one unit, at the place of the first of them."""
    units: list[list[tuple[int, Demand]]] = []
    by_group: dict[str, list[tuple[int, Demand]]] = {}
    for index, demand in enumerate(wanted):
        group = demand.pod_set.group
        if group is not None and group in by_group:
            by_group[group].append((index, demand))
            continue
        unit = [(index, demand)]
        units.append(unit)
        if group is not None:
            by_group[group] = unit
    return units


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = add(result.get(name, 0), amount)
    return result


def _summarize(pod_sets: list[PodSetProposal], usage: dict[FlavorResource, int]) -> Proposal:
    borrowing = max((c.borrow for p in pod_sets for c in p.choices.values()), default=0)
    mode = min((p.mode for p in pod_sets), default=Mode.FIT)
    no_fit = max((p.no_fit for p in pod_sets), default=NoFitReason.NONE)
    return Proposal(tuple(pod_sets), usage, borrowing, mode, no_fit)
