"""Which flavor each pod set gets, and why not the others.

Pod sets are served in order; resources of one group get one flavor together. Flavors are tried in the queue's order of
preference, and each attempt ends in a mode (from "fits" down to "does not") and a height to borrow from. The queue's
fungibility says when to stop and which of two imperfect flavors is the better one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

from makeway.engine.demand import Demand, demands
from makeway.engine.policy import Policy
from makeway.engine.quota import FlavorResource, QuotaNode, borrowing_height
from makeway.model.queue import Flavor, FlavorName, Fungibility, Queue, ResourceGroup
from makeway.model.reason import Kind, Shortage
from makeway.model.resources import PODS, add, format_amount
from makeway.model.selectors import NodeTerm, Requirement, untolerated
from makeway.model.workload import Assignment, PodShape, Workload


class Mode(IntEnum):
    """What is to be done with a workload; of several the smallest counts."""

    NO_FIT = 0
    PREEMPT = 1
    DEFERRED_FIT = 2  # fits once victims that others asked for are gone
    FIT = 3


class Possibility(IntEnum):
    """What one flavor offers, finer than a Mode. The order is the order of preference."""

    NO_FIT = 0
    NO_CANDIDATES = 1  # preemption would be allowed, but there is nobody to take from
    PREEMPT = 2  # somebody of one's own queue would have to go
    RECLAIM = 3  # only lent quota would be taken back
    FIT = 4

    @property
    def mode(self) -> Mode:
        if self is Possibility.FIT:
            return Mode.FIT
        return Mode.NO_FIT if self is Possibility.NO_FIT else Mode.PREEMPT


class NoFitReason(IntEnum):
    """Why a flavor cannot be had, mildest first."""

    NONE = 0
    TOPOLOGY = 1
    WAITING_FOR_QUOTA = 2
    EXCEEDS_MAX_QUOTA = 3
    NO_MATCHING_FLAVOR = 4

    @property
    def kueue(self) -> str:
        return _KUEUE_NAMES[self]

    @property
    def kind(self) -> Kind:
        return _KINDS[self]


_KUEUE_NAMES = {
    NoFitReason.NONE: "",
    NoFitReason.TOPOLOGY: "TopologyPlacementFailed",
    NoFitReason.WAITING_FOR_QUOTA: "WaitingForQuota",
    NoFitReason.EXCEEDS_MAX_QUOTA: "ExceedsMaxQuota",
    NoFitReason.NO_MATCHING_FLAVOR: "NoMatchingFlavor",
}
_KINDS: dict[NoFitReason, Kind] = {
    NoFitReason.NONE: "no-quota",
    NoFitReason.TOPOLOGY: "topology",
    NoFitReason.WAITING_FOR_QUOTA: "no-quota",
    NoFitReason.EXCEEDS_MAX_QUOTA: "exceeds-max-quota",
    NoFitReason.NO_MATCHING_FLAVOR: "no-matching-flavor",
}


class Offer(NamedTuple):
    """What a flavor offers for one resource, or at worst over several."""

    possibility: Possibility
    borrow: int


class Choice(msgspec.Struct, frozen=True):
    """One resource of one pod set: its flavor, and where to go on looking next time (-1: from the start)."""

    flavor: FlavorName
    possibility: Possibility
    borrow: int
    tried_index: int = -1

    @property
    def mode(self) -> Mode:
        return self.possibility.mode


class FlavorAttempt(msgspec.Struct, frozen=True):
    """A flavor that was considered, for events and explanations."""

    flavor: FlavorName
    offer: Offer
    reasons: tuple[str, ...]
    no_fit: NoFitReason

    @property
    def mode(self) -> Mode:
        return self.offer.possibility.mode


class PodSetProposal(msgspec.Struct, frozen=True):
    name: str
    count: int
    requests: Mapping[str, int]
    choices: Mapping[str, Choice]  # by resource
    reasons: tuple[str, ...]
    attempts: tuple[FlavorAttempt, ...]
    no_fit: NoFitReason
    shortages: tuple[Shortage, ...] = ()
    error: str = ""  # flavors were found, but they cannot go together

    @property
    def mode(self) -> Mode:
        if self.error:
            return Mode.NO_FIT
        if not self.reasons:
            return Mode.FIT
        if not self.choices:
            return Mode.NO_FIT
        return min(choice.mode for choice in self.choices.values())

    @property
    def message(self) -> str:
        if self.error:
            return f"failed to assign flavors to pod set {self.name}: {self.error}"
        return f"couldn't assign flavors to pod set {self.name}: {', '.join(sorted(self.reasons))}"


class Proposal(msgspec.Struct, frozen=True):
    """Flavors for a whole workload: what it would use, and how it would get it."""

    pod_sets: tuple[PodSetProposal, ...]
    usage: Mapping[FlavorResource, int]
    borrowing: int
    mode: Mode
    no_fit: NoFitReason

    @property
    def need(self) -> frozenset[FlavorResource]:
        """What is short: only this drives preemption."""
        return frozenset(
            (choice.flavor, resource)
            for pod_set in self.pod_sets
            for resource, choice in pod_set.choices.items()
            if choice.mode == Mode.PREEMPT
        )

    @property
    def message(self) -> str:
        return "; ".join(p.message for p in self.pod_sets if p.error or p.reasons)

    @property
    def shortages(self) -> tuple[Shortage, ...]:
        return tuple(shortage for pod_set in self.pod_sets for shortage in pod_set.shortages)

    def assignments(self) -> tuple[Assignment, ...]:
        return tuple(
            Assignment(
                pod_set=p.name,
                flavors=tuple(sorted((r, choice.flavor) for r, choice in p.choices.items())),
                usage=tuple(sorted((r, a) for r, a in p.requests.items() if r in p.choices)),
                count=p.count,
            )
            for p in self.pod_sets
        )

    def tried(self) -> Tried:
        return tuple({r: c.tried_index for r, c in p.choices.items()} for p in self.pod_sets)


Tried = tuple[Mapping[str, int], ...]  # per pod set, per resource: the last flavor looked at
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
        for unit in _units([self._with_pods(d) for d in demands(workload, counts)]):
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
        requests = _sum(demand.requests for _, demand in unit)
        first = unit[0][0]
        last_tried = tried[first] if first < len(tried) else {}
        shapes = [demand.pod_set.shape for _, demand in unit]
        choices: dict[str, Choice] = {}
        reasons: list[str] = []
        attempts: list[FlavorAttempt] = []
        shortages: list[Shortage] = []
        severity = NoFitReason.NONE
        for resource in sorted(requests):
            if resource in choices:
                continue
            group = _group_of(self.queue, resource)
            if group is None:
                if requests[resource] == 0 or self.policy.ignore_undeclared:
                    continue
                choices, reasons = {}, [f"resource {resource} unavailable in ClusterQueue"]
                severity = NoFitReason.NO_MATCHING_FLAVOR
                break
            start = last_tried.get(resource, -1) + 1
            scan = _Scan(self, group, requests, shapes, assumed, start)
            scan.run()
            attempts += scan.attempts
            if not scan.choices:
                choices, reasons, shortages = {}, scan.reasons, scan.shortages
                severity = max(severity, scan.mildest_no_fit())
                break
            choices |= scan.choices
            if scan.best.possibility is not Possibility.FIT:
                reasons += scan.reasons
                shortages += scan.shortages
        return {
            index: PodSetProposal(
                name=demand.pod_set.name,
                count=demand.count,
                requests=demand.requests,
                choices={r: c for r, c in choices.items() if r in demand.requests},
                reasons=tuple(reasons),
                attempts=tuple(attempts),
                no_fit=severity,
                shortages=tuple(shortages),
                error=self._clash(demand, choices),
            )
            for index, demand in unit
        }

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
            stop = not _tries_next(offer, self.fungibility)
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


def _tries_next(offer: Offer, fungibility: Fungibility) -> bool:
    """Is it worth looking at the next flavor?"""
    if offer.possibility in (Possibility.NO_FIT, Possibility.NO_CANDIDATES):
        return True
    needs_victims = offer.possibility in (Possibility.PREEMPT, Possibility.RECLAIM)
    if needs_victims and fungibility.when_can_preempt == "TryNextFlavor":
        return True
    return offer.borrow > 0 and fungibility.when_can_borrow == "TryNextFlavor"


def is_preferred(left: Offer, right: Offer, fungibility: Fungibility) -> bool:
    """Strictly better, so that of equal flavors the first one stays."""
    return _preference(left, fungibility) > _preference(right, fungibility)


def _preference(offer: Offer, fungibility: Fungibility) -> tuple[int, int, int]:
    if offer.possibility is Possibility.NO_FIT:
        return (0, 0, 0)
    rank = 1 if offer.possibility is Possibility.NO_CANDIDATES else 2
    if fungibility.preference == "PreemptionOverBorrowing":
        return (rank, -offer.borrow, offer.possibility)
    return (rank, offer.possibility, -offer.borrow)


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
