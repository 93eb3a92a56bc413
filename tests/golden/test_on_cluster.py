"""The recordings once more, on a real API server: a third of them always, all of them in `make long`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.backends import kube_available
from tests.e2e.harness import chosen_backend, kubectl_path
from tests.golden.test_recordings import ROOT, counts, unpacked

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(
        chosen_backend() != "kube" or not kube_available() or not kubectl_path(),
        reason="needs a real API server: pytest --backend kube",
    ),
]


def replay(folder: Path, *more: str) -> dict[str, int]:
    unpacked(folder, "recordings.tar.xz")
    command = [sys.executable, "-m", "tests.golden", str(folder), "--backend", "kube"]
    # They wait for graces and for quiet most of the time.
    done = subprocess.run(
        [*command, "-j", "3", "-v", *more], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print(done.stdout)
    return counts(done.stdout + done.stderr)


def test_what_users_see_on_a_cluster_is_as_recorded(tmp_path: Path) -> None:
    found = replay(tmp_path, "--tagged")
    assert found["situations"] == 21
    assert found["facts"] > 5_000
    assert found["different"] == 0


@pytest.mark.slow
def test_so_it_is_in_every_situation_that_needs_no_operator(tmp_path: Path) -> None:
    found = replay(tmp_path)
    assert found["situations"] >= 60
    assert found["different"] == 0
