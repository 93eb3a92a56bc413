"""Promises 1 and 6: a gang is whole or absent, and no limit is ever exceeded. And the ledger that both rest on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from makeway.engine import gang
from makeway.engine.policy import Policy
from makeway.engine.state import State
from makeway.model.queue import QueueName
from makeway.model.workload import Workload
from makeway.testing import GPU, Harness
from tests.properties.life import days_of, live_through, many
from tests.properties.worlds import BY_LOSS, POLICIES, World, build, worlds

GPUS = ("default", GPU)


@many
@given(worlds(), st.sampled_from(POLICIES))
def test_a_gang_is_whole_or_absent_and_no_node_is_overdrawn(world: World, policy: Policy) -> None:
    h, _ = live_through(world, policy)  # the Harness checks the invariants of every cycle
    for _ in range(4):
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
    members = h.state.occupancy.members(workload.id)
    bound = [p for p in members if p.node is not None and p.gone_by is None]
    minimum = sum(count for _, count in gang.minimums(workload))
    assert not bound or len(bound) >= minimum, f"{workload.id}: {len(bound)} of {minimum}"


# Kueue itself admits too much for a moment, while victims leave: its policy does as it does.
@many
@given(worlds(), st.sampled_from([*BY_LOSS, Policy(victims="kube")]))
def test_no_queue_borrows_more_than_it_may_and_no_cohort_more_than_it_has(
    world: World, policy: Policy
) -> None:
    h = build(world, policy)
    for _ in days_of(h, world):
        used = {q.name: _held_gpus(h.state, q.name) for q in world.queues}
        trees: dict[str, list[tuple[int, int]]] = {}
        for queue in world.queues:
            limit = queue.borrowing_limit if queue.cohort else 0
            if limit is not None:
                assert used[queue.name] <= queue.gpus + limit, f"{queue.name}: {used}"
            # Both cohorts are of one tree, where there is any.
            tree = "all" if queue.cohort else queue.name
            trees.setdefault(tree, []).append((used[queue.name], queue.gpus))
        for tree, members in trees.items():
            assert sum(u for u, _ in members) <= sum(n for _, n in members), f"{tree}: {used}"


def _held_gpus(state: State, queue: str) -> int:
    """Counted from the workloads themselves, not from the ledger."""
    total = 0
    for workload in state.workloads.values():
        if workload.admission is not None and workload.admission.queue == QueueName(queue):
            usage = [a for part in workload.admission.assignments for a in part.usage]
            total += sum(amount for resource, amount in usage if resource == GPU)
    return total


@many
@given(worlds(), st.sampled_from(POLICIES), st.randoms(use_true_random=False))
def test_after_any_events_the_ledger_is_one_built_from_scratch(
    world: World, policy: Policy, random: object
) -> None:
    h, _ = live_through(world, policy)
    fresh = h.rebuilt(shuffle=random.shuffle)  # type: ignore[attr-defined]
    for queue in h.state.queues:
        kept, new = h.state.ledger.queue(queue), fresh.ledger.queue(queue)
        assert kept.usage == new.usage
        assert [node.usage for node in kept.ancestors()] == [n.usage for n in new.ancestors()]
        assert h.state.ledger.held_in(queue).keys() == fresh.ledger.held_in(queue).keys()
    assert _rooms(h.state) == _rooms(fresh)
    assert h.state.occupancy.waiting.keys() == fresh.occupancy.waiting.keys()
    assert h.state.occupancy.leaving.keys() == fresh.occupancy.leaving.keys()
    assert h.state.unchecked.keys() == fresh.unchecked.keys()
    assert _used(h.state, policy, h.now) == _used(fresh, policy, h.now)


def _used(state: State, policy: Policy, now: float) -> dict[str, float]:
    """To the last bit, where usage counts: who is first must not depend on the order that events came in."""
    state.usage.look(policy.usage_order, now)
    return {door: state.usage.of(door) for door in state.local_queues}


def _rooms(state: State) -> dict[str, dict[str, int]]:
    table = state.occupancy.table
    return {
        name: {resource: int(table.free[row, column]) for resource, column in table.columns.items()}
        for name, row in table.row_of.items()
    }
