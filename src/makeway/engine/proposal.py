"""What flavor assignment comes to: a flavor for each resource of each pod set, how it would be had, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

import msgspec

from makeway.engine.quota import FlavorResource
from makeway.model.queue import FlavorName
from makeway.model.reason import Kind, Shortage
from makeway.model.workload import Assignment


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
