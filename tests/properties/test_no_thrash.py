"""Promise 5: nothing changed, nothing is asked for; and a victim cannot displace its displacer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from makeway.engine.policy import Policy
from makeway.testing import Harness
from tests.properties.life import live_through, many
from tests.properties.worlds import BY_LOSS, POLICIES, World, build, submit, worlds


@many
@given(worlds(), st.sampled_from(POLICIES))
def test_deciding_again_with_nothing_changed_asks_for_nothing(world: World, policy: Policy) -> None:
    h = build(world, policy)
    for item in world.submissions:
        submit(h, item)
        h.answer_checks()
        h.let_them_leave()
        h.advance(50.0)
        quiet = [h.cycle() for _ in range(6)][-1]  # nobody leaves and no time passes
        assert quiet.admits == ()
        assert [e for e in quiet.evicts if not e.already] == []
        assert quiet.ended_holds == ()


@many
@given(worlds(), st.sampled_from([*BY_LOSS, Policy(victims="kube")]))
def test_with_nobody_new_evictions_come_to_an_end(world: World, policy: Policy) -> None:
    h, _ = live_through(world, policy)
    most = 2 * len(world.submissions)
    fallen = _evictions_until_quiet(h)
    assert fallen <= most, f"{fallen} evictions, and nobody came: {h.evictions[-12:]}"


def _evictions_until_quiet(h: Harness) -> int:
    """Two hours: longer than any hold, and than the first peace that repeated losses give."""
    before = len(h.evictions)
    for _ in range(40):
        h.cycle()
        h.answer_checks()
        # Who makes way is gone before the hold ends, and somebody looks then; else nothing happens for a while.
        h.advance(31.0 if h.state.holds else 330.0)
        h.let_them_leave()
    return len(h.evictions) - before


@many
@given(worlds(), st.sampled_from([Policy(), Policy(victims="kube")]))
def test_nobody_displaces_who_displaced_it_by_priority(world: World, policy: Policy) -> None:
    _, plans = live_through(world, policy)
    by_priority = {
        (evict.workload, evict.preemptor)
        for plan in plans
        for evict in plan.evicts
        if evict.reason.rule in ("priority", "InClusterQueue")
    }
    assert [pair for pair in by_priority if (pair[1], pair[0]) in by_priority] == []
