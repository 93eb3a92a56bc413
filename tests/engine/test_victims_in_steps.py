"""Losses count in steps of 60 GPU-seconds, then fewer victims, then younger ones: with few candidates and with many."""

from __future__ import annotations

import itertools
import random

import pytest

from makeway.model.workload import Checkpoint
from makeway.testing import Harness

STEP_S = 60.0


def steps(loss_s: float) -> int:
    return -(-round(loss_s * 1000) // 60_000)


def running(h: Harness, name: str, *, gpus: int, loss_s: float, node: int) -> None:
    """Younger the later it is put; loses what is said here, whatever its age."""
    h.submit(name, gpus=gpus, checkpoint=Checkpoint(restart_s=loss_s / gpus, last_at=h.now + 10**6))
    h.cycle()
    assert h.placed(name) == [f"node-{node}"], "each fills up its node before the next is used"
    h.advance(1.0)


@pytest.mark.parametrize("spare_nodes", [0, 40])
def test_one_victim_of_a_little_more_loss_falls_instead_of_two(spare_nodes: int) -> None:
    h = Harness()
    for node in range(spare_nodes):  # dear ones, so that there is much to choose from
        h.nodes(1, gpus=2)
        running(h, f"dear-{node}", gpus=2, loss_s=9_000.0, node=node)
    h.nodes(1, gpus=2)
    running(h, "small-1", gpus=1, loss_s=61.0, node=spare_nodes)
    running(h, "small-2", gpus=1, loss_s=20.0, node=spare_nodes)
    h.nodes(1, gpus=2)
    running(h, "large", gpus=2, loss_s=119.0, node=spare_nodes + 1)
    h.submit("urgent", gpus=2, priority=9)
    h.cycle()
    assert h.preempted == ["large"]


@pytest.mark.parametrize("spare_nodes", [0, 40])
def test_of_equal_steps_the_youngest_falls(spare_nodes: int) -> None:
    h = Harness()
    for node in range(spare_nodes):
        h.nodes(1, gpus=1)
        running(h, f"dear-{node}", gpus=1, loss_s=9_000.0, node=node)
    losses = {"old": 61.0, "young": 100.0, "too-dear": 121.0}
    for i, (name, loss_s) in enumerate(losses.items()):
        h.nodes(1, gpus=1)
        running(h, name, gpus=1, loss_s=loss_s, node=spare_nodes + i)
    h.submit("urgent", gpus=1, priority=9)
    h.cycle()
    assert h.preempted == ["young"]


def test_who_loses_nothing_falls_before_who_loses_a_second() -> None:
    h = Harness()
    for node, (name, loss_s) in enumerate({"saved": 0.0, "nearly": 1.0}.items()):
        h.nodes(1, gpus=1)
        running(h, name, gpus=1, loss_s=loss_s, node=node)
    h.submit("urgent", gpus=1, priority=9)
    h.cycle()
    assert h.preempted == ["saved"]


@pytest.mark.parametrize("seed", range(60))
def test_no_set_is_better_in_steps_and_number(seed: int) -> None:
    draw = random.Random(seed)
    h = Harness()
    sizes: dict[str, tuple[int, float, int]] = {}
    nodes = draw.randint(2, 4)
    for node in range(nodes):
        h.nodes(1, gpus=4)
        free = 4
        while free:
            gpus = draw.choice([g for g in (1, 2, 4) if g <= free])
            name = f"w{len(sizes):02d}"
            loss_s = draw.choice([30.0, 70.0, 100.0, 150.0]) + draw.randint(0, 9)
            running(h, name, gpus=gpus, loss_s=loss_s, node=node)
            sizes[name] = (gpus, loss_s, node)
            free -= gpus
    pods = draw.choice([1, 1, 2])
    h.submit("urgent", pods=pods, gpus=4, priority=9)
    h.cycle()

    def worth(fallen: tuple[str, ...]) -> tuple[int, int]:
        return steps(sum(sizes[name][1] for name in fallen)), len(fallen)

    def clears(fallen: tuple[str, ...]) -> bool:
        left = [4] * nodes
        for name in fallen:
            left[sizes[name][2]] -= sizes[name][0]
        return left.count(0) >= pods

    every = (each for n in range(1, len(sizes) + 1) for each in itertools.combinations(sizes, n))
    best = min(worth(each) for each in every if clears(each))
    assert worth(tuple(h.preempted)) == best
