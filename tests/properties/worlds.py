"""Clusters of every kind, for the promises: racks, queues in cohorts, gangs and single pods, savers and others, checks and budgets.

A cluster is written as a row of bytes, one for each choice, and 0 is always the plainest one. So hypothesis draws one thing
instead of two hundred (most of a run would be spent drawing), and a failure still shrinks choice by choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from hypothesis import strategies as st

from makeway.engine.policy import Policy, UsageOrder
from makeway.model.selectors import LabelSelector, Requirement
from makeway.model.workload import Budget, Checkpoint, PodShape
from makeway.testing import Harness, amounts

Choice = TypeVar("Choice")


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    queue: str | None
    priority: int
    pods: int
    gpus: int
    gang: bool | int
    preempts: bool
    grace: float
    topology: str | None
    checkpoint: Checkpoint
    protected: bool
    guarded: bool  # a disruption budget counts its pods
    lowers_to: int | None  # its job goes on with so many pods


class QueueOf(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    gpus: int
    cohort: str | None
    within: str
    reclaim: str
    borrow: str
    strategy: str
    borrowing_limit: int | None
    weight: float
    checked: bool


class World(msgspec.Struct, frozen=True, kw_only=True):
    racks: tuple[tuple[int, int], ...]  # nodes and GPUs per node of each rack
    queues: tuple[QueueOf, ...]
    budget: int  # disruptions that are allowed at any time
    submissions: tuple[Submission, ...]


# By loss, with what an administrator can say about it; then those who want other systems' choices.
BY_LOSS = [
    Policy(),
    Policy(bands=((0, 4), (5, 9))),
    Policy(reserve_after_s=20.0),
    Policy(fair_sharing=True),
    Policy(usage_order=UsageOrder(half_life_s=60.0, sampling_s=10.0)),
]
POLICIES = [*BY_LOSS, Policy(victims="kueue"), Policy(victims="kube")]
SECOND_DOOR = "-too"  # of a queue where usage counts

_CHECKPOINTS = [
    Checkpoint(),
    Checkpoint(every_s=600.0),
    Checkpoint(on_term_s=10.0),
    Checkpoint(restart_s=300.0),
    Checkpoint(expected_runtime_s=60.0),
    Checkpoint(patience_s=45.0),
    Checkpoint(min_runtime_s=30.0),
]
_MOST_QUEUES = 3
_ALONE = ("", "", "")
_TREES = [("all", "all", "all"), ("team", "team", "all"), ("all", "all", "all"), _ALONE]
_MOST_SUBMISSIONS = 9
_FOR_ONE = 12  # bytes
_FOR_ALL = 8 + 10 * _MOST_QUEUES


class _Choices:
    """Reads a cluster off its bytes."""

    def __init__(self, written: bytes) -> None:
        self._written: Iterator[int] = iter(written)

    def pick(self, options: Sequence[Choice]) -> Choice:
        return options[next(self._written, 0) % len(options)]

    def number(self, lowest: int, highest: int) -> int:
        return lowest + next(self._written, 0) % (highest - lowest + 1)


def worlds() -> st.SearchStrategy[World]:
    size = _FOR_ALL + _FOR_ONE * _MOST_SUBMISSIONS
    return st.binary(min_size=size, max_size=size).map(world_of)


def world_of(written: bytes) -> World:
    choices = _Choices(written[:_FOR_ALL])
    # Small against what is asked for: in a roomy cluster nobody has to fall.
    racks = [(choices.number(1, 2), choices.pick([2, 4])) for _ in range(choices.number(1, 3))]
    total = sum(nodes * gpus for nodes, gpus in racks)
    budget = choices.number(0, 2)
    count = 3 + written[_FOR_ALL - 1] % (_MOST_SUBMISSIONS - 2)
    tree = choices.pick(_TREES)
    names = ["a", "b", "c"][: choices.pick([0, 1, 2, 3, 2, 3])]
    queues = [_queue(choices, name, tree[i], total) for i, name in enumerate(names)]
    parts = [written[_FOR_ALL + i * _FOR_ONE : _FOR_ALL + (i + 1) * _FOR_ONE] for i in range(count)]
    return World(
        racks=tuple(racks),
        queues=tuple(queues),
        budget=budget,
        submissions=tuple(_submission(_Choices(p), f"w{i}", names) for i, p in enumerate(parts)),
    )


def _queue(choices: _Choices, name: str, cohort: str, total: int) -> QueueOf:
    reclaim = choices.pick(["Any", "Any", "LowerPriority", "Never"])
    borrow = choices.pick(["Never", "LowerPriority"])
    limit = choices.pick([None, None, None, 0, 2, 5])
    return QueueOf(
        name=name,
        gpus=choices.pick([total, total // 2, total // 2, total // 3, 0]),
        cohort=cohort or None,
        within=choices.pick(["LowerPriority", "LowerOrNewerEqualPriority", "Never"]),
        reclaim=reclaim,
        borrow=borrow if reclaim != "Never" else "Never",
        strategy=choices.pick(["BestEffortFIFO", "BestEffortFIFO", "StrictFIFO"]),
        borrowing_limit=limit if cohort else None,
        weight=choices.pick([1.0, 1.0, 2.0, 0.0]),
        checked=choices.pick([False, False, False, True]),
    )


def _submission(choices: _Choices, name: str, queues: Sequence[str]) -> Submission:
    pods = choices.pick([1, 1, 2, 3, 4])
    queue = choices.pick([None, *queues, *queues])
    found = Submission(
        name=name,
        queue=queue,
        priority=choices.number(0, 9),
        pods=pods,
        gpus=choices.pick([1, 1, 2, 4]),
        gang=choices.pick([True, True, False, max(1, pods - 1)]),
        preempts=choices.pick([True] * 6 + [False]),
        grace=choices.pick([0.0, 0.0, 30.0]),
        topology=choices.pick([None, None, None, "rack"]),
        checkpoint=choices.pick(_CHECKPOINTS),
        protected=choices.pick([False] * 11 + [True]),
        guarded=choices.pick([False, False, False, True]),
        lowers_to=choices.pick([None, None, max(1, pods - 2), max(1, pods - 1)]),
    )
    if queue is None or pods == 1 or found.lowers_to is None:
        return msgspec.structs.replace(found, lowers_to=None)
    # What a job can be lowered to is also what is enough to start.
    return msgspec.structs.replace(found, gang=found.lowers_to if found.gang else False)


def circles() -> st.SearchStrategy[World]:
    """One node, and three parties of which each may evict the next: a lender, who ranks lowest and takes back what it lent;
    work without a queue, which ranks higher than the lender; and a borrower, who ranks highest.
    """
    return st.binary(min_size=24, max_size=24).map(circle_of)


def circle_of(written: bytes) -> World:
    choices = _Choices(written)
    gpus = choices.pick([1, 2, 4])
    parties = {"lender": ("a", 1), "alone": (None, 5), "borrower": ("b", 9)}
    names = [*parties, *(choices.pick(list(parties)) for _ in range(choices.number(0, 4)))]
    submissions = []
    for i in range(len(names)):
        party = names.pop(choices.number(0, len(names) - 1))
        queue, priority = parties[party]
        submissions.append(
            _plain(f"{party}-{i}", queue, priority, gpus=choices.pick([gpus, gpus, 1]))
        )
    return World(
        racks=((1, gpus),),
        queues=(_lends("a", gpus), _lends("b", 0)),
        budget=0,
        submissions=tuple(submissions),
    )


def _lends(name: str, gpus: int) -> QueueOf:
    return QueueOf(
        name=name,
        gpus=gpus,
        cohort="all",
        within="LowerPriority",
        reclaim="Any",
        borrow="Never",
        strategy="BestEffortFIFO",
        borrowing_limit=None,
        weight=1.0,
        checked=False,
    )


def _plain(name: str, queue: str | None, priority: int, gpus: int) -> Submission:
    return Submission(
        name=name,
        queue=queue,
        priority=priority,
        pods=1,
        gpus=gpus,
        gang=True,
        preempts=True,
        grace=0.0,
        topology=None,
        checkpoint=Checkpoint(),
        protected=False,
        guarded=False,
        lowers_to=None,
    )


def build(world: World, policy: Policy) -> Harness:
    h = Harness(policy)
    for i, (nodes, gpus) in enumerate(world.racks):
        h.nodes(nodes, gpus=gpus, labels={"rack": f"r{i}"})
    if any(queue.cohort == "team" for queue in world.queues):
        h.cohort("team", parent="all")
    for queue in world.queues:
        _build_queue(h, queue)
    guarded = LabelSelector(
        requirements=(Requirement(key="guarded", operator="In", values=("yes",)),)
    )
    h.put(Budget(id="default/few", namespace="default", selector=guarded, allowed=world.budget))
    return h


def _build_queue(h: Harness, queue: QueueOf) -> None:
    h.queue(
        queue.name,
        gpus=queue.gpus,
        cohort=queue.cohort,
        within=queue.within,
        reclaim=queue.reclaim,
        borrow=queue.borrow,
        strategy=queue.strategy,
        borrowing_limit=queue.borrowing_limit,
        weight=queue.weight,
        checks=("ready",) if queue.checked else (),
        doors={queue.name: 1.0, queue.name + SECOND_DOOR: 0.5}
        if h.policy.usage_order is not None
        else None,
    )


def _door(h: Harness, item: Submission) -> str | None:
    """Where usage counts, each other workload comes in through the second door of its queue."""
    second = f"{item.queue}{SECOND_DOOR}"
    there = f"default/{second}" in h.state.local_queues
    return second if there and item.name[-1] in "13579" else item.queue


def submit(h: Harness, item: Submission) -> None:
    shape = PodShape(
        namespace="default",
        requests=amounts(gpus=item.gpus),
        labels=(("guarded", "yes"),) if item.guarded else (),
    )
    h.submit(
        item.name,
        queue=_door(h, item),
        priority=item.priority,
        pods=item.pods,
        gang=item.gang,
        preempts=item.preempts,
        grace=item.grace,
        topology=item.topology,
        shape=shape,
        checkpoint=item.checkpoint,
        protected="do not touch" if item.protected else "",
        lowers_to=item.lowers_to,
    )
