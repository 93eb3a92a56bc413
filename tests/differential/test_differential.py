"""A hundred random worlds, decided by kube-scheduler and by makeway; `python -m tests.differential` runs more."""

from __future__ import annotations

import asyncio
import os
import random

import pytest
from tools.control_plane import ControlPlane

from tests.differential.compare import Report, compare
from tests.e2e.backends import kube_available
from tests.e2e.harness import chosen_backend

WORLDS = 100
MANY_WORLDS = 1_000

pytestmark = pytest.mark.skipif(
    chosen_backend() != "kube"
    or not kube_available()
    or os.environ.get("MAKEWAY_CLUSTER") == "existing",
    reason="needs a control plane of its own: pytest --backend kube",
)


def decide_both(worlds: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The seed is printed whatever comes of it: a difference can be looked at again with `--only`."""
    seed = random.randrange(10**6)
    with capsys.disabled():
        print(f" {worlds} worlds from seed {seed} ", end="", flush=True)
    reports: list[Report] = []
    with ControlPlane.start(scheduler=True) as plane:
        for first in range(seed, seed + worlds, WORLDS):
            reports += [asyncio.run(compare(plane, range(first, first + WORLDS)))]
    print(*(report.summary() for report in reports), sep="\n")
    assert [line for report in reports for line in report.differences] == []
    # A comparison that never preempts or never waits compares nothing.
    assert all(min(r.bound, r.preempting, r.waiting) >= 5 for r in reports)


def test_schedulable_where_and_for_whom_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    decide_both(WORLDS, capsys)


@pytest.mark.slow
def test_so_it_is_in_a_thousand_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    decide_both(MANY_WORLDS, capsys)
