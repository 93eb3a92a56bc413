"""Clusters of every kind, for the promises: nodes in racks, queues in a cohort, gangs and single pods, savers and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

from makeway.engine.policy import Policy
from makeway.model.workload import Checkpoint
from makeway.testing import Harness


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
    at: float


class World(msgspec.Struct, frozen=True, kw_only=True):
    racks: tuple[tuple[int, int], ...]  # nodes and GPUs per node of each rack
    quotas: dict[str, int]
    borrow: str
    submissions: tuple[Submission, ...]


POLICIES = [
    Policy(),
    Policy(),
    Policy(victims="kueue"),
    Policy(victims="kube"),
    Policy(bands=((0, 4), (5, 9))),
]


@st.composite
def worlds(draw: Callable[[Any], Any]) -> World:
    racks = draw(
        st.lists(st.tuples(st.integers(1, 3), st.sampled_from([2, 4, 8])), min_size=1, max_size=3)
    )
    total = sum(nodes * gpus for nodes, gpus in racks)
    names = ["a", "b", "c"][: draw(st.integers(0, 3))]
    quotas = {name: draw(st.integers(0, total)) for name in names}
    count = draw(st.integers(2, 9))
    return World(
        racks=tuple(racks),
        quotas=quotas,
        borrow=draw(st.sampled_from(["Never", "LowerPriority"])),
        submissions=tuple(draw(submissions(f"w{i}", names, float(i))) for i in range(count)),
    )


@st.composite
def submissions(draw: Callable[[Any], Any], name: str, queues: list[str], at: float) -> Submission:
    pods = draw(st.sampled_from([1, 1, 2, 3, 4]))
    return Submission(
        name=name,
        queue=draw(st.sampled_from([*queues, None])),
        priority=draw(st.integers(0, 9)),
        pods=pods,
        gpus=draw(st.sampled_from([1, 1, 2, 4])),
        gang=draw(st.sampled_from([True, True, False, max(1, pods - 1)])),
        preempts=draw(st.sampled_from([True, True, True, False])),
        grace=draw(st.sampled_from([0.0, 0.0, 30.0])),
        topology=draw(st.sampled_from([None, None, None, "rack"])),
        checkpoint=draw(
            st.sampled_from(
                [
                    Checkpoint(),
                    Checkpoint(every_s=600.0),
                    Checkpoint(on_term_s=10.0),
                    Checkpoint(restart_s=300.0),
                ]
            )
        ),
        at=at,
    )


def build(world: World, policy: Policy) -> Harness:
    h = Harness(policy)
    for i, (nodes, gpus) in enumerate(world.racks):
        h.nodes(nodes, gpus=gpus, labels={"rack": f"r{i}"})
    for name, gpus in world.quotas.items():
        h.queue(name, gpus=gpus, cohort="all", borrow=world.borrow)
    return h


def submit(h: Harness, item: Submission) -> None:
    h.submit(
        item.name,
        queue=item.queue,
        priority=item.priority,
        pods=item.pods,
        gpus=item.gpus,
        gang=item.gang,
        preempts=item.preempts,
        grace=item.grace,
        topology=item.topology,
        checkpoint=item.checkpoint,
    )
