"""A local copy of a resource that follows the API server.

List once, then watch from the list's version. When the stream is cut the watch goes on from the
last version seen; when the server has forgotten that version (410) everything is listed again and
compared with the copy, so that whoever listens hears of every object that came, changed or went
meanwhile, deletes included.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import aiohttp
import msgspec

from makeway.client.client import (
    ApiError,
    Client,
    error_from,
    list_version,
    pause_s,
    selectors,
)
from makeway.client.resource import Object, Resource
from makeway.errors import UserError

log = logging.getLogger(__name__)

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
Key = tuple[str, str]
T = TypeVar("T")

# How long the server is asked to keep one watch open; random, so that watches do not end together.
SHORTEST_WATCH_S, LONGEST_WATCH_S = 290, 590
READ_MARGIN_S = 30


class Meta(msgspec.Struct, rename="camel"):
    """What the copy needs to know of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""

    @property
    def key(self) -> Key:
        return (self.namespace, self.name)


class _Head(msgspec.Struct):
    metadata: Meta = msgspec.field(default_factory=Meta)


class _EventHead(msgspec.Struct):
    """Which object an event is about: enough to know whether it has to be read at all."""

    type: str
    object: _Head


class _Event(msgspec.Struct):
    object: msgspec.Raw


class _Page(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_event_head = msgspec.json.Decoder(_EventHead).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_page = msgspec.json.Decoder(_Page).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class Reflector(Generic[T]):
    """Keeps `cache` as the server has it and calls `handler(type, object)` for each change.

    `decode` turns an object's bytes into a struct with only the fields that are read; without it
    objects are dicts (`Reflector[Object]`). The handler is called between two awaits: it sees a
    consistent cache, and is to put long work elsewhere. For DELETED it gets the last state, which
    is no longer in the cache.

    Who keeps a copy of its own that also hears the answers to its writes says with `known` that it
    has a version already: that event is not decoded once more, nor the last state of what is gone.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        handler: Callable[[str, T], None] | None = None,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        decode: Callable[[bytes], T] | None = None,
        known: Callable[[Meta], bool] | None = None,
        page_limit: int = 500,
    ) -> None:
        self.resource = resource
        self.cache: dict[Key, T] = {}
        self.synced = asyncio.Event()
        self._client = client
        self._handler = handler or (lambda _type, _object: None)
        self._path = resource.path(namespace)
        self._params = selectors(label_selector, field_selector)
        self._decode = decode or cast("Callable[[bytes], T]", _decode_object)
        self._known = known
        self._page_limit = page_limit
        self._metas: dict[Key, Meta] = {}
        self._version = ""
        self._troubles = 0

    def get(self, name: str, namespace: str = "") -> T | None:
        return self.cache.get((namespace, name))

    async def run(self) -> None:
        """Follow the server until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except (
                ApiError,
                UserError,
                aiohttp.ClientError,
                msgspec.DecodeError,
                OSError,
            ) as error:
                self._recover(error)
            if self._troubles:
                await asyncio.sleep(pause_s(self._troubles))

    def _recover(self, error: Exception) -> None:
        if isinstance(error, ApiError):
            # Whatever the server refuses, a fresh list is a sound place to start again.
            self._version = ""
        self._troubles += 1
        level = logging.DEBUG if self._troubles <= 2 else logging.WARNING
        log.log(level, "%s: %s; trying again", self._path, error)

    async def _list(self) -> None:
        """Take over what the server has now, telling the differences to the copy."""
        seen: dict[Key, tuple[Meta, T]] = {}
        version = ""
        async for page in self._client.pages(self._path, self._params, self._page_limit):
            version = list_version(page)
            for raw in _decode_page(page).items or []:
                meta = _decode_head(raw).metadata
                known = self._metas.get(meta.key)
                if known is not None and known.resource_version == meta.resource_version:
                    seen[meta.key] = (known, self.cache[meta.key])
                else:
                    obj = self._read(meta, raw)
                    if obj is not None:
                        seen[meta.key] = (meta, obj)
        for key in [key for key in self.cache if key not in seen]:
            self._forget(key, self.cache[key])
        for meta, obj in seen.values():
            self._take(meta, obj)
        self._version = version
        self.synced.set()

    async def _watch(self) -> None:
        seconds = random.randint(SHORTEST_WATCH_S, LONGEST_WATCH_S)
        params = {
            **self._params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
        }
        heard = False
        stream = self._client.stream(self._path, params, seconds + READ_MARGIN_S)
        async for line in stream:
            if line:
                self._hear(line)
                heard, self._troubles = True, 0
        # A server that closes at once, again and again, must not be asked in a tight loop.
        self._troubles = 0 if heard else self._troubles + 1

    def _hear(self, line: bytes) -> None:
        try:
            event = _decode_event_head(line)
            if event.type == "ERROR":
                said = _decode_event(line).object
                raise error_from(int(_decode_object(said).get("code") or 500), bytes(said))
        except msgspec.DecodeError as error:
            # A line cut in the middle, or not JSON at all: the stream cannot be trusted any more.
            raise ApiError(500, "Undecodable", f"{self._path}: {error}") from error
        meta = event.object.metadata
        if event.type != "BOOKMARK":
            self._change(event.type, meta, line)
        self._version = meta.resource_version

    def _change(self, kind: str, meta: Meta, line: bytes) -> None:
        held = self._metas.get(meta.key)
        if self._known is not None and held is not None and held.uid == meta.uid:
            if kind == DELETED:
                self._forget(meta.key, None)
                return
            if self._known(meta):
                self._metas[meta.key] = meta
                return
        obj = self._read(meta, _decode_event(line).object)
        if kind == DELETED:
            self._forget(meta.key, obj)
        elif obj is not None:
            self._take(meta, obj)

    def _read(self, meta: Meta, raw: msgspec.Raw) -> T | None:
        try:
            return self._decode(bytes(raw))
        except (msgspec.DecodeError, ValueError, KeyError, TypeError) as error:
            # One object of a strange shape must not hide all the others.
            log.warning("%s: %s/%s left out: %s", self._path, *meta.key, error)
            return None

    def _take(self, meta: Meta, obj: T) -> None:
        known = self._metas.get(meta.key)
        if known is not None and known.uid != meta.uid:
            # Deleted and made anew while nobody looked: two objects, so two events.
            self._forget(meta.key, self.cache[meta.key])
            known = None
        if known is not None and known.resource_version == meta.resource_version:
            return
        self._metas[meta.key] = meta
        self.cache[meta.key] = obj
        self._tell(ADDED if known is None else MODIFIED, obj)

    def _forget(self, key: Key, last: T | None) -> None:
        known = self.cache.pop(key, None)
        if known is not None:
            del self._metas[key]
            self._tell(DELETED, known if last is None else last)

    def _tell(self, kind: str, obj: T) -> None:
        try:
            self._handler(kind, obj)
        except Exception:
            # One object that a handler cannot take must not stop the others from being seen.
            log.exception("%s: a handler failed on %s", self._path, kind)


__all__ = ["ADDED", "DELETED", "MODIFIED", "Key", "Meta", "Object", "Reflector"]
