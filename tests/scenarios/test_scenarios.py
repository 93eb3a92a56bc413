"""Runs every scenario under this folder through the Harness; `-k` picks one by its sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from makeway.engine.ledger import counted_pods
from makeway.engine.policy import Policy
from makeway.model.selectors import LabelSelector, Requirement
from makeway.model.workload import Budget, Checkpoint, PodShape, WorkloadId
from makeway.testing import Harness, amounts

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*/*.yaml"))


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A workload, running or submitted. `age`: seconds since its pods started. `node`: it is pinned there."""

    name: str
    queue: str | None = None
    priority: int = 0
    pods: int = 1
    gpus: int = 0
    cpus: float = 0
    gang: bool | int = True
    preempts: bool = True
    grace: float = 0.0
    age: float = 0.0
    node: str | None = None
    labels: dict[str, str] = {}
    topology: str | None = None
    saved_ago: float | None = None
    protected: str = ""
    lowers_to: int | None = None


class Nodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    count: int = 1
    gpus: int = 0
    cpus: float = 64
    labels: dict[str, str] = {}


class Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    policy: dict[str, Any] = {}
    nodes: list[Nodes] = []
    queues: dict[str, dict[str, Any]] = {}
    running: list[Item] = []
    used: dict[str, dict[str, float]] = {}  # local queue: what its status says, by resource
    budgets: dict[str, dict[str, Any]] = {}  # name: {labels, allowed}


class When(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    submit: list[Item] = []
    advance: float = 0.0


class Then(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    preempt: list[str] = []
    still_running: list[str] = []
    runs: list[str] = []
    waits: list[str] = []
    placed: dict[str, list[str]] = {}
    lowered: dict[str, int] = {}  # jobs that go on with so many pods, and hold quota for no more
    why: dict[str, str] = {}


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    given: Given
    when: When = When()
    then: Then


@pytest.mark.parametrize(
    "path", FILES, ids=lambda path: f"{path.parent.name}: {path.stem.replace('_', ' ')}"
)
def test_scenario(path: Path) -> None:
    scenario = msgspec.convert(yaml.safe_load(path.read_text()), Scenario)
    h = _arrange(scenario.given)
    for item in scenario.when.submit:
        _submit(h, item)
    h.advance(scenario.when.advance)
    h.cycle()
    fallen = h.preempted  # of the decision itself, before those who fell come back
    h.settle()
    _check(h, scenario.then, fallen)


def _arrange(given: Given) -> Harness:
    h = Harness(msgspec.convert(given.policy, Policy))
    for nodes in given.nodes:
        h.nodes(nodes.count, gpus=nodes.gpus, cpus=nodes.cpus, labels=nodes.labels)
    for name, options in given.queues.items():
        h.queue(name, **options)
    for item in given.running:
        _submit(h, item)
    h.settle()
    for item in given.running:
        h.put_started(item.name, h.now - item.age)
    for door, amounts_used in given.used.items():
        local = h.state.local_queues[f"default/{door}"]
        consumed = tuple(sorted(amounts_used.items()))
        h.advance(1.0)  # past who got in: those are part of what is said
        h.put(msgspec.structs.replace(local, consumed=consumed, sampled_at=h.now))
    for name, budget in given.budgets.items():
        wanted = tuple(
            Requirement(key=k, operator="In", values=(v,)) for k, v in budget["labels"].items()
        )
        h.put(
            Budget(
                id=f"default/{name}",
                namespace="default",
                selector=LabelSelector(requirements=wanted),
                allowed=budget["allowed"],
            )
        )
    assert h.preempted == [], "nobody falls before the story begins"
    return h


def _submit(h: Harness, item: Item) -> None:
    selector = (("kubernetes.io/hostname", item.node),) if item.node else ()
    shape = PodShape(
        namespace="default",
        requests=amounts(gpus=item.gpus, cpus=item.cpus),
        labels=tuple(sorted(item.labels.items())),
        node_selector=selector,
    )
    saved = None if item.saved_ago is None else h.now - item.saved_ago
    h.submit(
        item.name,
        queue=item.queue,
        priority=item.priority,
        pods=item.pods,
        gang=item.gang,
        preempts=item.preempts,
        grace=item.grace,
        topology=item.topology,
        shape=shape,
        checkpoint=Checkpoint(last_at=saved),
        protected=item.protected,
        lowers_to=item.lowers_to,
    )


def _check(h: Harness, then: Then, fallen: list[str]) -> None:
    assert sorted(fallen) == sorted(then.preempt)
    assert [name for name in then.still_running if name not in h.admitted] == []
    assert [name for name in then.runs if name not in h.admitted] == []
    assert [name for name in then.waits if name in h.admitted] == []
    for name, nodes in then.placed.items():
        assert h.placed(name) == sorted(nodes)
    for name, pods in then.lowered.items():
        held = h.state.ledger.get(WorkloadId(f"default/{name}"))
        assert held is not None
        assert counted_pods(held.workload) == len(h.placed(name)) == pods
    for name, text in then.why.items():
        assert text in h.why(name), h.why(name)
