"""Each queue's share of what it takes from others, and whose turn that makes it.

The share of a node is the largest part, over resources, of what its parent could lend that the node borrows, in thousandths,
divided by its weight (dominant resource fairness on the borrowed part only). A node without a parent borrows from nobody.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from makeway.engine.quota import QuotaNode


class Share(NamedTuple):
    """Compares as a tuple: a borrower of weight 0 is above everybody, two of them compare by what they borrow."""

    endless: bool
    value: float

    def rounded(self) -> int:
        """As `status.fairSharing.weightedShare` shows it."""
        return 2**63 - 1 if self.endless else math.ceil(self.value)


NONE = Share(False, 0.0)


def share(node: QuotaNode) -> Share:
    ratio = _borrowed_ratio(node)
    if ratio == 0.0:
        return NONE
    if node.weight == 0:
        return Share(True, ratio)
    return Share(False, ratio / node.weight)


def _borrowed_ratio(node: QuotaNode) -> float:
    if node.parent is None:
        return 0.0
    borrowed: dict[str, int] = {}
    for fr, used in node.usage.items():
        over = used - node.subtree.get(fr, 0)
        if over > 0:
            borrowed[fr[1]] = borrowed.get(fr[1], 0) + over
    if not borrowed:
        return 0.0
    lendable = node.parent.lendable()
    return max(
        (
            float(amount) * 1000.0 / float(lendable[resource])
            for resource, amount in borrowed.items()
            if lendable.get(resource, 0) > 0
        ),
        default=0.0,
    )


def is_borrowing(node: QuotaNode) -> bool:
    """Anything at all above its own quota."""
    return node.parent is not None and any(
        used > node.subtree.get(fr, 0) for fr, used in node.usage.items()
    )


def almost_lowest_common(left: QuotaNode, right: QuotaNode) -> tuple[QuotaNode, QuotaNode]:
    """The ancestors (or selves) of both that are children of their lowest common cohort: there shares are compared."""
    above_left = {id(node) for node in left.ancestors()}
    common = next(node for node in right.ancestors() if id(node) in above_left)
    return _child_towards(common, left), _child_towards(common, right)


def _child_towards(cohort: QuotaNode, node: QuotaNode) -> QuotaNode:
    while node.parent is not None and node.parent is not cohort:
        node = node.parent
    return node
