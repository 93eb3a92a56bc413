"""The log of a makeway in the background does not grow without end."""

from __future__ import annotations

from pathlib import Path

from makeway.cli.logfile import shorten


def test_a_long_log_is_set_aside_and_whoever_writes_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "makeway.log"
    with log.open("a") as writer:
        writer.write("old\n" * 100)
        writer.flush()
        shorten(log, most_bytes=50)
        writer.write("new\n")
    assert log.read_text() == "new\n"
    aside = tmp_path / "makeway.log.1"
    assert aside.read_text() == "old\n" * 100
    assert aside.stat().st_mode & 0o777 == 0o600


def test_a_short_log_and_none_are_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "makeway.log"
    shorten(log)
    log.write_text("few\n")
    shorten(log, most_bytes=50)
    assert [path.name for path in tmp_path.iterdir()] == ["makeway.log"]
