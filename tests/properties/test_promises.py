"""The promises that concern decisions, on generated clusters. `make properties N=100000` runs many."""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from makeway.engine import gang
from makeway.engine.cycle import decide
from makeway.engine.placement import Shortfall
from makeway.engine.policy import Policy
from makeway.engine.state import State
from makeway.model.decision import Evict, Plan
from makeway.model.workload import Pod, Workload
from makeway.testing import Harness
from tests.properties.worlds import POLICIES, World, build, submit, worlds

EXAMPLES = int(os.environ.get("N", "2000")) // 6
# Shrinking a failure takes minutes: SHRINK=1 asks for it.
PHASES = tuple(Phase) if "SHRINK" in os.environ else (Phase.explicit, Phase.generate)
many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="N" not in os.environ,
    phases=PHASES,
)


def live_through(world: World, policy: Policy) -> tuple[Harness, list[Plan]]:
    """Submit one after the other, with time passing and victims leaving in between."""
    h = build(world, policy)
    plans: list[Plan] = []
    for item in world.submissions:
        submit(h, item)
        for _ in range(3):
            plans.append(h.cycle())
            h.advance(7.0)
            h.let_them_leave()
    return h, plans


@many
@given(worlds(), st.sampled_from(POLICIES))
def test_a_gang_is_whole_or_absent_and_no_node_is_overdrawn(world: World, policy: Policy) -> None:
    h, _ = live_through(world, policy)  # the Harness checks the invariants of every cycle
    for _ in range(8):
        h.advance(60.0)
        h.cycle()
        h.let_them_leave()
    table = h.state.occupancy.table
    room = table.free.copy()
    for pod in h.state.occupancy.leaving.values():  # promised to others already, and still there
        assert pod.node is not None
        room[table.row_of[pod.node]] += table.need(pod.shape)
    assert bool((room[table.live] >= 0).all())
    for workload in h.state.workloads.values():
        _whole_or_absent(h, workload)


def _whole_or_absent(h: Harness, workload: Workload) -> None:
    if workload.gang is None:
        return
    bound = [
        p
        for p in h.state.occupancy.members(workload.id)
        if p.node is not None and p.gone_by is None
    ]
    minimum = sum(count for _, count in gang.minimums(workload))
    assert not bound or len(bound) >= minimum, f"{workload.id}: {len(bound)} of {minimum}"


@many
@given(worlds(), st.sampled_from(POLICIES))
def test_deciding_again_with_nothing_changed_asks_for_nothing(world: World, policy: Policy) -> None:
    h = build(world, policy)
    for item in world.submissions:
        submit(h, item)
        h.let_them_leave()
        h.advance(50.0)
        quiet = [h.cycle() for _ in range(6)][-1]  # nobody leaves and no time passes
        assert quiet.admits == ()
        assert [e for e in quiet.evicts if not e.already] == []
        assert quiet.ended_holds == ()


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


@many
@given(worlds(), st.sampled_from([Policy(), Policy(bands=((0, 4), (5, 9)))]))
def test_victims_are_legal_and_everyone_waiting_has_a_reason(world: World, policy: Policy) -> None:
    h, plans = live_through(world, policy)
    for plan in plans:
        for evict in plan.evicts:
            victim, preemptor = h.submitted(evict.workload), h.submitted(evict.preemptor)
            assert preemptor.preempts
            if evict.reason.rule == "priority":
                assert victim.rank < preemptor.rank
            elif evict.reason.rule == "InClusterQueue":
                assert victim.local_queue == preemptor.local_queue
                assert victim.priority < preemptor.priority
            else:
                assert victim.local_queue != preemptor.local_queue
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


@many
@given(
    worlds(), st.sampled_from([Policy(), Policy(bands=((0, 4), (5, 9))), Policy(victims="kube")])
)
def test_leave_any_victim_out_and_it_no_longer_fits(world: World, policy: Policy) -> None:
    h = build(world, policy)
    for item in world.submissions:
        submit(h, item)
        before = h.rebuilt()
        plan = h.cycle()
        taken = [hold for hold in plan.holds if hold.victims]
        # One at a time, and no room kept for others: then what is needed is plain to see.
        if len(taken) == 1 and not before.holds and not plan.admits:
            preemptor = before.workloads[taken[0].workload]
            if preemptor.local_queue is None:
                _everyone_is_needed(before, preemptor, [e for e in plan.evicts if not e.already])
        h.advance(40.0)
        h.let_them_leave()


def _everyone_is_needed(state: State, preemptor: Workload, evicts: list[Evict]) -> None:
    occupancy = state.occupancy
    ask = gang.ask(preemptor, occupancy.members(preemptor.id))
    pods = ask.core or ask.surplus[:1]
    demands = gang.demands_of(preemptor, pods)
    for spared in [None, *evicts]:
        with occupancy.table.what_if():
            for pod in occupancy.leaving.values():
                _lift(state, pod)
            for evict in evicts:
                for pod in occupancy.members(evict.workload):
                    if evict is not spared and (not evict.pods or pod.id in evict.pods):
                        _lift(state, pod)
                if evict is not spared and not evict.pods:
                    for node, kept in occupancy.promised.get(evict.workload, ()):
                        occupancy.table.take(occupancy.table.row_of[node], -kept)
            room = occupancy.placer.place(demands)
        fits = not isinstance(room, Shortfall)
        assert fits == (spared is None), f"{preemptor.id}: {spared}"


def _lift(state: State, pod: Pod) -> None:
    if pod.node is not None:
        state.occupancy.table.lift(pod, state.occupancy.table.row_of[pod.node])
