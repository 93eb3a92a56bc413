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


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    victims: VictimPolicy = "least-loss"
    quota_only: bool = False  # decide on quota alone, as Kueue does; nodes are not asked

    fair_sharing: bool = False
    fair_strategies: tuple[Strategy, ...] = DEFAULT_STRATEGIES
    # Who stays within nominal quota needs no share test, and goes before who borrows (Kueue since 0.17).
    fair_preempts_within_nominal: bool = True
    fair_prefers_non_borrowing: bool = True

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

    hold_s: float = 60.0  # how long room that was freed is kept for whom it was freed for

    # Priorities that count as one when victims are priced: (lowest, highest) of each band.
    bands: tuple[tuple[int, int], ...] = ()
