"""How a generated cluster lives, and how many of them each promise is tried on. `make properties N=100000` runs many."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hypothesis import HealthCheck, Phase, settings

from makeway.engine.policy import Policy
from makeway.model.decision import Plan
from makeway.testing import Harness
from tests.properties.worlds import World, build, submit

PROPERTIES = 14  # that share the clusters asked for
EXAMPLES = max(1, int(os.environ.get("N", "2000")) // PROPERTIES)
# Shrinking a failure takes minutes: SHRINK=1 asks for it.
PHASES = tuple(Phase) if "SHRINK" in os.environ else (Phase.explicit, Phase.reuse, Phase.generate)
many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="N" not in os.environ,
    phases=PHASES,
)

CYCLES_EACH = 2


def days_of(h: Harness, world: World) -> Iterator[Plan]:
    """Submit one after the other; time passes, checks answer and victims leave in between. Yields after every cycle."""
    for item in world.submissions:
        submit(h, item)
        for _ in range(CYCLES_EACH):
            yield h.cycle()
            h.advance(7.0)
            h.answer_checks()
            h.let_them_leave()


def live_through(world: World, policy: Policy) -> tuple[Harness, list[Plan]]:
    h = build(world, policy)
    return h, list(days_of(h, world))
