"""The store's file: its tables, how they are brought forward from older versions, and what one commit writes.

Two tables: `objects` holds the latest state of each, `log` the latest changes with their content. A schema version is in the file;
before it is brought forward a copy of the old file is kept beside it.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import NamedTuple

_WAL_BYTES = 64 * 1024 * 1024
_WASTE_BYTES = 16 * 1024 * 1024  # less than this is not worth writing the file anew


class Write(NamedTuple):
    """One change on its way to the file."""

    version: int
    kind: str
    namespace: str
    name: str
    body: bytes | None  # None: deleted
    last: bytes  # for the log
    step: str  # A, M or D


# Each step takes the schema from the version before it. Never edit one that was released: add
# another.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE objects (
        kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
        version INTEGER NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY (kind, namespace, name)
    ) WITHOUT ROWID;
    CREATE TABLE log (
        version INTEGER PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT
        NULL, step TEXT NOT NULL, body BLOB NOT NULL
    );
    """,
)


class NewerFileError(Exception):
    """The file was written by a newer makeway; the text says what to do."""


def connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    # With group commit a full sync costs one flush for many writes, and a power cut loses nothing
    # answered.
    database.execute("PRAGMA synchronous = FULL")
    # A flood rewrites the same pages over and over: fold them into the file in larger steps (32 MiB).
    database.execute("PRAGMA wal_autocheckpoint = 8000")
    # What one burst made of the write-ahead log is given back after it.
    database.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    return database


def _compact(database: sqlite3.Connection) -> None:
    """Give back what old changes and deleted objects took, where that is much: before anybody is served."""
    free, pages, size = (
        int(database.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("freelist_count", "page_count", "page_size")
    )
    if free * size > _WASTE_BYTES and free * 2 > pages:
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def open_file(path: Path) -> sqlite3.Connection:
    existed = path.exists()
    if not existed:
        path.touch(mode=0o600)
    database = connect(path)
    try:
        _migrate(database, path, existed=existed)
        _compact(database)
    except BaseException:
        database.close()
        raise
    return database


def _migrate(database: sqlite3.Connection, path: Path, *, existed: bool) -> None:
    found: int = database.execute("PRAGMA user_version").fetchone()[0]
    if found > len(MIGRATIONS):
        raise NewerFileError(
            f"{path} has schema version {found}; this makeway knows up to {len(MIGRATIONS)}."
            " Use the newer makeway that wrote it, or restore one of the backups beside it."
        )
    for step in range(found, len(MIGRATIONS)):
        if existed and found:
            _back_up(database, path, step)
        database.executescript(
            f"BEGIN; {MIGRATIONS[step]}; PRAGMA user_version = {step + 1}; COMMIT;"
        )


def _back_up(database: sqlite3.Connection, path: Path, step: int) -> None:
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    backup = path.with_name(f"{path.name}.before-{step + 1}")
    shutil.copyfile(path, backup)
    backup.chmod(0o600)


def commit(database: sqlite3.Connection, batch: list[Write]) -> None:
    database.execute("BEGIN IMMEDIATE")
    database.executemany(
        "INSERT INTO log (version, kind, namespace, name, step, body) VALUES (?, ?, ?, ?, ?, ?)",
        [(w.version, w.kind, w.namespace, w.name, w.step, w.last) for w in batch],
    )
    # Several writes of one object in a batch need only the last one in the table.
    final = {(w.kind, w.namespace, w.name): w for w in batch}
    database.executemany(
        "INSERT OR REPLACE INTO objects (kind, namespace, name, version, body) VALUES (?, ?, ?,"
        " ?, ?)",
        [
            (w.kind, w.namespace, w.name, w.version, w.body)
            for w in final.values()
            if w.body is not None
        ],
    )
    database.executemany(
        "DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?",
        [(w.kind, w.namespace, w.name) for w in final.values() if w.body is None],
    )
    database.execute("COMMIT")


def prune(database: sqlite3.Connection, oldest: int) -> None:
    database.execute("DELETE FROM log WHERE version <= ?", (oldest,))
