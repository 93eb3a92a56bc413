"""The local copy: what the API holds, as far as we have heard, with the few indexes that reconciles ask.

It hears from watches and from the answers to our own writes, whichever comes first; an older version never replaces a newer
one, and what was deleted does not come back. So a decision that was just written is already part of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from makeway.kinds.metadata import Json, Object, key, metadata, uid
from makeway.kube.resources import API_VERSIONS

Listener = Callable[[str, str, Object | None, Object | None], None]  # kind, key, before, after
Divide = Callable[[Object], list[Object]]
REMEMBERED_DELETES: Final = 50_000


class Index:
    """Objects of one kind by what `values` reads from them."""

    def __init__(self, kind: str, values: Callable[[Json], Iterable[str]]) -> None:
        self.kind = kind
        self._values = values
        self._filed: dict[str, list[str]] = {}  # under which values a key is
        self._keys: dict[str, dict[str, None]] = {}  # insertion order: the same answer each time

    def put(self, key_: str, obj: Json) -> None:
        values = list(self._values(obj))
        if self._filed.get(key_, []) == values:
            return
        self.remove(key_)
        if values:
            self._filed[key_] = values
        for value in values:
            self._keys.setdefault(value, {})[key_] = None

    def remove(self, key_: str) -> None:
        for value in self._filed.pop(key_, ()):
            keys = self._keys.get(value)
            if keys is not None:
                keys.pop(key_, None)
                if not keys:
                    del self._keys[value]

    def keys(self, value: str) -> list[str]:
        return list(self._keys.get(value, ()))

    def count(self, value: str) -> int:
        return len(self._keys.get(value, ()))


class LocalCopy:
    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Object]] = {}
        self._indexes: dict[str, Index] = {}
        self._indexes_of: dict[str, list[Index]] = {}  # by kind
        self._divided: dict[str, Divide] = {}  # by kind
        self._listeners: list[Listener] = []
        self._deleted: dict[str, None] = {}  # uids, oldest first

    def index(self, label: str, kind: str, values: Callable[[Json], Iterable[str]]) -> None:
        self._indexes[label] = made = Index(kind, values)
        self._indexes_of.setdefault(kind, []).append(made)

    def divide(self, kind: str, parts: Divide) -> None:
        """Objects of this kind may stand for several, the first under the object's own name: each is kept by itself."""
        self._divided[kind] = parts

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def get(self, kind: str, key_: str) -> Object | None:
        return self._objects.get(kind, {}).get(key_)

    def knows(self, kind: str, place: tuple[str, str], uid_: str, version_: str) -> bool:
        """Whether this version of the object, or a later one, is here: answers to our writes are faster than the watch."""
        held = self.get(kind, "/".join(place) if place[0] else place[1])
        return held is not None and uid(held) == uid_ and version(held) >= _number(version_)

    def all(self, kind: str) -> Iterator[Object]:
        return iter(self._objects.get(kind, {}).values())

    def keys(self, kind: str) -> list[str]:
        return list(self._objects.get(kind, {}))

    def count(self, kind: str) -> int:
        return len(self._objects.get(kind, ()))

    def by(self, label: str, value: str) -> list[Object]:
        index = self._indexes[label]
        held = self._objects.get(index.kind, {})
        return [held[key_] for key_ in index.keys(value)]

    def keys_by(self, label: str, value: str) -> list[str]:
        return self._indexes[label].keys(value)

    def count_by(self, label: str, value: str) -> int:
        return self._indexes[label].count(value)

    def take(self, kind: str, obj: Object) -> None:
        """The object is now so, unless we know better."""
        if uid(obj) in self._deleted:
            return
        if "kind" not in obj and kind in API_VERSIONS:
            # The items of a list do not say what they are; whoever makes owner references needs to know.
            obj = {"apiVersion": API_VERSIONS[kind], "kind": kind.split(".", 1)[0], **obj}
        known = self.get(kind, key(obj))
        if known is not None and uid(known) == uid(obj) and version(known) >= version(obj):
            return
        self._keep(kind, obj)

    def assume(self, kind: str, obj: Object) -> None:
        """As `take`, for what must be so although no answer says it yet; any newer version replaces it."""
        known = self.get(kind, key(obj))
        if known is not None and uid(known) == uid(obj):
            self._keep(kind, obj)

    def drop(self, kind: str, obj: Json) -> None:
        """The object is gone."""
        self._remember_delete(uid(obj))
        known = self.get(kind, key(obj))
        if known is None or (uid(obj) and uid(known) != uid(obj)):
            return
        for part in self._parts(kind, known):
            key_ = key(part)
            before = self._objects[kind].pop(key_)
            for index in self._indexes_of.get(kind, ()):
                index.remove(key_)
            self._tell(kind, key_, before, None)

    def _parts(self, kind: str, obj: Object) -> list[Object]:
        divide = self._divided.get(kind)
        return divide(obj) if divide is not None else [obj]

    def _keep(self, kind: str, obj: Object) -> None:
        held = self._objects.setdefault(kind, {})
        for part in self._parts(kind, obj):
            key_ = key(part)
            known = held.get(key_)
            held[key_] = part
            if part is not obj and known is not None and _says_the_same(known, part):
                continue  # another part was written
            for index in self._indexes_of.get(kind, ()):
                index.put(key_, part)
            self._tell(kind, key_, known, part)

    def _tell(self, kind: str, key_: str, before: Object | None, after: Object | None) -> None:
        for listener in self._listeners:
            listener(kind, key_, before, after)

    def _remember_delete(self, gone: str) -> None:
        if not gone:
            return
        self._deleted[gone] = None
        if len(self._deleted) > REMEMBERED_DELETES:
            del self._deleted[next(iter(self._deleted))]


def _says_the_same(known: Json, obj: Json) -> bool:
    return all(known.get(field) == obj.get(field) for field in ("spec", "status"))


def version(obj: Json) -> int:
    return _number(metadata(obj).get("resourceVersion"))


def _number(version_: str | None) -> int:
    """Versions of one server are comparable numbers."""
    try:
        return int(version_ or 0)
    except ValueError:
        return 0
