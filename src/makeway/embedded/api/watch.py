"""Watches: every committed change goes to those who asked for it.

Watchers that want the same objects in the same form are one audience: what a batch of changes means to them is found and encoded
once, however many they are. A watcher owns a queue of ready lines. Whoever reads too slowly is cut off when its queue grows too long;
the client lists again, as it must be able to anyway.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable

from makeway.embedded.api.forms import Form
from makeway.embedded.api.http import Request, Send, encode, warning_header
from makeway.embedded.api.lists import select_all
from makeway.embedded.api.selectors import Selection
from makeway.embedded.store import Change, Entry, Store, TooOldError
from makeway.kinds.serving.refusal import Refusal

# A list of 20,000 pods is about as long; a hundred watchers that stand still then cost no more than memory has.
MAX_PENDING = 16 * 1024 * 1024
BOOKMARK_EVERY_S = 60.0
# As upstream: a watch without a timeout of its own ends after half an hour to an hour.
DEFAULT_TIMEOUT_S = 45 * 60
# What a send costs is paid for each watcher. Where many listen, what happens within a moment goes out together; the few that
# keep a cluster going hear at once.
FEW = 16
PAUSE_PER_WATCHER_S = 0.0005
LONGEST_PAUSE_S = 0.05


class Watcher:
    __slots__ = ("_pending", "_pending_bytes", "_ready", "_waking", "ended", "form", "selection")

    def __init__(self, form: Form, selection: Selection) -> None:
        self.form = form
        self.selection = selection
        self.ended = False
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._ready = asyncio.Event()
        self._waking = False

    def push(self, lines: bytes, pause_s: float = 0.0) -> None:
        """Lines to send, now or after a pause in which others may join them."""
        if self.ended:
            return
        self._pending.append(lines)
        self._pending_bytes += len(lines)
        if self._pending_bytes > MAX_PENDING:
            # Nobody will read it any more, so it is not kept either.
            self._pending.clear()
            self._pending_bytes = 0
            self.end()
        if not pause_s:
            self._ready.set()
        elif not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_later(pause_s, self._wake)

    def _wake(self) -> None:
        self._waking = False
        self._ready.set()

    def end(self) -> None:
        self.ended = True
        self._ready.set()

    async def take(self, timeout_s: float) -> bytes:
        """Everything that is ready, joined; empty after the timeout."""
        if not self._ready.is_set():
            timer = asyncio.get_running_loop().call_later(timeout_s, self._ready.set)
            try:
                await self._ready.wait()
            finally:
                timer.cancel()
        lines = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._ready.clear()
        return lines


def step_for(selection: Selection, change: Change) -> tuple[str, Entry] | None:
    """What a change looks like through a selection, which an object may enter and leave."""
    is_in = change.after is not None and selection(change.after)
    if not change.known:
        return _step_without_past(selection, change, is_in=is_in)
    was_in = change.before is not None and selection(change.before)
    if is_in:
        return ("MODIFIED" if was_in else "ADDED"), change.last
    return ("DELETED", change.last) if was_in else None


def _step_without_past(
    selection: Selection, change: Change, *, is_in: bool
) -> tuple[str, Entry] | None:
    """The state before was lost with the older part of the log: say what is safe to hear twice."""
    if is_in:
        return "MODIFIED", change.last
    in_reach = not selection.namespace or change.last.namespace == selection.namespace
    return ("DELETED", change.last) if in_reach else None


class Audience:
    """Watchers that hear the same of everything."""

    __slots__ = ("form", "selection", "watchers")

    def __init__(self, form: Form, selection: Selection) -> None:
        self.form = form
        self.selection = selection
        self.watchers: set[Watcher] = set()

    def tell(self, changes: list[Change]) -> None:
        steps = [step_for(self.selection, change) for change in changes]
        lines = b"".join([self.form.event(*step) for step in steps if step is not None])
        if lines:
            pause_s = self._pause_s()
            for watcher in self.watchers:
                watcher.push(lines, pause_s)

    def _pause_s(self) -> float:
        listening = len(self.watchers)
        return 0.0 if listening <= FEW else min(listening * PAUSE_PER_WATCHER_S, LONGEST_PAUSE_S)


class Hub:
    """Hands changes to watchers, by the kind of object that they watch."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._audiences: dict[str, dict[Hashable, Audience]] = {}
        self._closed = False
        store.listen(self.publish)

    def publish(self, changes: list[Change]) -> None:
        by_kind: dict[str, list[Change]] = {}
        for change in changes:
            if change.kind in self._audiences:
                by_kind.setdefault(change.kind, []).append(change)
        for kind, found in by_kind.items():
            for audience in self._audiences[kind].values():
                audience.tell(found)

    def add(self, watcher: Watcher) -> None:
        form, selection = watcher.form, watcher.selection
        audiences = self._audiences.setdefault(form.kind.store_key, {})
        audience = audiences.setdefault((form.shape, selection.key), Audience(form, selection))
        audience.watchers.add(watcher)
        if self._closed:
            watcher.end()

    def discard(self, watcher: Watcher) -> None:
        kind, key = watcher.form.kind.store_key, (watcher.form.shape, watcher.selection.key)
        audiences = self._audiences[kind]
        audiences[key].watchers.discard(watcher)
        if not audiences[key].watchers:
            del audiences[key]
        if not audiences:
            del self._audiences[kind]

    def close(self) -> None:
        """End every watch now: the server is going down."""
        self._closed = True
        for audiences in self._audiences.values():
            for audience in audiences.values():
                for watcher in audience.watchers:
                    watcher.end()

    # ---- one watch, from request to end ----------------------------------------------------------

    async def serve(self, request: Request, send: Send, form: Form, selection: Selection) -> None:
        watcher = Watcher(form, selection)
        try:
            first = await self._first_lines(request, form, selection)
        except TooOldError as error:
            await self._too_old(send, error, request)
            return
        # Registered without a pause after the first lines were gathered, so that no change falls
        # between.
        self.add(watcher)
        try:
            await _start(send, request.warnings)
            await self._stream(request, send, watcher, first)
        finally:
            self.discard(watcher)

    async def _first_lines(self, request: Request, form: Form, selection: Selection) -> bytes:
        """What happened (or existed) before the watch began."""
        asked = request.query.get("resourceVersion", "")
        initial = request.flag("sendInitialEvents")
        if initial and request.query.get("resourceVersionMatch") != "NotOlderThan":
            raise Refusal(
                422,
                "Invalid",
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting"
                " resourceVersionMatch to NotOlderThan",
            )
        store = self._store
        if initial or asked in ("", "0"):
            await store.committed(store.version)
            found = select_all(store, form.kind, selection)
            lines = [form.event("ADDED", entry) for entry in found]
            if initial and request.flag("allowWatchBookmarks"):
                lines.append(form.bookmark(store.version, initial_end=True))
            # Between the await above and here nothing else ran, so memory and disk agree.
            return b"".join(lines)
        version = _version(asked)
        if version > store.version:
            # From a future that this store never had: the client must list again.
            raise TooOldError(version, store.version)
        lines = []
        for change in store.changes_since(version):
            if (
                change.kind == form.kind.store_key
                and (step := step_for(selection, change)) is not None
            ):
                lines.append(form.event(*step))
        return b"".join(lines)

    async def _too_old(self, send: Send, error: TooOldError, request: Request) -> None:
        refusal = Refusal(410, "Expired", str(error))
        await _start(send, request.warnings)
        line = encode({"type": "ERROR", "object": refusal.status()}) + b"\n"
        await send({"type": "http.response.body", "body": line})

    async def _stream(self, request: Request, send: Send, watcher: Watcher, first: bytes) -> None:
        loop = asyncio.get_running_loop()
        timeout_s = request.number("timeoutSeconds") or DEFAULT_TIMEOUT_S
        deadline = loop.time() + timeout_s
        bookmarks = request.flag("allowWatchBookmarks")
        gone = asyncio.ensure_future(request.disconnected())
        gone.add_done_callback(lambda _: watcher.end())
        try:
            if first:
                await send({"type": "http.response.body", "body": first, "more_body": True})
            while not watcher.ended:
                left = deadline - loop.time()
                if left <= 0:
                    break
                lines = await watcher.take(min(left, BOOKMARK_EVERY_S))
                if not lines and bookmarks and not watcher.ended and loop.time() < deadline:
                    lines = watcher.form.bookmark(self._store.committed_version, initial_end=False)
                if lines:
                    await send({"type": "http.response.body", "body": lines, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()


def _version(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Refusal(
            400,
            "BadRequest",
            f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax',
        ) from None


async def _start(send: Send, warnings: list[str]) -> None:
    headers = [(b"content-type", b"application/json"), *(warning_header(text) for text in warnings)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
