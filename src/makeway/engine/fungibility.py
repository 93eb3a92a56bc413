"""Which of two flavors is the better one, and when to stop looking: the queue's `flavorFungibility`."""

from __future__ import annotations

from makeway.engine.proposal import Offer, Possibility
from makeway.model.queue import Fungibility


def tries_next(offer: Offer, fungibility: Fungibility) -> bool:
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
