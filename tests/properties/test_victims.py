"""Promises 2 and 3: every victim is legal and needed, and who asked for it gets the room.

Both are said here in plain sums over the cluster as it was written down, not with the engine's own rules.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from makeway.engine import gang
from makeway.engine.ledger import Part
from makeway.engine.placement import Demand, Shortfall
from makeway.engine.policy import Policy
from makeway.engine.state import State
from makeway.model.decision import Evict, Hold, Plan
from makeway.model.workload import Admission, Pod, Workload
from makeway.testing import GPU, Harness
from tests.properties.life import days_of, live_through, many
from tests.properties.worlds import (
    BY_LOSS,
    POLICIES,
    SECOND_DOOR,
    QueueOf,
    World,
    build,
    submit,
    worlds,
)

# -- legal -----------------------------------------------------------------------------------------------------------


@many
@given(worlds(), st.sampled_from(POLICIES))
def test_victims_are_legal_on_every_path(world: World, policy: Policy) -> None:
    h = build(world, policy)
    queues = {queue.name: queue for queue in world.queues}
    for plan in days_of(h, world):
        new = [evict for evict in plan.evicts if not evict.already]
        for evict in new:
            _pair_is_legal(h, queues, evict, policy)
        _only_borrowers_give(h, queues, new)


def _pair_is_legal(h: Harness, queues: dict[str, QueueOf], evict: Evict, policy: Policy) -> None:
    victim, preemptor = h.submitted(evict.workload), h.submitted(evict.preemptor)
    assert preemptor.preempts
    if policy.victims == "least-loss":
        assert not victim.protected
    mine, theirs = _queue_of(queues, preemptor), _queue_of(queues, victim)
    if mine is None or theirs is None or _tree(mine) != _tree(theirs):
        assert evict.reason.rule == "priority"
        assert victim.rank < preemptor.rank
    elif mine is theirs:
        assert evict.reason.rule == "InClusterQueue"
        assert mine.within != "Never"
        newer = victim.created_at > preemptor.created_at
        equal = victim.priority == preemptor.priority
        lets_equal = mine.within == "LowerOrNewerEqualPriority" and newer and equal
        assert victim.priority < preemptor.priority or lets_equal
    else:
        assert evict.reason.rule.startswith("InCohort")
        assert mine.reclaim != "Never"
        assert mine.reclaim == "Any" or victim.priority < preemptor.priority


def _queue_of(queues: dict[str, QueueOf], workload: Workload) -> QueueOf | None:
    return queues.get((workload.local_queue or "").removesuffix(SECOND_DOOR))


def _tree(queue: QueueOf) -> str:
    return "tree" if queue.cohort else queue.name


def _only_borrowers_give(h: Harness, queues: dict[str, QueueOf], new: list[Evict]) -> None:
    """Who stays within its own quota is safe from other queues; the last victim may take its queue below."""
    used: dict[str, int] = defaultdict(int)
    for workload in h.state.workloads.values():
        told_before = workload.evicted_at is not None and workload.evicted_at < h.now
        if workload.admission is not None and not told_before:
            used[workload.admission.queue] += _gpus(workload)
    # Who waits for room that was made for it will borrow as much as if it ran.
    asking = {evict.preemptor for evict in new}
    for hold in h.state.holds.values():
        waits = h.state.workloads[hold.workload].admission is None and hold.workload not in asking
        if waits and hold.admission is not None:
            used[hold.admission.queue] += _amount(hold.admission)
    by_queue: dict[str, list[tuple[int, int]]] = defaultdict(list)  # how large, and what it gives
    for evict in new:
        if evict.reason.rule.startswith("InCohort"):
            victim = h.state.workloads[evict.workload]
            assert victim.admission is not None
            by_queue[victim.admission.queue] += _turns(victim, evict)
    for queue, turns in by_queue.items():
        left = used[queue]
        for _, gives in sorted(turns):
            assert left > queues[queue].gpus, f"{queue} is within its quota: {new}"
            left -= gives


def _turns(victim: Workload, evict: Evict) -> list[tuple[int, int]]:
    """Single pods leave nodes only: their workload keeps its quota, and goes on borrowing. A job is lowered pod by pod."""
    if evict.keeps is not None:
        each = _gpus(victim) // (evict.keeps + len(evict.pods))
        return [(each, each)] * len(evict.pods)
    return [(_gpus(victim), 0 if evict.pods else _gpus(victim))]


def _gpus(workload: Workload) -> int:
    assert workload.admission is not None
    return _amount(workload.admission)


def _amount(admission: Admission) -> int:
    usage = [amount for part in admission.assignments for amount in part.usage]
    return sum(amount for resource, amount in usage if resource == GPU)


# -- needed ----------------------------------------------------------------------------------------------------------


@many
@given(worlds(), st.sampled_from(POLICIES))
def test_leave_any_victim_out_and_it_no_longer_fits(world: World, policy: Policy) -> None:
    h = build(world, policy)
    for item in world.submissions:
        submit(h, item)
        before = h.rebuilt()
        plan = h.cycle()
        # One at a time, and no room kept for others: then what is needed is plain to see.
        alone = len(plan.holds) == 1 and not before.holds and not plan.admits
        if alone and _evicts(plan.holds[0]):
            new = [evict for evict in plan.evicts if not evict.already]
            _everyone_is_needed(before, plan.holds[0], new, policy)
        h.advance(40.0)
        h.answer_checks()
        h.let_them_leave()


def _evicts(hold: Hold) -> bool:
    """Who waits for others to end by themselves, or for its turn, evicts nobody."""
    return bool(hold.victims) and hold.rule not in ("patience", "reservation")


def _everyone_is_needed(state: State, hold: Hold, evicts: list[Evict], policy: Policy) -> None:
    demands = _demands(state, hold)
    evicts = [each for evict in evicts for each in _one_by_one(evict)]
    shared = any(evict.reason.rule == "InCohortFairSharing" for evict in evicts)
    # Kueue would rather evict more of its own queue than borrow, where others could be asked too.
    own = policy.victims == "kueue" and _quota_suffices(state, hold, evicts, own=True)
    for spared in [None, *evicts]:
        if shared and spared is not None and spared.reason.rule == "InClusterQueue":
            continue  # it keeps the share of its own queue low enough to take from another
        gone = [evict for evict in evicts if evict is not spared]
        fits = _nodes_suffice(state, demands, gone) and _quota_suffices(state, hold, gone, own)
        assert fits == (spared is None), f"{hold.workload}: {spared}"


def _one_by_one(evict: Evict) -> list[Evict]:
    """Where a job is lowered, every single pod has to be needed."""
    if evict.keeps is None:
        return [evict]
    return [msgspec.structs.replace(evict, pods=(pod,)) for pod in evict.pods]


def _demands(state: State, hold: Hold) -> list[Demand]:
    preemptor = state.workloads[hold.workload]
    given = hold.admission or preemptor.admission  # with checks, it holds its quota already
    if given is not None and hold.placement:
        sets = {pod_set.name: pod_set for pod_set in preemptor.pod_sets}
        return [
            Demand(
                pod_set=part.pod_set,
                shape=sets[part.pod_set].shape,
                count=part.count,
                topology=sets[part.pod_set].topology,
            )
            for part in given.assignments
        ]
    if given is not None and not preemptor.admission:
        return []
    ask = gang.ask(preemptor, state.occupancy.members(preemptor.id))
    return gang.demands_of(preemptor, ask.core or ask.surplus[:1])


def _nodes_suffice(state: State, demands: list[Demand], gone: list[Evict]) -> bool:
    occupancy = state.occupancy
    with occupancy.table.what_if():
        for pod in occupancy.leaving.values():
            _lift(state, pod)
        for evict in gone:
            for pod in occupancy.members(evict.workload):
                if not evict.pods or pod.id in evict.pods:
                    _lift(state, pod)
            if not evict.pods:
                for node, kept in occupancy.promised.get(evict.workload, ()):
                    occupancy.table.take(occupancy.table.row_of[node], -kept)
        return not isinstance(occupancy.placer.place(demands), Shortfall)


def _lift(state: State, pod: Pod) -> None:
    if pod.node is not None:
        state.occupancy.table.lift(pod, state.occupancy.table.row_of[pod.node])


def _quota_suffices(state: State, hold: Hold, gone: list[Evict], own: bool) -> bool:
    """`own`: without borrowing."""
    if hold.admission is None or hold.queue is None:
        return True
    usage: dict[tuple[str, str], int] = {
        (flavor, resource): amount
        for part in hold.admission.assignments
        for resource, flavor in part.flavors
        for name, amount in part.usage
        if name == resource
    }
    ledger = state.ledger
    queue = ledger.queue(hold.queue)
    # By the queue itself, or by a cohort below the root that it belongs to.
    owned = any(node.fits_in_nominal(usage) for node in (queue, *queue.ancestors()) if node.parent)
    with ledger.what_if():
        for held in ledger.leaving():
            ledger.release(held.id)
        for evict in gone:
            victim = ledger.get(evict.workload)
            if victim is not None and evict.keeps is not None:
                ledger.give_back(Part(victim, len(evict.pods)))
            elif not evict.pods:
                ledger.release(evict.workload)
        fits = queue.fits(usage)
        # Quota that others borrow is reclaimed for what one owns: staying within it can be what a victim is for.
        reclaims = any(evict.reason.rule == "InCohortReclamation" for evict in gone)
        if own:
            return fits and queue.fits_in_nominal(usage)
        return fits and (owned or not reclaims or queue.fits_in_nominal(usage))


# -- and not in vain -------------------------------------------------------------------------------------------------


@many
@given(worlds(), st.sampled_from([*BY_LOSS, Policy(victims="kube")]))
def test_who_asked_gets_the_room_unless_a_higher_priority_takes_it(
    world: World, policy: Policy
) -> None:
    h, plans = live_through(world, policy)
    for _ in range(9):
        plans.append(h.cycle())
        h.advance(31.0)
        h.answer_checks()
        h.let_them_leave()
    for i, plan in enumerate(plans[:-4]):  # who has only just asked still waits for its victims
        for hold in plan.holds:
            if _evicts(hold):
                asked = h.submitted(hold.workload)
                assert _gets_in(plans[i:], asked) or _overtaken(h, plans[i:], asked), (
                    f"{asked.id} evicted {hold.victims} in vain"
                )


def _gets_in(later: list[Plan], asked: Workload) -> bool:
    return any(admit.workload == asked.id for plan in later for admit in plan.admits)


def _overtaken(h: Harness, later: list[Plan], asked: Workload) -> bool:
    """Somebody of a higher priority got in, or made way for itself, since."""
    winners = {admit.workload for plan in later for admit in plan.admits}
    winners |= {hold.workload for plan in later for hold in plan.holds}
    return any(
        max(h.submitted(w).priority, h.submitted(w).rank) > min(asked.priority, asked.rank)
        for w in winners
    )
