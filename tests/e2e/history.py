"""What a real API server's objects were, step by step: watched, and told in the words of the embedded store.

Tests that look into the embedded API's store (the recordings do) read the same from here. Objects of different kinds are
ordered by their version, as etcd ordered them, although each kind has a watch of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Final

import msgspec

from makeway.client import ApiError, Client, Reflector, Resource
from makeway.client.resource import CORE_EVENTS, DEPLOYMENTS, MODELS, REPLICA_SETS, Object
from makeway.client.watch import DELETED
from makeway.embedded.store import Change, Entry
from makeway.kube.resources import RESOURCES

FOLLOWED: Final = (*RESOURCES.values(), CORE_EVENTS, DEPLOYMENTS, REPLICA_SETS, MODELS)


class WatchedStore:
    """The part of the embedded store's questions that tests ask."""

    def __init__(self) -> None:
        self.version = 0
        self._objects: dict[str, dict[tuple[str, str], Entry]] = {}
        self._log: list[Change] = []

    def all(self, kind: str) -> Iterator[Entry]:
        return iter(list(self._objects.get(kind, {}).values()))

    def sorted(self, kind: str) -> list[Entry]:
        return sorted(self.all(kind), key=lambda entry: (entry.namespace, entry.name))

    def changes_since(self, version: int) -> list[Change]:
        found = [change for change in self._log if change.version > version]
        return sorted(found, key=lambda change: change.version)

    def hear(self, kind: str, change: str, obj: Object) -> None:
        entry = _entry(obj)
        held = self._objects.setdefault(kind, {})
        key = (entry.namespace, entry.name)
        before = held.get(key)
        if change == DELETED:
            held.pop(key, None)
        else:
            held[key] = entry
        after = None if change == DELETED else entry
        self._log.append(Change(entry.version, kind, before, after, entry))
        self.version = max(self.version, entry.version)


def _entry(obj: Object) -> Entry:
    metadata = obj["metadata"]
    body = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
    return Entry(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata["uid"],
        version=int(metadata["resourceVersion"]),
        body=msgspec.json.encode(body),
        labels=metadata.get("labels"),
    )


@contextlib.asynccontextmanager
async def watched(client: Client) -> AsyncIterator[WatchedStore]:
    """Follow everything that the server has, until the block ends."""
    store = WatchedStore()
    reflectors: list[Reflector[Object]] = []
    for resource in FOLLOWED:
        if await _served(client, resource):
            kind = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
            reflectors.append(Reflector(client, resource, partial(store.hear, kind)))
    tasks = [asyncio.create_task(reflector.run()) for reflector in reflectors]
    try:
        for reflector in reflectors:
            await reflector.synced.wait()
        yield store
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _served(client: Client, resource: Resource) -> bool:
    try:
        await client.request("GET", resource.path(), params={"limit": "1"})
    except ApiError as error:
        if error.not_found:
            return False
        raise
    return True
