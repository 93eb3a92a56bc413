"""Who else could have fallen is written down with why it did not: as much as was looked at, and no more than a few."""

from __future__ import annotations

import pytest

from makeway.model.workload import Checkpoint
from makeway.testing import Harness


def cluster(queue: str | None = None, nodes: int = 3) -> Harness:
    """A node each for `a` and `b`, and one for `c` and `d` together."""
    h = Harness()
    h.nodes(nodes, gpus=4)
    h.queue("research", gpus=4 * nodes)
    for name, gpus, restart_s in (
        ("a", 4, 1000.0),
        ("b", 4, 200.0),
        ("c", 2, 300.0),
        ("d", 2, 50.0),
    ):
        h.submit(name, gpus=gpus, queue=queue, checkpoint=Checkpoint(restart_s=restart_s))
        h.settle()
    return h


def alternatives(h: Harness) -> dict[tuple[str, ...], str]:
    (hold,) = h.last.holds
    return {other.victims: other.because for other in hold.alternatives}


@pytest.mark.parametrize("queue", [None, "research"])
@pytest.mark.parametrize("pods", [1, 2])
def test_what_the_other_nodes_would_have_cost_is_named(queue: str | None, pods: int) -> None:
    h = cluster(queue)
    h.submit("urgent", queue=queue, pods=pods, gpus=4 // pods, priority=9)
    h.cycle()
    assert h.preempted == ["d", "c"]
    assert alternatives(h) == {
        ("default/b",): "loses 100 GPU-seconds more",
        ("default/a",): "loses 3300 GPU-seconds more",
    }


def test_more_victims_for_the_same_step_of_loss_are_named_as_such() -> None:
    h = Harness()
    h.nodes(2, gpus=2)
    for name, gpus, loss_s in (("one", 1, 61.0), ("two", 1, 20.0), ("large", 2, 119.0)):
        h.submit(name, gpus=gpus, checkpoint=Checkpoint(restart_s=loss_s / gpus))
        h.cycle()
    h.submit("urgent", gpus=2, priority=9)
    h.cycle()
    assert h.preempted == ["large"]
    assert alternatives(h) == {("default/two", "default/one"): "2 workloads instead of 1"}


def test_who_may_not_fall_is_no_alternative() -> None:
    h = cluster()
    h.submit("strong", gpus=0, cpus=1, priority=99)
    h.submit("urgent", gpus=4, priority=9)
    h.cycle()
    assert ("default/strong",) not in alternatives(h)


def test_of_many_only_a_few_are_named() -> None:
    h = Harness()
    h.nodes(30, gpus=1)
    for i in range(30):
        h.submit(f"w{i:02d}", gpus=1, checkpoint=Checkpoint(restart_s=100.0 * (i + 1)))
    h.settle()
    h.submit("urgent", gpus=1, priority=9)
    h.cycle()
    assert h.preempted == ["w00"]
    assert list(alternatives(h)) == [("default/w01",), ("default/w02",), ("default/w03",)]


def test_where_racks_count_the_next_best_is_named_too() -> None:
    """Rules about topology are not solved by arrays, but by the search."""
    h = Harness()
    for rack in "xyz":
        h.nodes(2, gpus=2, labels={"rack": rack})
    for name, pods, restart_s in (
        ("near", 2, 100.0),
        ("far", 2, 150.0),
        ("one", 1, 60.0),
        ("two", 1, 60.0),
    ):
        saves = Checkpoint(restart_s=restart_s)
        h.submit(name, pods=pods, gpus=2, topology="rack", checkpoint=saves)
        h.settle()
    h.submit("urgent", pods=2, gpus=2, topology="rack", priority=9)
    h.cycle()
    assert h.preempted == ["two", "one"]
    assert alternatives(h) == {("default/near",): "loses 160 GPU-seconds more"}
