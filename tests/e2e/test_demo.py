"""Every demo shows what it promises, and leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from makeway.cli.demo import DEMOS
from tests.e2e.cli import Makeway, alive, processes_about

MARK = "makeway-demo-"


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files of its own, so that other runs are not looked at."""
    with tempfile.TemporaryDirectory(prefix="mwd-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def nothing_left(scratch: Path) -> bool:
    return list(scratch.glob(f"{MARK}*")) == [] and processes_about(str(scratch)) == []


@pytest.mark.parametrize("name", sorted(set(DEMOS) - {"kueue"}))
def test_a_demo_ends_well_and_leaves_nothing(name: str, scratch: Path) -> None:
    told = json.loads(Makeway(scratch / "unused")("demo", name, "--json", timeout_s=120))

    assert told["demo"] == name
    assert any(step.get("why") for step in told["steps"]), "nobody says why somebody waits"
    for step in told["steps"]:
        assert not alive(step.get("pid", 2**22 + 1))
    assert nothing_left(scratch)


def test_the_default_demo_is_two_teams_with_real_processes(scratch: Path) -> None:
    said = Makeway(scratch / "unused")("demo", timeout_s=120)

    order = [
        "team-b-job   runs: process",
        "evicted for team-a-job (InCohortReclaimWhileBorrowing); cost:",
        "got SIGTERM and has ended",
        "team-a-job   runs: process",
        "Why does team-b-job wait?",
        "team-a-job   finished",
        "team-b-job   is back by itself: process",
        "Try next:",
    ]
    places = [said.find(words) for words in order]
    assert -1 not in places, said
    assert places == sorted(places)
    assert "\033[" not in said, "colours are for terminals"
    for pid in re.findall(r"process (\d+)", said):
        assert not alive(int(pid))
    assert nothing_left(scratch)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_cleans_up(number: signal.Signals, scratch: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "makeway.cli.main", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
        # Whoever runs the tests in the background ignores Ctrl-C, and would hand that down.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "team-b-job   runs" in line:
            break
    process.send_signal(number)
    process.communicate(timeout=60)

    assert process.returncode not in (0, None)
    deadline = time.monotonic() + 10
    while not nothing_left(scratch) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert nothing_left(scratch)
