"""The recordings, replayed: what a user sees here is what they see with the program they come from."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.e2e.harness import kubectl_path

ARCHIVES = Path(__file__).parent / "recordings"
ROOT = Path(__file__).parents[2]
AT_ONCE = "4"  # they wait more than they work

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(not kubectl_path(), reason="there is no kubectl on this machine"),
]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("recordings"))


def unpacked(folder: Path, archives: str = "*.tar.xz") -> Path:
    for file in sorted(ARCHIVES.glob(archives)):
        with tarfile.open(file) as archive:
            archive.extractall(folder, filter="data")
    return folder


def replay(folder: Path, *more: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.golden", str(folder), "-j", AT_ONCE, "-v", *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def counts(printed: str) -> dict[str, int]:
    last = printed.strip().splitlines()[-1]
    assert last.startswith("golden: "), printed[-2000:]
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}


def test_what_users_see_is_as_recorded(recordings: Path) -> None:
    code, printed = replay(recordings)
    found = counts(printed)
    assert found["situations"] == 72
    assert found["facts"] > 20_000
    assert found["wanted"] < found["facts"] / 10
    assert (found["different"], code) == (0, 0), printed


@pytest.mark.slow
def test_promises_hold_in_every_situation(recordings: Path) -> None:
    code, printed = replay(recordings, "--promises")
    assert code == 0, printed


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    code, printed = replay(tmp_path)
    assert code == 2
    assert "no situations" in printed
