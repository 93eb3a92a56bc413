"""Promises 8 and 9: always a reason, and the same input gives the same plan."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from makeway.engine.cycle import decide
from makeway.engine.policy import Policy
from tests.properties.life import live_through, many
from tests.properties.worlds import POLICIES, World, worlds


@many
@given(worlds(), st.sampled_from(POLICIES))
def test_everyone_waiting_has_a_reason(world: World, policy: Policy) -> None:
    h, _ = live_through(world, policy)
    h.advance(10_000.0)
    h.let_them_leave()
    h.cycle()
    for name in h.waiting:
        assert h.why(name) or h.is_on_its_way(name), f"{name} waits without a reason"


@many
@given(worlds(), st.sampled_from(POLICIES), st.randoms(use_true_random=False))
def test_the_same_state_gives_the_same_plan_whatever_order_it_came_in(
    world: World, policy: Policy, random: object
) -> None:
    h, _ = live_through(world, policy)
    first = decide(h.rebuilt(), h.now, policy)
    again = decide(h.rebuilt(shuffle=random.shuffle), h.now, policy)  # type: ignore[attr-defined]
    assert Counter(map(repr, first.decisions)) == Counter(map(repr, again.decisions))
