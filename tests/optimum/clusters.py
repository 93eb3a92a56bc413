"""Small clusters in which somebody has to fall, in four families. Plain facts: neither the engine nor the solver made them."""

from __future__ import annotations

import random
from typing import Literal

import msgspec

Family = Literal["single pods", "gangs over nodes", "gangs as victims", "quota and nodes"]
FAMILIES: tuple[Family, ...] = (
    "single pods",
    "gangs over nodes",
    "gangs as victims",
    "quota and nodes",
)


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that runs: its pods' nodes, and what one pod takes."""

    name: str
    priority: int
    nodes: tuple[int, ...]
    gpus: int
    cpus: int
    loss_s: int  # per GPU
    queue: str | None = None

    @property
    def total_gpus(self) -> int:
        return self.gpus * len(self.nodes)

    @property
    def loss_gpu_s(self) -> int:
        return self.loss_s * self.total_gpus


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    pods: int
    gpus: int
    cpus: int


class Case(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    family: Family
    gpus_per_node: int
    cpus_per_node: int
    node_count: int
    running: tuple[Running, ...]
    wanted: tuple[Wanted, ...]
    priority: int
    queue: str | None = None
    nominal: dict[str, int] = {}  # GPUs of each queue; all in one cohort


def generate(seed: int) -> Case:
    draw = random.Random(seed)
    family = FAMILIES[seed % len(FAMILIES)]
    gpus = draw.choice([4, 8])
    nodes = draw.randint(1, 6)
    cpus = gpus * 4
    running = tuple(_fill(draw, family, nodes, gpus, cpus))
    queued = family == "quota and nodes"
    nominal = _nominal(draw, running, nodes * gpus) if queued else {}
    wanted = _wanted(draw, family, gpus)
    return Case(
        seed=seed,
        family=family,
        gpus_per_node=gpus,
        cpus_per_node=cpus,
        node_count=nodes,
        running=running,
        wanted=wanted,
        priority=draw.choice([5, 10, 20]),
        queue="mine" if queued else None,
        nominal=nominal,
    )


def _fill(draw: random.Random, family: Family, nodes: int, gpus: int, cpus: int) -> list[Running]:
    free_gpus, free_cpus = [gpus] * nodes, [cpus] * nodes
    running: list[Running] = []
    for i in range(draw.randint(2, 14)):
        size = draw.choice([1, 1, 2, 2, 3, 4, gpus])
        cpu = draw.choice([1, size, size * 4])
        pods = 1
        if family in ("gangs as victims", "quota and nodes") and draw.random() < 0.6:
            pods = draw.randint(2, 4)
        where: list[int] = []
        for _ in range(pods):
            room = [n for n in range(nodes) if free_gpus[n] >= size and free_cpus[n] >= cpu]
            if not room:
                break
            node = draw.choice(room)
            free_gpus[node] -= size
            free_cpus[node] -= cpu
            where.append(node)
        if not where:
            continue
        running.append(
            Running(
                name=f"w{i:02d}",
                priority=draw.choice([0, 0, 0, 1, 5, 10, 15]),
                nodes=tuple(where),
                gpus=size,
                cpus=cpu,
                loss_s=draw.choice([60, draw.randint(60, 40_000), draw.randint(60, 40_000)]),
                queue=draw.choice(["mine", "other", "third"])
                if family == "quota and nodes"
                else None,
            )
        )
    return running


def _wanted(draw: random.Random, family: Family, gpus: int) -> tuple[Wanted, ...]:
    def one(pods: int) -> Wanted:
        size = draw.choice([1, 2, 4, gpus])
        return Wanted(pods=pods, gpus=size, cpus=draw.choice([1, size, size * 3]))

    if family == "single pods":
        return (one(1),)
    wanted = [one(draw.randint(1, 4))]
    if draw.random() < 0.3:
        wanted.append(one(draw.randint(1, 2)))
    return tuple(wanted)


def _nominal(draw: random.Random, running: tuple[Running, ...], total: int) -> dict[str, int]:
    """Quota that is about used up: what runs, moved between the queues a little, so that some borrow."""
    used = {
        q: sum(r.total_gpus for r in running if r.queue == q) for q in ("mine", "other", "third")
    }
    spare = draw.choice([0, 0, 1, 2, total])
    pool = sum(used.values()) + spare
    mine = draw.randint(0, pool)
    other = draw.randint(0, pool - mine)
    return {"mine": mine, "other": other, "third": pool - mine - other}
