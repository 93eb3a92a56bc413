"""When a CronJob is due."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from makeway.kinds.schedule import parse_schedule


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def after(schedule: str, text: str, zone: str = "UTC") -> str:
    found = parse_schedule(schedule).next_after(at(text, zone), ZoneInfo(zone))
    return datetime.fromtimestamp(found, ZoneInfo(zone)).isoformat()[:16] if found else "never"


@pytest.mark.parametrize(
    ("schedule", "before", "expected"),
    [
        ("*/5 * * * *", "2026-01-01T10:03", "2026-01-01T10:05"),
        ("*/5 * * * *", "2026-01-01T10:05", "2026-01-01T10:10"),
        ("0 9-17/4 * * *", "2026-01-01T10:03", "2026-01-01T13:00"),
        ("30 2 * * mon-fri", "2026-01-02T03:00", "2026-01-05T02:30"),
        ("0 0 1,15 * *", "2026-01-02T03:00", "2026-01-15T00:00"),
        ("0 0 13 * fri", "2026-02-01T00:00", "2026-02-06T00:00"),  # either will do
        ("0 0 29 2 *", "2026-03-01T00:00", "2028-02-29T00:00"),
        ("0 0 31 2 *", "2026-03-01T00:00", "never"),
        ("@daily", "2026-12-31T00:00", "2027-01-01T00:00"),
        ("@every 1h30m", "2026-01-01T10:00", "2026-01-01T11:30"),
        ("5/15 * * * *", "2026-01-01T10:06", "2026-01-01T10:20"),
        ("0 0 * jan sun", "2026-02-01T00:00", "2027-01-03T00:00"),
    ],
)
def test_the_next_time(schedule: str, before: str, expected: str) -> None:
    assert after(schedule, before) == expected


def test_clocks_that_change() -> None:
    berlin = "Europe/Berlin"
    assert after("30 2 * * *", "2026-03-28T12:00", berlin) == "2026-03-30T02:30"
    assert after("0 8 * * *", "2026-03-28T12:00", berlin) == "2026-03-29T08:00"
    # The hour from two to three comes twice.
    assert hours_between("30 2 * * *", "2026-10-24T12:00", berlin) == [14.5, 1.0, 24.0]
    assert hours_between("0 * * * *", "2026-10-25T01:30", berlin) == [0.5, 1.0, 1.0]
    # Midnight does not come.
    assert after("0 12 * * *", "2018-11-03T13:00", "America/Sao_Paulo") == "2018-11-04T12:00"


def hours_between(schedule: str, text: str, zone: str) -> list[float]:
    times = [at(text, zone)]
    for _ in range(3):
        found = parse_schedule(schedule).next_after(times[-1], ZoneInfo(zone))
        assert found is not None
        times.append(found)
    return [(later - earlier) / 3600 for earlier, later in pairwise(times)]


def last(schedule: str, since: str, now: str) -> str:
    found = parse_schedule(schedule).last_between(at(since), at(now), UTC)
    return datetime.fromtimestamp(found, UTC).isoformat()[:16] if found else "none"


def test_after_a_pause_the_last_time_is_what_counts() -> None:
    assert last("* * * * *", "2025-01-01T00:00", "2026-01-01T00:00:30") == "2026-01-01T00:00"
    assert last("0 0 1 1 *", "2020-06-01T00:00", "2025-12-31T00:00") == "2025-01-01T00:00"
    assert last("0 * * * *", "2026-01-01T10:00", "2026-01-01T10:59") == "none"
    assert last("@every 10m", "2026-01-01T10:00", "2026-01-01T10:25") == "2026-01-01T10:20"


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ("never", "expected exactly 5 fields, found 1: [never]"),
        ("60 * * * *", "end of range (60) above maximum (59): 60"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("5-3 * * * *", "beginning of range (5) beyond end of range (3): 5-3"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("x * * * *", "failed to parse int from x"),
        ("@often", "unrecognized descriptor: @often"),
    ],
)
def test_what_is_no_schedule_says_why(schedule: str, why: str) -> None:
    with pytest.raises(
        ValueError,
        match="^"
        + why.replace("(", r"\(").replace(")", r"\)").replace("*", r"\*").replace("[", r"\[")
        + "$",
    ):
        parse_schedule(schedule)
