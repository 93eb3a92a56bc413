"""What an administrator chose, once. A cycle gets it as an argument; nothing here is global.

Every switch is a real choice of Kueue's configuration or of ours; the defaults are Kueue's where Kueue has the choice.
"""

from __future__ import annotations

from typing import Literal

import msgspec

VictimPolicy = Literal["least-loss", "kueue", "kube"]
Strategy = Literal["LessThanOrEqualToFinalShare", "LessThanInitialShare"]
DEFAULT_STRATEGIES: tuple[Strategy, ...] = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")


class Transformation(msgspec.Struct, frozen=True, kw_only=True):
    """Quota counts a resource as others: each unit of `input` (times the amount of another) as so much of the outputs."""

    input: str
    outputs: tuple[tuple[str, int], ...]  # amounts per unit
    replaces: bool = False  # False: the input is counted as well
    multiply_by: str | None = None


class UsageOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Admission fair sharing: inside a queue that asks for it, the local queue that used least goes first."""

    half_life_s: float  # after so long, half of what was used is forgotten; 0: all of it at once
    sampling_s: float = 300.0
    weights: tuple[tuple[str, float], ...] = ()  # of resources; who is not named counts 1


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    victims: VictimPolicy = "least-loss"
    quota_only: bool = False  # decide on quota alone, as Kueue does; nodes are not asked

    fair_sharing: bool = False
    fair_strategies: tuple[Strategy, ...] = DEFAULT_STRATEGIES
    # Who stays within nominal quota needs no share test, and goes before who borrows (Kueue since 0.17).
    fair_preempts_within_nominal: bool = True
    fair_prefers_non_borrowing: bool = True

    usage_order: UsageOrder | None = None  # None: local queues are not told apart

    # Which time a workload that was evicted for slow pods queues by.
    requeuing_timestamp: Literal["Eviction", "Creation"] = "Eviction"
    priority_within_cohort: bool = True  # priority orders the heads of different queues
    preemptors_first: bool = False  # who waits for its own victims goes first
    partial_admission: bool = True
    # Look again, without the victims already chosen, when two heads want the same victims.
    recompute_overlaps: bool = True
    ignore_undeclared: bool = False  # requests for resources that the queue does not list are free

    # What of a pod's requests counts against quota.
    excluded_prefixes: tuple[str, ...] = ()
    transformations: tuple[Transformation, ...] = ()

    # Priorities that count as one when victims are priced: (lowest, highest) of each band.
    bands: tuple[tuple[int, int], ...] = ()

    evict_foreign: bool = False  # pods of other schedulers may fall too
    budgets_soft: bool = False  # disruption budgets count in the price instead of forbidding
    cores_per_gpu: float = 16.0  # what a GPU is worth in cores, where losses are priced
    spread: bool = False  # use the emptiest nodes first instead of packing
    hold_s: float = 60.0  # freed room is kept so long after the last victim had to be gone
    max_notice_s: float = 600.0
    max_protection_s: float = 1_800.0  # minimum runtimes count up to this
    preemptions_per_day: int | None = None  # a workload that fell so often is left alone
    reserve_after_s: float = 3_600.0  # a head that waits longer keeps nodes as they fall free
    search_budget: int = 4_000  # steps, never seconds: the same state gives the same plan

    @property
    def budgets_are_hard(self) -> bool:
        return self.victims == "least-loss" and not self.budgets_soft

    @property
    def by_loss(self) -> bool:
        """Whether the price of an eviction picks the victims; under fair sharing the shares do."""
        return self.victims == "least-loss" and not self.fair_sharing and not self.quota_only

    def band_of(self, priority: int) -> int:
        """Priorities of one band count as its lowest."""
        for lowest, highest in self.bands:
            if lowest <= priority <= highest:
                return lowest
        return priority
