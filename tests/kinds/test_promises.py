"""What owners say about saving and restarting."""

from __future__ import annotations

import pytest

from makeway.control.durations import duration
from makeway.kinds.promises import checkpoint, min_pods, placed_by_others


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("2d", 172_800.0),
        ("250ms", 0.25),
        ("15", 15.0),
        ("1.5m", 90.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 parsecs", "m10", "inf", "nan"])
def test_what_is_no_duration(text: str) -> None:
    assert duration(text) is None


def test_the_first_place_that_speaks_of_a_subject_wins() -> None:
    on_job = {"makeway.dev/checkpoint-every": "10m", "makeway.dev/restart-takes": "2m"}
    on_pod = {"makeway.dev/checkpoint-every": "1m", "makeway.dev/patience": "5m"}
    found = checkpoint(on_job, on_pod)
    assert (found.every_s, found.restart_s, found.patience_s) == (600.0, 120.0, 300.0)


def test_what_nobody_can_read_counts_as_not_said() -> None:
    found = checkpoint(
        {"makeway.dev/restart-takes": "a while", "makeway.dev/last-checkpoint": "today"}
    )
    assert (found.restart_s, found.last_at) == (60.0, None)


def test_when_it_last_saved() -> None:
    assert checkpoint({"makeway.dev/last-checkpoint": "1970-01-01T00:01:00Z"}).last_at == 60.0


@pytest.mark.parametrize(("text", "number"), [("3", 3), ("0", None), ("-1", None), ("many", None)])
def test_min_pods_is_a_number_of_pods(text: str, number: int | None) -> None:
    assert min_pods({}, {"makeway.dev/min-pods": text}) == number


def test_nodes_chosen_elsewhere() -> None:
    assert placed_by_others({}, {"makeway.dev/placement": "external"})
    assert not placed_by_others({"makeway.dev/placement": "here"})
