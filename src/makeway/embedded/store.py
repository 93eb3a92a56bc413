"""Objects of the embedded API: bytes in memory, SQLite on disk, one resourceVersion over
everything.

A write changes memory at once, so that the next write builds on it, and goes to the writer thread,
which commits whatever has gathered in one transaction (group commit). Nobody hears of a write
before its commit: answers wait in `committed()`, and watchers get the change when it is on disk.
So whatever a client has seen survives `kill -9`, and no resourceVersion is ever used twice.

The change log keeps the latest changes with their content. A watch resumes from it, also after a
restart; who asks for something older gets 410 and lists again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from makeway.embedded import file
from makeway.embedded.file import Write

LOG_LENGTH = 20_000
LOG_BYTES = 64 * 1024 * 1024
# Deleting single rows all the time would double the work of a write; the log is cut in slices
# instead.
_PRUNE_EVERY = 2_000

Key = tuple[str, str]  # namespace, name

_decode = msgspec.json.Decoder().decode

logger = logging.getLogger(__name__)


class Entry(msgspec.Struct, gc=False):
    """One object in one state, never changed. `body` is its JSON without `kind` and `apiVersion`.

    `fields` is a memory of texts that field selectors have read from the body.
    """

    namespace: str
    name: str
    uid: str
    version: int
    body: bytes
    labels: dict[str, str] | None
    fields: dict[tuple[str, ...], str] | None = None

    def decode(self) -> dict[str, Any]:
        obj: dict[str, Any] = _decode(self.body)
        return obj


class Change(msgspec.Struct, frozen=True, gc=False):
    """One step of an object. `before` is None for a new one, `after` for one that is gone.

    `last` is what a watcher is shown: the new state, or the final one with the deletion's version.
    `known` is False when the state before was lost with the older part of the log.
    """

    version: int
    kind: str
    before: Entry | None
    after: Entry | None
    last: (
        Entry  # what a watcher is shown: the new state, or the last one with the deletion's version
    )
    known: bool = True


class TooOldError(Exception):
    """The log no longer reaches back to the version that was asked for."""

    def __init__(self, asked: int, oldest: int) -> None:
        self.asked = asked
        self.oldest = oldest
        super().__init__(f"too old resource version: {asked} ({oldest})")


class StoreFailedError(Exception):
    """The disk cannot be written. Memory is ahead of it, so nothing is answered until a restart."""


Listener = Callable[[list[Change]], None]


class Store:
    """All objects. Used from one event loop; only the writer runs elsewhere."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._objects: dict[str, dict[Key, Entry]] = {}
        self._order: dict[str, list[Key]] = {}  # of kinds that were listed since one came or went
        self._version = 1
        self._committed = 1
        self._log: deque[Change] = deque()
        self._log_bytes = 0
        self._oldest = 1  # watches may start from this version or later
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._fresh: deque[Change] = deque()  # in memory, not yet committed
        self._listeners: list[Listener] = []
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        database = file.open_file(path)
        try:
            self._load(database)
        finally:
            database.close()

    # ---- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to write. Call on the loop that will use the store."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write_forever, name="store", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what is waiting, then end."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def listen(self, listener: Listener) -> None:
        """Be told of every batch of committed changes, in order."""
        self._listeners.append(listener)

    # ---- reading ---------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._version

    @property
    def committed_version(self) -> int:
        return self._committed

    def get(self, kind: str, namespace: str, name: str) -> Entry | None:
        return self._objects.get(kind, {}).get((namespace, name))

    def all(self, kind: str, namespace: str = "") -> Iterator[Entry]:
        found = self._objects.get(kind, {})
        if not namespace:
            return iter(found.values())
        return (entry for (where, _), entry in found.items() if where == namespace)

    def sorted(self, kind: str, namespace: str = "", after: Key | None = None) -> Iterator[Entry]:
        """By namespace and name, as lists are answered; from behind `after`, where a page ended."""
        found = self._objects.get(kind, {})
        order = self._ordered(kind)
        for position in _span(order, namespace, after):
            yield found[order[position]]

    def count_after(self, kind: str, namespace: str, after: Key) -> int:
        return len(_span(self._ordered(kind), namespace, after))

    def _ordered(self, kind: str) -> list[Key]:
        """Sorted once for all pages of a list, until an object comes or goes."""
        order = self._order.get(kind)
        if order is None:
            order = self._order[kind] = sorted(self._objects.get(kind, {}))
        return order

    def count(self, kind: str) -> int:
        return len(self._objects.get(kind, {}))

    def changes_since(self, version: int) -> list[Change]:
        """Committed changes after a version, or TooOldError."""
        if version < self._oldest:
            raise TooOldError(version, self._oldest)
        found: list[Change] = []
        for change in reversed(self._log):
            if change.version <= version:
                break
            if change.version <= self._committed:
                found.append(change)
        found.reverse()
        return found

    async def committed(self, version: int) -> None:
        """Return when everything up to a version is on disk."""
        if version <= self._committed:
            return
        if self._failure is not None:
            raise StoreFailedError(f"the store cannot write: {self._failure}") from self._failure
        assert self._loop is not None
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((version, future))
        await future

    # ---- writing ---------------------------------------------------------------------------------

    def next_version(self) -> int:
        """The version that the next write will have; the caller puts it into the body."""
        return self._version + 1

    def put(self, kind: str, entry: Entry) -> None:
        """Create or replace; `entry.version` is `next_version()`."""
        assert entry.version == self._version + 1, "versions are handed out one by one"
        found = self._objects.setdefault(kind, {})
        key = (entry.namespace, entry.name)
        before = found.get(key)
        found[key] = entry
        if before is None:
            self._order.pop(kind, None)
        self._record(Change(entry.version, kind, before, entry, entry), "M" if before else "A")

    def remove(self, kind: str, last: Entry) -> None:
        """Delete; `last` is the final state, whose version is `next_version()`."""
        assert last.version == self._version + 1, "versions are handed out one by one"
        before = self._objects.get(kind, {}).pop((last.namespace, last.name), None)
        self._order.pop(kind, None)
        self._record(Change(last.version, kind, before, None, last), "D")

    def _record(self, change: Change, step: str) -> None:
        self._version = change.version
        last = change.last
        self._append(change)
        self._fresh.append(change)
        body = last.body if change.after is not None else None
        self._queue.put(
            Write(change.version, change.kind, last.namespace, last.name, body, last.body, step)
        )

    def _append(self, change: Change) -> None:
        self._log.append(change)
        self._log_bytes += len(change.last.body)
        while len(self._log) > LOG_LENGTH or (self._log_bytes > LOG_BYTES and len(self._log) > 1):
            dropped = self._log.popleft()
            self._log_bytes -= len(dropped.last.body)
            self._oldest = dropped.version

    # ---- the writer thread -----------------------------------------------------------------------

    def _write_forever(self) -> None:
        database = file.connect(self._path)
        pruned = self._oldest
        try:
            while True:
                batch, ending = self._gather()
                if batch:
                    file.commit(database, batch)
                    self._tell(batch[-1].version)
                if ending:
                    return
                if self._oldest - pruned > _PRUNE_EVERY:
                    pruned = self._oldest
                    file.prune(database, pruned)
        except BaseException as error:
            self._fail(error)
        finally:
            database.close()

    def _gather(self) -> tuple[list[Write], bool]:
        """Wait for a write, then take whatever else is there: one transaction for all of it."""
        first = self._queue.get()
        if first is None:
            return [], True
        batch = [first]
        with contextlib.suppress(queue.Empty):
            while len(batch) < 1000:
                item = self._queue.get_nowait()
                if item is None:
                    return batch, True
                batch.append(item)
        return batch, False

    def _tell(self, version: int) -> None:
        assert self._loop is not None
        # The loop is closed when the process ends while the last batch is being written.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_commit, version)

    def _on_commit(self, version: int) -> None:
        self._committed = version
        changes: list[Change] = []
        while self._fresh and self._fresh[0].version <= version:
            changes.append(self._fresh.popleft())
        for listener in self._listeners:
            listener(changes)
        while self._waiting and self._waiting[0][0] <= version:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """A disk that cannot be written ends the service: memory is ahead of it and must not be
        believed.
        """
        self._failure = error
        logger.error("the store cannot write: %s", error)
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._fail_waiting)

    def _fail_waiting(self) -> None:
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(StoreFailedError(f"the store cannot write: {self._failure}"))

    # ---- loading ---------------------------------------------------------------------------------

    def _load(self, database: sqlite3.Connection) -> None:
        for kind, namespace, name, version, body in database.execute(
            "SELECT kind, namespace, name, version, body FROM objects"
        ):
            entry = make_entry(namespace, name, version, body)
            self._objects.setdefault(kind, {})[namespace, name] = entry
            self._version = max(self._version, version)
        self._load_log(database)
        self._committed = self._version

    def _load_log(self, database: sqlite3.Connection) -> None:
        states: dict[tuple[str, str, str], Entry | None] = {}
        rows = database.execute(
            "SELECT version, kind, namespace, name, step, body FROM log ORDER BY version DESC"
            " LIMIT ?",
            (LOG_LENGTH,),
        ).fetchall()
        rows.reverse()
        if rows:
            # The first row's own change can be replayed, so a watch may start just before it.
            self._oldest = rows[0][0] - 1
        for version, kind, namespace, name, step, body in rows:
            last = make_entry(namespace, name, version, body)
            known = step == "A" or (kind, namespace, name) in states
            before = states.get((kind, namespace, name)) if step != "A" else None
            after = None if step == "D" else last
            states[kind, namespace, name] = after
            self._append(Change(version, kind, before, after, last, known))
            self._version = max(self._version, version)
        if not rows:
            self._oldest = self._version


def _span(order: list[Key], namespace: str, after: Key | None) -> range:
    """Where the objects of a namespace (or all) stand in the order, from behind `after`."""
    start = bisect_right(order, after) if after else 0
    if not namespace:
        return range(start, len(order))
    # No name starts with the highest character.
    end = bisect_left(order, (namespace, "\U0010ffff"))
    return range(max(start, bisect_left(order, (namespace, ""))), end)


class _Metadata(msgspec.Struct):
    uid: str = ""
    labels: dict[str, str] | None = None


class _Shell(msgspec.Struct):
    metadata: _Metadata


_shell = msgspec.json.Decoder(_Shell)


def make_entry(namespace: str, name: str, version: int, body: bytes) -> Entry:
    metadata = _shell.decode(body).metadata
    return Entry(namespace, name, metadata.uid, version, body, metadata.labels)
