"""What all of Kueue's searches share: does the request fit now, and which of the victims were not needed after all."""

from __future__ import annotations

from typing import NamedTuple

from makeway.engine.ledger import Held, Ledger
from makeway.engine.victims.candidates import Request, Rule


class Victim(NamedTuple):
    held: Held
    rule: Rule


def fits(ledger: Ledger, request: Request, *, borrow: bool) -> bool:
    """All that is asked for, not only what was short."""
    queue = ledger.queue(request.queue)
    if not borrow and not queue.fits_in_nominal(request.usage):
        return False
    return queue.fits(request.usage) and (request.places is None or request.places())


def spare_unneeded(
    ledger: Ledger, request: Request, victims: list[Victim], *, borrow: bool
) -> list[Victim]:
    """Let victims back in, the most expensive of them first, as long as the request still fits.

    The last one taken made it fit and is not asked. A spared victim's slot is filled with the last of the list; that is
    Kueue's order, and what its users see.
    """
    kept = list(victims)
    for index in range(len(kept) - 2, -1, -1):
        ledger.reserve(kept[index].held)
        if fits(ledger, request, borrow=borrow):
            kept[index] = kept[-1]
            kept.pop()
        else:
            ledger.release(kept[index].held.id)
    return kept
