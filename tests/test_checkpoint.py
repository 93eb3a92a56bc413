"""`makeway.checkpointed()`: one line, no cost, never an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import makeway


def test_it_touches_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "checkpoint"
    monkeypatch.setenv("MAKEWAY_CHECKPOINT_FILE", str(file))

    assert makeway.checkpointed() is True
    assert makeway.checkpointed(saved_at=1000.0) is True

    assert file.stat().st_mtime == 1000.0


def test_outside_of_makeway_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAKEWAY_CHECKPOINT_FILE", raising=False)

    assert makeway.checkpointed() is False


def test_a_file_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAKEWAY_CHECKPOINT_FILE", str(tmp_path / "no" / "such" / "folder"))

    assert makeway.checkpointed() is False


def test_importing_makeway_loads_nothing_else() -> None:
    code = "import makeway, sys; makeway.checkpointed(); print([m for m in sys.modules if m.startswith(('aiohttp', 'numpy', 'msgspec', 'typer'))])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
