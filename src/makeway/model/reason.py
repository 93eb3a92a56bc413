"""Why, as data with numbers. `control/explain.py` turns these into sentences, for every surface alike.

`Reason.kind` is a closed list (`KINDS`); the other fields carry the numbers and the user's own names. `kueue` is the condition
reason that Kueue's users know, where the situation has one.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal[
    # waiting
    "fits",
    "no-quota",
    "exceeds-max-quota",
    "no-matching-flavor",
    "no-nodes-fit",
    "topology",
    "waiting-for-victims",
    "overlapping-victims",
    "fits-after-victims",
    "lost-the-round",
    "misconfigured",
    "queue-stopped",
    "gated",
    "backing-off",
    "behind",
    "equal-failed",
    "deactivated",
    "hold",
    "patience",
    "reservation",
    "gang-incomplete",
    "never-preempts",
    "taken-back",
    "checks",
    # evicting
    "preempted",
    "gang-broken",
    "queue-drained",
]


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """So much of a resource is missing, there."""

    resource: str
    missing: int
    requested: int = 0
    free: int = 0
    limit: int = 0  # quota or capacity
    flavor: str = ""
    queue: str = ""
    nodes: int = 0  # nodes that were asked
    level: str = ""  # inside one domain of this node label


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`count` nodes refused for one cause, in kube-scheduler's words."""

    cause: str
    count: int


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who has what is missing, and why it is safe from the one who waits."""

    workload: str
    priority: int = 0
    queue: str = ""
    safe_because: str = ""  # the rule; "" when it may be evicted


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """Others who could have been evicted instead, and why they were not."""

    victims: tuple[str, ...]  # workloads
    loss: float  # GPU-seconds
    because: str


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    kueue: str = ""  # e.g. WaitingForQuota, Misconfigured
    message: str = ""  # the sentence Kueue's or kube-scheduler's users know, where there is one
    shortages: tuple[Shortage, ...] = ()
    verdicts: tuple[NodeVerdict, ...] = ()
    nodes_total: int = 0
    even_after: tuple[NodeVerdict, ...] = ()  # why evicting does not help either, node by node
    not_eligible: str = ""  # why it may not evict at all, in kube-scheduler's words
    holders: tuple[Holder, ...] = ()
    cheapest: str = ""  # the cheapest change that would let it run
    goes_first: str = ""  # why another one has its turn before it, where usage decides that
    preemptor: str = ""
    rule: str = ""
    loss: float = 0.0
    alternatives: tuple[Alternative, ...] = ()
    until: float | None = None
