"""The victim policies by name. A policy is a function that picks victims for a request, or none."""

from __future__ import annotations

from collections.abc import Callable

from makeway.engine.ledger import Ledger
from makeway.engine.policy import Policy
from makeway.engine.victims import kueue
from makeway.engine.victims.candidates import Request
from makeway.engine.victims.spare import Victim

ChooseVictims = Callable[[Ledger, Request], list[Victim]]


def choice_of(policy: Policy) -> ChooseVictims:
    """Quota alone knows no loss and no nodes: there every policy chooses as Kueue does."""
    return kueue.choose
