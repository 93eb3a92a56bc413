"""The store: what is answered is on disk, versions only grow, watches resume, old files are brought forward."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from makeway.embedded import file
from makeway.embedded import store as store_module
from makeway.embedded.file import NewerFileError
from makeway.embedded.store import (
    Change,
    Entry,
    Store,
    StoreFailedError,
    TooOldError,
)


def entry(store: Store, name: str, **labels: str) -> Entry:
    version = store.next_version()
    body = msgspec.json.encode({"metadata": {"name": name, "uid": f"u-{name}", "labels": labels}})
    return Entry("ns", name, f"u-{name}", version, body, labels)


async def put(store: Store, name: str, **labels: str) -> Entry:
    made = entry(store, name, **labels)
    store.put("things", made)
    await store.committed(made.version)
    return made


async def test_objects_and_versions_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = Store(path)
    store.start()
    await put(store, "a")
    last = await put(store, "b", app="x")
    store.remove("things", entry(store, "a"))
    version = store.version
    store.stop()

    again = Store(path)
    assert [found.name for found in again.all("things")] == ["b"]
    assert again.get("things", "ns", "b") == last
    assert again.version == version


async def test_changes_are_told_only_when_they_are_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = Store(path)
    told: list[int] = []

    def listen(changes: list[Change]) -> None:
        on_disk = sqlite3.connect(path).execute("SELECT max(version) FROM log").fetchone()[0]
        assert all(change.version <= on_disk for change in changes)
        told.extend(change.version for change in changes)

    store.listen(listen)
    store.start()
    made = [entry(store, "n0")]
    store.put("things", made[0])
    assert told == []
    for number in range(1, 50):
        made.append(entry(store, f"n{number}"))
        store.put("things", made[-1])
    await store.committed(made[-1].version)
    assert told == [one.version for one in made]
    store.stop()


async def test_many_waiting_writers_are_all_answered(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    store.start()
    await asyncio.wait_for(asyncio.gather(*(put(store, f"n{i}") for i in range(500))), 20)
    assert store.count("things") == 500
    store.stop()


async def test_the_log_forgets_its_oldest_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LOG_LENGTH", 10)
    store = Store(tmp_path / "s.db")
    store.start()
    first = await put(store, "n0")
    for number in range(1, 20):
        await put(store, f"n{number}")
    with pytest.raises(TooOldError, match="too old resource version"):
        store.changes_since(first.version)
    assert len(store.changes_since(store.version - 10)) == 10
    store.stop()


async def test_a_change_after_a_restart_knows_the_state_before(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    store.start()
    first = await put(store, "a", app="x")
    await put(store, "a", app="y")
    store.stop()
    again = Store(tmp_path / "s.db")
    (change,) = again.changes_since(first.version)
    assert change.before is not None
    assert change.before.labels == {"app": "x"}
    assert change.known


async def test_a_disk_that_cannot_be_written_is_told_to_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    store = Store(tmp_path / "s.db")
    store.start()
    await put(store, "a")
    monkeypatch.setattr(file, "commit", full)
    with pytest.raises(StoreFailedError, match="disk is full"):
        await put(store, "b")
    with pytest.raises(StoreFailedError, match="disk is full"):
        await store.committed(store.version)
    store.stop()
    assert [found.name for found in Store(tmp_path / "s.db").all("things")] == ["a"]


_WRITER = """
import asyncio, sys
from pathlib import Path
import msgspec
from makeway.embedded.store import Entry, Store

async def main():
    store = Store(Path(sys.argv[1]))
    store.start()
    async def write(number):
        version = store.next_version()
        body = msgspec.json.encode({"metadata": {"name": f"n{number}", "uid": "u"}})
        store.put("things", Entry("", f"n{number}", "u", version, body, None))
        await store.committed(version)
        print(f"n{number} {version}", flush=True)
    for batch in range(10_000):
        await asyncio.gather(*(write(batch * 20 + i) for i in range(20)))

asyncio.run(main())
"""


def test_whatever_was_answered_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    answered: dict[str, int] = {}
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(150)]
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait()
        process.stdout.close()
        seen = {
            name: int(version)
            for name, version in (line.split() for line in lines if line.endswith("\n"))
        }
        store = Store(path)
        for name, version in seen.items():
            found = store.get("things", "", name)
            assert found is not None, name
            assert found.version == version
        assert not answered or min(seen.values()) > max(answered.values())
        answered = seen


def test_a_file_of_a_newer_makeway_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    Store(path)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(NewerFileError, match="schema version 99"):
        Store(path)


def test_a_migration_keeps_a_copy_of_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    Store(path)
    added = (*file.MIGRATIONS, "ALTER TABLE log ADD COLUMN note TEXT")
    monkeypatch.setattr(file, "MIGRATIONS", added)
    Store(path)
    backup = tmp_path / "s.db.before-2"
    assert backup.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
    database.close()
    with sqlite3.connect(backup) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
    database.close()
    Store(path)  # a second start migrates nothing


def test_a_file_that_is_mostly_empty_is_made_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "_WASTE_BYTES", 100_000)
    path = tmp_path / "store.db"
    file.open_file(path).close()
    with sqlite3.connect(path) as database:
        rows = [(n, "k", "", f"o{n}", "A", b"x" * 4000) for n in range(1, 500)]
        database.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)", rows)
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM log WHERE version < 490")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    before = path.stat().st_size
    file.open_file(path).close()
    assert path.stat().st_size < before / 5
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM log").fetchone() == (10,)
