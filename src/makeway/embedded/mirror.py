"""A copy of one kind of object: what the watch told, and at once what we ourselves wrote.

A reflector is always a moment behind. Who has just made a pod and looks again would not
see it and make a second one. So every answer of the server to a write is put into the copy too;
versions only move forwards, and what was seen to go stays gone.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable

from makeway.client import Client, Reflector
from makeway.client.resource import Object, Resource
from makeway.client.watch import DELETED, Key
from makeway.embedded.objects import name_of, namespace_of, uid_of

log = logging.getLogger(__name__)

GONE_REMEMBERED = 20_000
Listener = Callable[[str, Object], None]


class Mirror:
    """Objects of one kind, by key and by the uid of each owner."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        api_version: str,
        kind: str,
        label_selector: str = "",
    ) -> None:
        self.resource = resource
        self.kind = kind
        self.objects: dict[Key, Object] = {}
        self.reflector = Reflector[Object](
            client, resource, self._hear, label_selector=label_selector
        )
        self._identity = {"apiVersion": api_version, "kind": kind}
        self._by_owner: dict[str, dict[str, Object]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def get(self, namespace: str, name: str) -> Object | None:
        return self.objects.get((namespace, name))

    def owned(self, uid: str) -> list[Object]:
        """What the object with this uid owns, oldest name first."""
        return sorted(self._by_owner.get(uid, {}).values(), key=name_of)

    def all(self) -> Iterable[Object]:
        return self.objects.values()

    def note(self, obj: Object) -> None:
        """Take the server's answer to a write, unless something newer is known."""
        if uid_of(obj) in self._gone:
            return
        known = self.objects.get(_key(obj))
        if known is None or _version(obj) > _version(known):
            self._put(known, obj)

    def note_gone(self, obj: Object) -> None:
        known = self.objects.get(_key(obj))
        if known is not None and uid_of(known) == uid_of(obj):
            self._remove(known)

    def _hear(self, kind: str, obj: Object) -> None:
        known = self.objects.get(_key(obj))
        if kind == DELETED:
            if known is not None and uid_of(known) == uid_of(obj):
                self._remove(known)
            self._bury(uid_of(obj))
        elif known is None or uid_of(known) != uid_of(obj) or _version(obj) >= _version(known):
            self._put(known, obj)
        else:
            return
        self._tell(kind, obj)

    def _put(self, known: Object | None, obj: Object) -> None:
        # Items of a list come without their kind; whoever makes an event needs it.
        obj.update(self._identity)
        if known is not None:
            self._unlink(known)
        self.objects[_key(obj)] = obj
        for reference in obj["metadata"].get("ownerReferences") or []:
            self._by_owner.setdefault(reference["uid"], {})[uid_of(obj)] = obj

    def _remove(self, known: Object) -> None:
        del self.objects[_key(known)]
        self._unlink(known)
        self._bury(uid_of(known))

    def _unlink(self, known: Object) -> None:
        for reference in known["metadata"].get("ownerReferences") or []:
            children = self._by_owner.get(reference["uid"])
            if children is not None:
                children.pop(uid_of(known), None)
                if not children:
                    del self._by_owner[reference["uid"]]

    def _bury(self, uid: str) -> None:
        self._gone[uid] = None
        while len(self._gone) > GONE_REMEMBERED:
            self._gone.popitem(last=False)

    def _tell(self, kind: str, obj: Object) -> None:
        for listener in self._listeners:
            try:
                listener(kind, obj)
            except Exception:
                # One listener's trouble with one object is not the others'.
                log.exception("%s: a listener failed", self.resource.plural)


def _key(obj: Object) -> Key:
    return (namespace_of(obj), name_of(obj))


def _version(obj: Object) -> int:
    text = str(obj["metadata"].get("resourceVersion") or "0")
    return int(text) if text.isdigit() else 0
