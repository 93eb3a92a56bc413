"""The victim search loses no more than an exact solver would."""

from __future__ import annotations

from tests.optimum.__main__ import MEAN, P99, ratios, run


def test_victims_are_the_cheapest_on_two_hundred_clusters() -> None:
    outcomes = run(200, seed=0)

    assert [(o.case.seed, o.problem) for o in outcomes if o.problem] == []
    found = ratios(outcomes)
    assert sum(found) / len(found) <= MEAN
    assert found[int(len(found) * 0.99)] <= P99
