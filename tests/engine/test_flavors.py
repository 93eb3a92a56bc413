"""Which flavor: selectors, taints, fungibility, preference, resuming, groups."""

from __future__ import annotations

import msgspec
import pytest

from makeway.engine.flavors import Assigner, matches_labels
from makeway.engine.fungibility import is_preferred
from makeway.engine.proposal import Mode, NoFitReason, Offer, Possibility, Proposal
from makeway.engine.quota import FlavorResource
from makeway.engine.state import State
from makeway.model.event import Upsert
from makeway.model.queue import Flavor, FlavorName, Fungibility, QueueName
from makeway.model.selectors import NodeTerm, Requirement, Taint, Toleration
from makeway.model.workload import PodSet, PodShape, Workload
from tests.engine.build import KUEUE, queue, running, state, workload

FIT, RECLAIM, PREEMPT, NOBODY, NO = (
    Possibility.FIT,
    Possibility.RECLAIM,
    Possibility.PREEMPT,
    Possibility.NO_CANDIDATES,
    Possibility.NO_FIT,
)

NOBODY_THERE = Offer(NOBODY, 0)


def assign(
    world: State,
    wanted: Workload,
    *,
    oracle: Offer = NOBODY_THERE,
    tried: tuple[dict[str, int], ...] = (),
) -> Proposal:
    def ask(fr: FlavorResource, amount: int) -> Offer:
        return oracle

    name = QueueName("q")
    assigner = Assigner(
        queue=world.queues[name],
        node=world.ledger.queue(name),
        flavors=world.flavors,
        policy=KUEUE,
        oracle=ask,
    )
    return assigner.assign(wanted, tried=tried)


def flavors(proposal: Proposal) -> list[str]:
    return [p.choices["x"].flavor for p in proposal.pod_sets if "x" in p.choices]


def test_the_first_flavor_that_fits() -> None:
    world = state(queue("q", {"one": "1", "two": "4"}))
    proposal = assign(world, workload("w", 3))
    assert flavors(proposal) == ["two"]
    assert proposal.mode is Mode.FIT
    assert proposal.pod_sets[0].reasons == ()


def test_pod_sets_share_what_is_left() -> None:
    world = state(queue("q", {"one": "3", "two": "4"}))
    twice = workload("w", 2)
    sets = (*twice.pod_sets, msgspec.structs.replace(twice.pod_sets[0], name="more"))
    assert flavors(assign(world, msgspec.structs.replace(twice, pod_sets=sets))) == ["one", "two"]


def test_pod_sets_of_a_group_get_the_same_flavor() -> None:
    world = state(queue("q", {"one": "3", "two": "4"}))
    shape = PodShape(requests=(("x", 2),))
    pair = tuple(PodSet(name=n, count=1, shape=shape, group="g") for n in ("leader", "worker"))
    assert flavors(assign(world, msgspec.structs.replace(workload("w", 0), pod_sets=pair))) == [
        "two",
        "two",
    ]


def test_reasons_name_resource_flavor_and_amount() -> None:
    world = state(queue("q", {"one": "3", "two": "8"}), running("r", "q", 6, flavor="two"))
    proposal = assign(world, workload("w", 4))
    assert proposal.message == (
        "couldn't assign flavors to pod set main:"
        " insufficient quota for x in flavor one, previously considered podsets requests (0) + current"
        " podset request (4) > maximum capacity (3),"
        " insufficient unused quota for x in flavor two, 2 more needed"
    )
    assert proposal.mode is Mode.PREEMPT  # allowed, though nobody is there to take from
    assert [(s.flavor, s.missing, s.free) for s in proposal.shortages] == [
        ("one", 1, 3),
        ("two", 2, 2),
    ]


def test_an_undeclared_resource_fails_unless_it_is_zero() -> None:
    world = state(queue("q", "3"))
    for amount, mode in ((1, Mode.NO_FIT), (0, Mode.FIT)):
        shape = PodShape(requests=(("gpu", amount), ("x", 1)))
        wanted = msgspec.structs.replace(
            workload("w", 1), pod_sets=(PodSet(name="main", count=1, shape=shape),)
        )
        proposal = assign(world, wanted)
        assert proposal.mode is mode
        if mode is Mode.NO_FIT:
            assert proposal.no_fit is NoFitReason.NO_MATCHING_FLAVOR
            assert proposal.pod_sets[0].reasons == ("resource gpu unavailable in ClusterQueue",)


@pytest.mark.parametrize(
    ("borrow", "preempt", "expected"),
    [
        ("MayStopSearch", "TryNextFlavor", "lent"),
        ("TryNextFlavor", "TryNextFlavor", "own"),
    ],
)
def test_borrowing_may_stop_the_search(borrow: str, preempt: str, expected: str) -> None:
    fungibility = Fungibility(when_can_borrow=borrow, when_can_preempt=preempt)  # type: ignore[arg-type]
    world = state(
        queue("q", {"lent": "0", "own": "4"}, cohort="all", fungibility=fungibility),
        queue("other", {"lent": "4"}, cohort="all"),
    )
    proposal = assign(world, workload("w", 2))
    assert flavors(proposal) == [expected]
    assert proposal.pod_sets[0].choices["x"].tried_index == (0 if expected == "lent" else -1)


def test_preempting_may_stop_the_search() -> None:
    for when, expected in (("MayStopSearch", "one"), ("TryNextFlavor", "two")):
        fungibility = Fungibility(when_can_preempt=when)  # type: ignore[arg-type]
        world = state(
            queue("q", {"one": "4", "two": "4"}, fungibility=fungibility),
            running("r", "q", 4, flavor="one"),
        )
        proposal = assign(world, workload("w", 2), oracle=Offer(PREEMPT, 0))
        assert flavors(proposal) == [expected]


def test_the_next_attempt_goes_on_where_the_last_one_stopped() -> None:
    world = state(queue("q", {"one": "4", "two": "4", "three": "4"}))
    assert flavors(assign(world, workload("w", 2), tried=({"x": 0},))) == ["two"]
    assert flavors(assign(world, workload("w", 2), tried=({"x": -1},))) == ["one"]


@pytest.mark.parametrize(
    ("preference", "better", "worse"),
    [
        ("", Offer(FIT, 1), Offer(RECLAIM, 0)),
        ("", Offer(RECLAIM, 2), Offer(PREEMPT, 0)),
        ("", Offer(FIT, 0), Offer(FIT, 1)),
        ("", Offer(PREEMPT, 9), Offer(NOBODY, 0)),
        ("", Offer(NOBODY, 9), Offer(NO, 0)),
        ("PreemptionOverBorrowing", Offer(PREEMPT, 0), Offer(FIT, 1)),
        ("PreemptionOverBorrowing", Offer(FIT, 1), Offer(PREEMPT, 1)),
        ("PreemptionOverBorrowing", Offer(PREEMPT, 9), Offer(NOBODY, 0)),
    ],
)
def test_preference(preference: str, better: Offer, worse: Offer) -> None:
    fungibility = Fungibility(preference=preference)  # type: ignore[arg-type]
    assert is_preferred(better, worse, fungibility)
    assert not is_preferred(worse, better, fungibility)


def test_taints_need_a_toleration_of_pod_or_flavor() -> None:
    taint = Taint(key="spot", value="yes")
    world = state(queue("q", {"one": "4", "two": "4"}))
    world.apply(Upsert(obj=Flavor(name=FlavorName("one"), node_taints=(taint,))))
    assert flavors(assign(world, workload("w", 1))) == ["two"]
    tolerant = PodShape(
        requests=(("x", 1),), tolerations=(Toleration(key="spot", operator="Exists"),)
    )
    wanted = msgspec.structs.replace(
        workload("w", 1), pod_sets=(PodSet(name="main", count=1, shape=tolerant),)
    )
    assert flavors(assign(world, wanted)) == ["one"]
    world.apply(
        Upsert(
            obj=Flavor(
                name=FlavorName("one"),
                node_taints=(taint,),
                tolerations=(Toleration(key="spot", value="yes"),),
            )
        )
    )
    assert flavors(assign(world, workload("w", 1))) == ["one"]


def test_only_the_flavors_own_labels_are_asked() -> None:
    labels = {"type": "a100"}
    assert matches_labels(PodShape(node_selector=(("zone", "z1"),)), labels)
    assert matches_labels(PodShape(node_selector=(("type", "a100"),)), labels)
    assert not matches_labels(PodShape(node_selector=(("type", "t4"),)), labels)


def test_a_term_about_other_labels_satisfies_the_affinity() -> None:
    def shape(*keys: tuple[str, str]) -> PodShape:
        terms = tuple(
            NodeTerm(labels=(Requirement(key=k, operator="In", values=(v,)),)) for k, v in keys
        )
        return PodShape(required_terms=terms)

    labels = {"type": "a100"}
    assert matches_labels(shape(("type", "a100")), labels)
    assert not matches_labels(shape(("type", "t4")), labels)
    assert matches_labels(shape(("type", "t4"), ("zone", "z1")), labels)
    assert matches_labels(shape(("type", "t4"), ("type", "a100")), labels)


def test_a_missing_flavor_is_named() -> None:
    world = state(queue("q", "4"))
    del world.flavors[FlavorName("f")]
    assert assign(world, workload("w", 1)).pod_sets[0].reasons == ("flavor f not found",)
