"""A hundred random worlds, decided by kube-scheduler and by makeway; `python -m tests.differential` runs more."""

from __future__ import annotations

import os
import random

import pytest
from tools.control_plane import ControlPlane

from tests.differential.compare import compare
from tests.e2e.backends import kube_available
from tests.e2e.harness import chosen_backend

WORLDS = 100


@pytest.mark.skipif(
    chosen_backend() != "kube"
    or not kube_available()
    or os.environ.get("MAKEWAY_CLUSTER") == "existing",
    reason="needs a control plane of its own: pytest --backend kube",
)
async def test_schedulable_where_and_for_whom_is_the_same() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    with ControlPlane.start(scheduler=True) as plane:
        report = await compare(plane, range(seed, seed + WORLDS))
    print(report.summary())
    assert report.differences == [], f"seed {seed}"
    # A comparison that never preempts or never waits compares nothing.
    assert min(report.bound, report.preempting, report.waiting) >= 5
