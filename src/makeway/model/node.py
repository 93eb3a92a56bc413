"""What exists and how near it is: nodes and the levels of their topology."""

from __future__ import annotations

from typing import NewType

import msgspec

from makeway.model.resources import FrozenAmounts
from makeway.model.selectors import Taint

NodeName = NewType("NodeName", str)


class Node(msgspec.Struct, frozen=True, kw_only=True):
    name: NodeName
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    allocatable: FrozenAmounts = ()  # includes "pods"


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """Node labels from the widest level to the narrowest."""

    name: str
    levels: tuple[str, ...]
