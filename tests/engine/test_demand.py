"""What a workload asks of quota."""

from __future__ import annotations

import pytest

from makeway.engine.demand import counted, demands, largest_step, smaller_counts
from makeway.engine.policy import Policy, Transformation
from makeway.model.resources import MAX_AMOUNT
from tests.engine.build import workload


def test_pods_that_are_done_ask_for_nothing() -> None:
    (demand,) = demands(workload("w", 3, pods=4, reclaimable=(("main", 1),)))
    assert (demand.count, dict(demand.requests)) == (3, {"x": 9})


def test_absurd_requests_saturate() -> None:
    (demand,) = demands(workload("w", MAX_AMOUNT, pods=2))
    assert demand.requests["x"] == MAX_AMOUNT


@pytest.mark.parametrize(("step", "count"), [(0, 6), (1, 5), (4, 2)])
def test_partial_sizes_go_down_to_the_minimum(step: int, count: int) -> None:
    shrinks = workload("w", 1, pods=6, min_count=2)
    assert largest_step(shrinks) == 4
    assert smaller_counts(shrinks, step) == (count,)


def test_left_out_resources_do_not_count() -> None:
    policy = Policy(excluded_prefixes=("networking.example.com/",))
    assert counted({"cpu": 1000, "networking.example.com/vpc": 1}, policy) == {"cpu": 1000}


def test_one_resource_counts_as_others() -> None:
    slices = Transformation(
        input="nvidia.com/mig-1g.5gb",
        outputs=(("gpu-memory", 5), ("gpu-slices", 1)),
        replaces=True,
    )
    kept = Transformation(input="cpu", outputs=(("credits", 2),))
    each = Transformation(input="gpu", outputs=(("vram", 10),), multiply_by="shares")
    policy = Policy(transformations=(slices, kept, each))
    assert counted({"nvidia.com/mig-1g.5gb": 2}, policy) == {"gpu-memory": 10, "gpu-slices": 2}
    assert counted({"cpu": 1500}, policy) == {"cpu": 1500, "credits": 4}
    assert counted({"gpu": 2, "shares": 3}, policy) == {"gpu": 2, "shares": 3, "vram": 60}
