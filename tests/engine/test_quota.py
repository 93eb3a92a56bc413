"""How much a queue may use now: the tree of A1, limits, cycles, and undo."""

from __future__ import annotations

import pytest

from makeway.engine.quota import borrowing_height
from makeway.engine.state import State
from makeway.model.resources import MAX_AMOUNT
from tests.engine.build import FX, cohort, queue, running, state


@pytest.fixture
def tree() -> State:
    return state(
        cohort("root", "4"),
        cohort("left", "2/3/1", parent="root"),
        queue("a", "6/2/4", cohort="left"),
        queue("b", "3", cohort="left"),
        queue("c", "5/0", cohort="root"),
        running("a1", "a", 5),
        running("b1", "b", 4),
        running("c1", "c", 3),
    )


def test_subtree_quota_counts_what_children_lend(tree: State) -> None:
    nodes = tree.ledger.tree
    assert {name: node.quota(FX) for name, node in nodes.queues.items()} == {"a": 6, "b": 3, "c": 5}
    assert {name: node.quota(FX) for name, node in nodes.cohorts.items()} == {"root": 10, "left": 9}
    assert nodes.queues["a"].local[FX] == 2
    assert nodes.cohorts["left"].local[FX] == 8


def test_usage_above_the_hidden_part_is_seen_by_the_parent(tree: State) -> None:
    cohorts = tree.ledger.tree.cohorts
    assert cohorts["left"].used(FX) == 7
    assert cohorts["root"].used(FX) == 3


def test_available_and_potential(tree: State) -> None:
    queues = tree.ledger.tree.queues
    assert [queues[name].available(FX) for name in "abc"] == [3, 5, 2]
    assert tree.ledger.tree.cohorts["root"].available(FX) == 7
    assert [queues[name].potential(FX) for name in "abc"] == [8, 12, 5]


def test_three_more_in_a_reach_the_root(tree: State) -> None:
    with tree.ledger.what_if():
        tree.ledger.add_usage("a", {FX: 3})
        queues, cohorts = tree.ledger.tree.queues, tree.ledger.tree.cohorts
        assert (cohorts["left"].used(FX), cohorts["root"].used(FX)) == (10, 5)
        assert [queues[name].available(FX) for name in "abc"] == [0, 2, 2]


def test_removing_takes_back_exactly_what_adding_gave(tree: State) -> None:
    before = {n: dict(c.usage) for n, c in tree.ledger.tree.cohorts.items()}
    tree.ledger.add_usage("a", {FX: 3})
    tree.ledger.remove_usage("a", {FX: 3})
    assert {n: dict(c.usage) for n, c in tree.ledger.tree.cohorts.items()} == before


def test_what_if_undoes_itself_when_it_fails(tree: State) -> None:
    before = dict(tree.ledger.queue("a").usage)
    held = tree.ledger.held_in("a")

    def fail() -> None:
        with tree.ledger.what_if():
            tree.ledger.release(next(iter(held)))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert tree.ledger.queue("a").usage == before
    assert [h.workload.name for h in tree.ledger.held_in("a").values()] == ["a1"]


def test_what_ifs_nest(tree: State) -> None:
    ledger = tree.ledger
    with ledger.what_if():
        ledger.add_usage("b", {FX: 1})
        with ledger.what_if():
            ledger.add_usage("b", {FX: 1})
            assert ledger.queue("b").used(FX) == 6
        assert ledger.queue("b").used(FX) == 5
    assert ledger.queue("b").used(FX) == 4


def test_borrowing_height_is_the_lowest_cohort_that_holds_it(tree: State) -> None:
    b = tree.ledger.queue("b")
    assert borrowing_height(b, FX, 2) == (1, True)  # left still holds it
    assert borrowing_height(b, FX, 4) == (2, False)  # only root does
    assert borrowing_height(tree.ledger.queue("c"), FX, 2) == (0, True)  # its own


def test_a_queue_without_cohort_has_its_own_and_nothing_else() -> None:
    alone = state(queue("alone", "5"), running("w", "alone", 7))
    node = alone.ledger.queue("alone")
    assert node.available(FX) == -2
    assert node.free(FX) == 0
    assert borrowing_height(node, FX, 1) == (0, False)


def test_a_cohort_that_is_only_named_exists_without_quota() -> None:
    shared = state(queue("a", "2", cohort="team"), queue("b", "3", cohort="team"))
    assert shared.ledger.tree.cohorts["team"].quota(FX) == 5
    assert shared.ledger.queue("a").available(FX) == 5


def test_a_cohort_cycle_stops_its_queues_and_nobody_else() -> None:
    broken = state(
        cohort("one", parent="two"),
        cohort("two", parent="one"),
        cohort("below", parent="one"),
        queue("in-cycle", "2", cohort="one"),
        queue("under-cycle", "2", cohort="below"),
        queue("fine", "2", cohort="three"),
    )
    names = sorted(broken.queues)
    assert [name for name in names if not broken.is_active(name)] == ["in-cycle", "under-cycle"]
    assert "cycle" in broken.inactive_because(names[1])


def test_absurd_quotas_saturate() -> None:
    huge = state(
        queue("a", str(MAX_AMOUNT), cohort="team"), queue("b", str(MAX_AMOUNT), cohort="team")
    )
    assert huge.ledger.tree.cohorts["team"].quota(FX) == MAX_AMOUNT
    assert huge.ledger.queue("a").potential(FX) == MAX_AMOUNT
