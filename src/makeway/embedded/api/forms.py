"""The form in which objects leave: version, single object or list, Table or plain JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from makeway.embedded.api.http import Request, encode
from makeway.embedded.store import Entry
from makeway.kinds.serving.kind import Kind, Version
from makeway.kinds.serving.refusal import Obj

_TABLE_KEPT = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "deletionTimestamp",
    "generateName",
)
# About ten milliseconds' worth.
ROWS_AT_ONCE = 250


@lru_cache(maxsize=1024)
def type_prefix(kind: str, api_version: str) -> bytes:
    return f'{{"kind":"{kind}","apiVersion":"{api_version}",'.encode()


class Form:
    """How one request wants its objects. Built once a request, then asked for every object."""

    __slots__ = ("_includes", "_now", "_prefix", "converts", "kind", "table", "version")

    def __init__(
        self, kind: Kind, version: Version, request: Request | None, now: Callable[[], float]
    ) -> None:
        self.kind = kind
        self.version = version
        self.converts = version.conversion is not None
        self._now = now
        self._prefix = type_prefix(kind.kind, kind.api_version(version.name))
        self.table = ""
        self._includes = "Metadata"
        if request is not None:
            self.table = _asked_table(request.header(b"accept"))
            self._includes = request.query.get("includeObject") or "Metadata"

    @property
    def shape(self) -> tuple[str, str, str, str]:
        """Equal shapes give equal bytes: what a watch may share between watchers (Tables show
        ages).
        """
        return (self.kind.resource, self.version.name, self.table, self._includes)

    def decode(self, entry: Entry) -> Obj:
        """The object in the request's version, without kind and apiVersion."""
        obj = entry.decode()
        if self.version.conversion is not None:
            self.version.conversion.from_storage(obj)
        return obj

    def body(self, entry: Entry) -> bytes:
        return encode(self.decode(entry)) if self.converts else entry.body

    def single(self, entry: Entry) -> bytes:
        """One object, as a full answer."""
        if self.table:
            return encode(self._table([entry], {"resourceVersion": str(entry.version)}))
        return self._prefix + self.body(entry)[1:]

    def item(self, entry: Entry) -> bytes:
        """One object inside a list: custom resources name their kind there, built-in ones do
        not.
        """
        return self.body(entry) if self.kind.builtin else self._prefix + self.body(entry)[1:]

    async def many(self, entries: list[Entry], metadata: Obj) -> bytes:
        if self.table:
            return await self._long_table(entries, metadata)
        head = {
            "kind": f"{self.kind.kind}List",
            "apiVersion": self.kind.api_version(self.version.name),
            "metadata": metadata,
        }
        items = b",".join([self.item(entry) for entry in entries])
        return encode(head)[:-1] + b',"items":[' + items + b"]}"

    def event(self, kind: str, entry: Entry) -> bytes:
        """One line of a watch."""
        return b'{"type":"%s","object":%s}\n' % (kind.encode(), self.single(entry))

    def bookmark(self, version: int, *, initial_end: bool) -> bytes:
        metadata: Obj = {"resourceVersion": str(version), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        if self.table:
            obj: Obj = self._table([], {"resourceVersion": str(version)})
            if initial_end:
                obj["rows"] = [{"cells": [], "object": _partial({"metadata": metadata})}]
            return encode({"type": "BOOKMARK", "object": obj}) + b"\n"
        obj = {
            "kind": self.kind.kind,
            "apiVersion": self.kind.api_version(self.version.name),
            "metadata": metadata,
        }
        return encode({"type": "BOOKMARK", "object": obj}) + b"\n"

    # ---- tables ----------------------------------------------------------------------------------

    async def _long_table(self, entries: list[Entry], metadata: Obj) -> bytes:
        """Piece by piece, so that others are answered meanwhile."""
        now = self._now()
        pieces: list[bytes] = []
        for first in range(0, len(entries), ROWS_AT_ONCE):
            rows = [self._row(entry, now) for entry in entries[first : first + ROWS_AT_ONCE]]
            pieces.append(encode(rows)[1:-1])
            await asyncio.sleep(0)
        head = encode(self._table([], metadata))
        return head.removesuffix(b"]}") + b",".join(pieces) + b"]}"

    def _table(self, entries: list[Entry], metadata: Obj) -> Obj:
        now = self._now()
        return {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{self.table}",
            "metadata": metadata,
            "columnDefinitions": [
                {
                    "name": column.name,
                    "type": column.type,
                    "format": column.format,
                    "description": column.description,
                    "priority": 1 if column.wide else 0,
                }
                for column in self.version.columns
            ],
            "rows": [self._row(entry, now) for entry in entries],
        }

    def _row(self, entry: Entry, now: float) -> Obj:
        # Columns of a converted version read that version's fields; events read the stored ones.
        obj = entry.decode() if self.kind.stored_as else self.decode(entry)
        row: Obj = {"cells": [column.cell(obj, now) for column in self.version.columns]}
        if self._includes == "Object":
            row["object"] = msgspec.Raw(self._prefix + self.body(entry)[1:])
        elif self._includes == "Metadata":
            row["object"] = _partial(obj)
        return row


def _partial(obj: Obj) -> Obj:
    metadata: dict[str, Any] = obj["metadata"]
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {field: metadata[field] for field in _TABLE_KEPT if field in metadata},
    }


def _asked_table(accept: str) -> str:
    """The version of Table that the client puts first, if it prefers Tables to plain JSON."""
    for part in accept.split(","):
        words = [word.strip() for word in part.split(";")]
        if words[0] not in ("application/json", "*/*"):
            continue
        parameters = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        if parameters.get("as") == "Table" and parameters.get("g") == "meta.k8s.io":
            version = parameters.get("v", "v1")
            if version in ("v1", "v1beta1"):
                return version
        elif "as" not in parameters:
            return ""
    return ""
