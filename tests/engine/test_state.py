"""After any events the state equals one built from scratch; and who is not queued can read why."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from makeway.engine.assume import assume
from makeway.engine.cycle import decide
from makeway.engine.nominate import Nominator
from makeway.engine.policy import Policy, UsageOrder
from makeway.engine.standing import why_waiting
from makeway.engine.state import State
from makeway.engine.victims.candidates import passes
from makeway.model.event import Event, Namespace, Remove, Upsert
from makeway.model.queue import Cohort, Flavor, FlavorName, LocalQueue, Queue, QueueName
from makeway.model.workload import Workload, WorkloadId
from tests.engine.build import cohort, queue, running, state, workload

# A long run asks for more: PROPERTY_EXAMPLES=100000.
EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "150"))
QUEUES = ["a", "b", "c"]
COHORTS = ["x", "y"]
amounts = st.integers(0, 6)
limits = st.one_of(st.just("-"), amounts.map(str))


@st.composite
def queues(draw: Callable[[Any], Any]) -> Queue:
    text = f"{draw(amounts)}/{draw(limits)}/{draw(limits)}"
    return queue(
        draw(st.sampled_from(QUEUES)),
        text,
        cohort=draw(st.sampled_from([None, *COHORTS])),
        within_queue=draw(st.sampled_from(["Never", "LowerPriority", "LowerOrNewerEqualPriority"])),
        reclaim=draw(st.sampled_from(["Never", "LowerPriority", "Any"])),
        strategy=draw(st.sampled_from(["StrictFIFO", "BestEffortFIFO"])),
        stop=draw(st.sampled_from(["None", "None", "None", "Hold"])),
        usage_based_fair_sharing=draw(st.booleans()),
    )


@st.composite
def cohorts(draw: Callable[[Any], Any]) -> Cohort:
    text = f"{draw(amounts)}/{draw(limits)}/{draw(limits)}"
    name = draw(st.sampled_from(COHORTS))
    return cohort(name, text, parent=draw(st.sampled_from([None, *COHORTS])))


@st.composite
def workloads(draw: Callable[[Any], Any]) -> Workload:
    name = draw(st.sampled_from([f"w{i}" for i in range(6)]))
    size, priority = draw(st.integers(0, 5)), draw(st.integers(0, 2))
    where = draw(st.sampled_from(QUEUES))
    if draw(st.booleans()):
        return running(
            name,
            where,
            size,
            priority,
            draw(st.integers(0, 9)),
            active=draw(st.sampled_from([True, True, False])),
            evicted_at=draw(st.sampled_from([None, None, 5.0])),
        )
    return workload(
        name,
        size,
        priority,
        created=draw(st.integers(0, 9)),
        queue=where,
        finished=draw(st.sampled_from([False, False, True])),
        requeue_at=draw(st.sampled_from([None, None, 5.0, 50.0])),
    )


local_queues = st.builds(
    LocalQueue,
    namespace=st.just("ns"),
    name=st.sampled_from(QUEUES),
    queue=st.sampled_from([QueueName(q) for q in QUEUES]),
    stop=st.sampled_from(["None", "None", "Hold"]),
    weight=st.sampled_from([1.0, 2.0]),
    consumed=st.sampled_from([(), (("x", 3.0),), (("x", 0.1), ("y", 1.0))]),
    sampled_at=st.sampled_from([None, 0.0, 4.0, 8.0]),
)
removals = st.one_of(
    st.builds(Remove, type=st.just(Workload), key=st.sampled_from([f"ns/w{i}" for i in range(6)])),
    st.builds(Remove, type=st.just(Queue), key=st.sampled_from(QUEUES)),
    st.builds(Remove, type=st.just(Cohort), key=st.sampled_from(COHORTS)),
    st.builds(Remove, type=st.just(LocalQueue), key=st.sampled_from([f"ns/{q}" for q in QUEUES])),
)
upserts = st.one_of(workloads(), workloads(), workloads(), queues(), cohorts(), local_queues).map(
    lambda obj: Upsert(obj=obj)
)
events = st.lists(st.one_of(upserts, upserts, upserts, removals), max_size=25)
BASE: list[Event] = [
    Upsert(obj=Namespace(name="ns")),
    Upsert(obj=Flavor(name=FlavorName("f"))),
    *(Upsert(obj=LocalQueue(namespace="ns", name=q, queue=QueueName(q))) for q in QUEUES),
    *(Upsert(obj=queue(q, "4", cohort="x")) for q in QUEUES),
]


def rebuilt(old: State) -> State:
    """The same objects, given anew in another order."""
    fresh = State()
    tables: list[dict[Any, Any]] = [
        old.workloads,
        old.cohorts,
        old.local_queues,
        old.queues,
        old.flavors,
        old.namespaces,
    ]
    for table in tables:
        for obj in reversed(list(table.values())):
            fresh.apply(Upsert(obj=obj))
    return fresh


def ledger_of(state: State) -> dict[str, Any]:
    tree = state.ledger.tree
    known = [n for n in tree.queues if n in state.queues or tree.queues[n].usage]
    return {
        "usage": {n: tree.queues[n].usage for n in known if tree.queues[n].usage},
        "cohort usage": {n: c.usage for n, c in tree.cohorts.items() if c.usage},
        "held": {n: sorted(state.ledger.held_in(n)) for n in known if state.ledger.held_in(n)},
        "order": {n: [h.id for h in state.ledger.held_in(n).staying()] for n in known},
    }


BY_USAGE = Policy(victims="kueue", usage_order=UsageOrder(half_life_s=7.0, sampling_s=3.0))


def usage_of_doors(state: State) -> list[object]:
    state.usage.look(BY_USAGE.usage_order, 10.0)
    samples = list(state.usage.due())
    return [{d: state.usage.of(d) for d in sorted(state.local_queues)}, sorted(samples, key=repr)]


def lines_of(state: State) -> dict[str, Any]:
    """Who waits where. Who is parked is memory and may differ."""
    return {
        "lines": {
            q: sorted([*p.active(), *p.parked()]) for q, p in state.pending.items() if len(p)
        },
        "unqueued": sorted(state.unqueued),
        "unchecked": sorted(state.unchecked),
    }


@settings(max_examples=EXAMPLES, deadline=None)
@given(events, st.sampled_from([None, 1]))
def test_incremental_equals_from_scratch(changes: list[Event], rounds: int | None) -> None:
    world = State()
    for event in [*BASE, *changes]:
        world.apply(event)
    fresh = rebuilt(world)
    assert ledger_of(world) == ledger_of(fresh)
    assert lines_of(world) == lines_of(fresh)
    assert usage_of_doors(world) == usage_of_doors(fresh)

    # Deciding leaves no trace in the ledger, and the same state gives the same plan.
    for policy in (Policy(victims="kueue"), Policy(), Policy(fair_sharing=True), BY_USAGE):
        before = ledger_of(world)
        plan = decide(rebuilt(world), 10.0, policy, rounds=rounds)
        assert decide(fresh := rebuilt(world), 10.0, policy, rounds=rounds) == plan
        assert ledger_of(fresh) == before
        assert lines_of(fresh) == lines_of(world)


@st.composite
def busy_worlds(draw: Callable[[Any], Any]) -> list[Event]:
    """A cohort tree that is about full, with people waiting."""

    def policy(words: list[str]) -> str:
        return str(draw(st.sampled_from(words)))

    def team(name: str) -> Queue:
        nominal = draw(st.integers(1, 6))
        limits = (
            f"{draw(st.sampled_from(['-', '-', '2']))}/{draw(st.sampled_from(['-', '-', '1']))}"
        )
        return queue(
            name,
            f"{nominal}/{limits}",
            cohort=draw(st.sampled_from(COHORTS)),
            within_queue=policy(["Never", "LowerPriority", "LowerOrNewerEqualPriority"]),
            reclaim=policy(["Never", "LowerPriority", "Any"]),
            borrow=policy(["Never", "LowerPriority"]),
            strategy=policy(["StrictFIFO", "BestEffortFIFO", "BestEffortFIFO"]),
        )

    held = [
        running(
            f"r{i}",
            draw(st.sampled_from(QUEUES)),
            draw(st.integers(1, 4)),
            draw(st.integers(0, 2)),
            i,
            evicted_at=draw(st.sampled_from([None, None, None, 5.0])),
        )
        for i in range(draw(st.integers(3, 7)))
    ]
    waiting = [
        workload(
            f"w{i}",
            draw(st.integers(1, 4)),
            draw(st.integers(0, 4)),
            created=draw(st.integers(0, 9)),
            queue=draw(st.sampled_from(QUEUES)),
        )
        for i in range(draw(st.integers(2, 8)))
    ]
    objects: list[Any] = [cohort("x", "1", parent="y"), *map(team, QUEUES), *held, *waiting]
    return [*BASE, *(Upsert(obj=obj) for obj in objects)]


POLICIES = [
    Policy(),
    Policy(fair_sharing=True),
    Policy(fair_sharing=True, fair_strategies=("LessThanInitialShare",)),
    Policy(recompute_overlaps=False),
]


@settings(max_examples=EXAMPLES, deadline=None)
@given(busy_worlds(), st.sampled_from(POLICIES))
def test_no_decision_takes_more_than_there_is(world: list[Event], policy: Policy) -> None:
    state = State()
    for event in world:
        state.apply(event)
    over_before = _overdrawn(state)
    used_before = {n: dict(state.ledger.queue(n).usage) for n in QUEUES}
    plan = decide(state, 10.0, policy)
    assert {n: dict(state.ledger.queue(n).usage) for n in QUEUES} == used_before
    assume(state, plan, 10.0)
    assert _overdrawn(state) <= over_before
    admitted, evicted = [a.workload for a in plan.admits], [e.workload for e in plan.evicts]
    assert len(set(admitted)) == len(admitted)
    assert len(set(evicted)) == len(evicted)
    assert not set(evicted) & set(admitted)
    # Whoever still waits at the head of something was told why.
    assert not {w.workload for w in plan.waits} & set(admitted)


@settings(max_examples=EXAMPLES, deadline=None)
@given(busy_worlds(), st.sampled_from(POLICIES))
def test_deciding_again_asks_for_nothing_new(world: list[Event], policy: Policy) -> None:
    state = State()
    for event in world:
        state.apply(event)
    for _ in range(12):
        plan = decide(state, 10.0, policy)
        assume(state, plan, 10.0)
        if not plan.admits and not plan.holds and all(evict.already for evict in plan.evicts):
            break
    again = decide(state, 10.0, policy)
    assert again.admits == ()
    assert again.holds == ()
    assert [e.workload for e in again.evicts if not e.already] == []


def _overdrawn(state: State) -> set[str]:
    tree = state.ledger.tree
    return {n for n in state.queues if tree.queues[n].available(("f", "x")) < 0}


@settings(max_examples=EXAMPLES, deadline=None)
@given(busy_worlds(), st.sampled_from(POLICIES))
def test_whoever_others_stepped_aside_for_gets_in(world: list[Event], policy: Policy) -> None:
    state = State()
    for event in world:
        state.apply(event)
    promised: set[WorkloadId] = set()
    for now in range(10, 40):
        plan = decide(state, now, policy)
        assume(state, plan, now)
        promised |= {hold.workload for hold in plan.holds if hold.until > now}
        promised -= set(plan.ended_holds)
        promised -= {admit.workload for admit in plan.admits}
        # Victims are gone by the next cycle.
        for key in [k for k, w in state.workloads.items() if w.admission and w.evicted_at]:
            state.apply(Remove(type=Workload, key=key))
        if not plan.admits and not plan.evicts and not plan.holds:
            break
    assert promised == set()


@settings(max_examples=EXAMPLES, deadline=None)
@given(busy_worlds(), st.sampled_from([Policy(victims="kueue"), *POLICIES]))
def test_victims_are_legal_and_make_room(world: list[Event], policy: Policy) -> None:
    state = State()
    for event in world:
        state.apply(event)
    nominator = Nominator(state, 10.0, policy)
    for key, waiting in state.workloads.items():
        queue_name = state.waits_in(key)
        if queue_name is None:
            continue
        entry = nominator.nominate(key, queue_name)
        rules = state.queues[queue_name].preemption
        ledger = state.ledger
        for victim in entry.victims:
            inside = victim.held.queue == queue_name
            rule = rules.within_queue if inside else rules.reclaim
            assert passes(rule, waiting, victim.held.workload, policy)
            # Who stays within its own quota is safe from other queues.
            assert inside or ledger.queue(victim.held.queue).is_borrowing(entry.proposal.need)
        if entry.victims:
            with ledger.what_if():
                for victim in entry.victims:
                    ledger.release(victim.held.id)
                assert ledger.queue(queue_name).fits(entry.usage)


def test_a_status_write_does_not_wake_a_parked_workload() -> None:
    world = state(queue("q", "1"), workload("w", 2, queue="q"))
    decide(world, 0.0, Policy(victims="kueue"))
    line = world.pending[QueueName("q")]
    assert list(line.parked()) == ["ns/w"]
    world.apply(Upsert(obj=world.workloads[WorkloadId("ns/w")]))
    world.settle(0.0)
    assert list(line.parked()) == ["ns/w"]
    higher = msgspec.structs.replace(world.workloads[WorkloadId("ns/w")], priority=1)
    world.apply(Upsert(obj=higher))
    assert list(line.active()) == ["ns/w"]


def test_quota_freed_in_the_cohort_wakes_all_of_its_tree() -> None:
    world = state(
        cohort("root"),
        cohort("team", parent="root"),
        queue("a", "2", cohort="team"),
        queue("b", "0", cohort="root"),
        queue("stranger", "0"),
        running("r", "a", 2),
        workload("waits", 1, queue="b"),
        workload("elsewhere", 1, queue="stranger"),
    )
    policy = Policy(victims="kueue")
    decide(world, 0.0, policy)
    world.apply(Remove(type=Workload, key="ns/r"))
    plan = decide(world, 0.0, policy)
    assert [a.workload for a in plan.admits] == ["ns/waits"]
    assert plan.waits == ()


@pytest.mark.parametrize(
    ("fields", "kueue", "message"),
    [
        ({"queue": "none"}, "Misconfigured", "LocalQueue none doesn't exist"),
        ({"queue": "lost"}, "Misconfigured", "ClusterQueue gone doesn't exist"),
        ({"queue": "shut"}, "Suspended", "LocalQueue shut is stopped"),
        ({"queue": "halted"}, "Suspended", "ClusterQueue halted is stopped"),
        ({"queue": "q", "active": False}, "Deactivated", "The workload is deactivated"),
        (
            {"queue": "q", "held_back": "Admission is gated by: x"},
            "AdmissionGated",
            "Admission is gated by: x",
        ),
        (
            {"queue": "q"},
            "PendingEvaluation",
            "Workload is pending evaluation in the scheduling queue",
        ),
    ],
)
def test_whoever_waits_can_read_why(fields: dict[str, Any], kueue: str, message: str) -> None:
    world = state(
        queue("q", "1"),
        queue("halted", "1", stop="Hold"),
        LocalQueue(namespace="ns", name="lost", queue=QueueName("gone")),
        LocalQueue(namespace="ns", name="shut", queue=QueueName("q"), stop="Hold"),
        workload("w", 1, **fields),
    )
    reason = why_waiting(world, world.workloads[WorkloadId("ns/w")], 0.0)
    assert reason is not None
    assert (reason.kueue, reason.message) == (kueue, message)
