"""Promise 5: nothing changed, nothing is asked for; and a victim cannot displace its displacer."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from makeway.engine.policy import Policy
from makeway.model.decision import Plan
from makeway.testing import Harness
from tests.properties.life import live_through, many
from tests.properties.worlds import BY_LOSS, POLICIES, World, build, circles, submit, worlds


@many
@given(worlds(), st.sampled_from(POLICIES))
def test_deciding_again_with_nothing_changed_asks_for_nothing(world: World, policy: Policy) -> None:
    h = build(world, policy)
    for item in world.submissions:
        submit(h, item)
        h.answer_checks()
        h.let_them_leave()
        h.advance(50.0)
        # Nobody leaves and no time passes: what is left to do is done in a few cycles, and then nothing any more.
        steps = 0
        while not _asks_for_nothing(h.cycle()):
            steps += 1
            assert steps < 8, f"still busy: {h.last}"
        assert _asks_for_nothing(h.cycle())


def _asks_for_nothing(plan: Plan) -> bool:
    told = [evict for evict in plan.evicts if not evict.already]
    # To keep room is to ask for it too: a hold that takes another's is told to that one in the next cycle.
    return not (plan.admits or told or plan.holds or plan.ended_holds)


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
    quiet = 0
    for _ in range(40):
        plan = h.cycle()
        h.answer_checks()
        quiet = 0 if plan.evicts or plan.admits or h.state.holds else quiet + 1
        if quiet > 4:
            break
        # Who makes way is gone before the hold ends, and somebody looks then; else nothing happens for a while.
        h.advance(31.0 if h.state.holds else 330.0)
        h.let_them_leave()
    return len(h.evictions) - before


@many
@given(st.one_of(circles(), worlds()), st.sampled_from([*BY_LOSS, Policy(victims="kube")]))
def test_nobody_displaces_who_displaced_it_by_whatever_way(world: World, policy: Policy) -> None:
    h, plans = live_through(world, policy)
    for _ in range(4):
        plans.append(h.cycle())
        h.advance(7.0)
        h.let_them_leave()
    fell_for: dict[str, set[str]] = defaultdict(set)
    for plan in plans:
        new = [evict for evict in plan.evicts if not evict.already]
        for evict in new:
            above = _all_above(evict.preemptor, fell_for)
            assert evict.workload not in above, f"{evict.preemptor} displaces {evict.workload}"
        for evict in new:
            fell_for[evict.workload].add(evict.preemptor)


def _all_above(workload: str, fell_for: dict[str, set[str]]) -> set[str]:
    """Who displaced it, who displaced those, and so on."""
    found: set[str] = set()
    asked = [workload]
    while asked:
        fresh = fell_for[asked.pop()] - found
        found |= fresh
        asked += fresh
    return found - {workload}
