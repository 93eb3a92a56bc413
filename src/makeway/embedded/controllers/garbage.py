"""Garbage by owner: what nobody owns any more is deleted.

Only metadata is kept: for each object its owners, and for each owner its dependents. When an owner goes,
its dependents are looked at; one whose owners are all gone is deleted. Two finalizers give the owner a say:
`foregroundDeletion` keeps it until its dependents are gone, `orphan` cuts them loose instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Hashable, Mapping

import msgspec

from makeway.client import ApiError, Client, Reflector
from makeway.client.resource import Object, Resource
from makeway.client.watch import ADDED, DELETED
from makeway.embedded.controllers.discovery import Served, discover
from makeway.embedded.mirror import Mirror
from makeway.embedded.workqueue import WorkQueue
from makeway.errors import UserError

log = logging.getLogger(__name__)

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
# New kinds appear when somebody installs a CRD.
DISCOVER_EVERY_S = 30.0
BURIED_REMEMBERED = 20_000
# Written often and owned by nobody who would take them along.
SKIPPED = frozenset({"events", "leases"})


class Owner(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    name: str
    uid: str
    block_owner_deletion: bool = False


class Meta(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    namespace: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    owner_references: tuple[Owner, ...] | None = None
    finalizers: tuple[str, ...] | None = None


class Item(msgspec.Struct):
    metadata: Meta


class Node(msgspec.Struct):
    """An object in the graph of owners."""

    resource: Resource
    meta: Meta

    @property
    def owners(self) -> tuple[Owner, ...]:
        return self.meta.owner_references or ()

    @property
    def finalizers(self) -> tuple[str, ...]:
        return self.meta.finalizers or ()

    @property
    def going(self) -> bool:
        return self.meta.deletion_timestamp is not None


class GarbageCollector:
    def __init__(self, client: Client, mirrors: Mapping[Resource, Mirror] | None = None) -> None:
        """`mirrors` are copies that somebody keeps already; the other kinds are followed here."""
        self._client = client
        self._mirrors = mirrors or {}
        self._queue = WorkQueue("garbage", workers=16)
        self._nodes: dict[str, Node] = {}
        self._dependents: dict[str, set[str]] = {}
        self._resources: dict[tuple[str, str], Resource] = {}
        self._followed: dict[Resource, asyncio.Event] = {}
        # Seen to go: no need to ask the server whether they are absent.
        self._buried: OrderedDict[str, None] = OrderedDict()
        # Absence means something only once every kind has been listed.
        self._complete = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run(self._look))
            while True:
                try:
                    await self._follow_all(group)
                except (ApiError, UserError) as error:
                    log.debug("discovery: %s", error)
                    await asyncio.sleep(1.0)
                    continue
                await asyncio.sleep(DISCOVER_EVERY_S)

    async def _follow_all(self, group: asyncio.TaskGroup) -> None:
        for served in await discover(self._client):
            if self._collects(served):
                self._follow(served, group)
        for synced in self._followed.values():
            await synced.wait()
        if not self._complete.is_set():
            self._complete.set()
            for uid, node in self._nodes.items():
                if node.owners or node.going:
                    self._queue.add(uid)

    def _collects(self, served: Served) -> bool:
        known = served.resource in self._followed
        wanted = {"list", "watch", "delete"} <= served.verbs
        return wanted and not known and served.resource.plural not in SKIPPED

    def _follow(self, served: Served, group: asyncio.TaskGroup) -> None:
        resource = served.resource
        self._resources[resource.group, served.kind] = resource

        mirror = self._mirrors.get(resource)
        if mirror is not None:
            self._listen(resource, mirror)
            return

        def hear(kind: str, item: Item) -> None:
            self._hear(resource, kind, item.metadata)

        decode = msgspec.json.Decoder(Item).decode
        reflector = Reflector[Item](self._client, resource, hear, decode=decode)
        self._followed[resource] = reflector.synced
        group.create_task(reflector.run())

    def _listen(self, resource: Resource, mirror: Mirror) -> None:
        def hear(kind: str, obj: Object) -> None:
            self._hear(resource, kind, msgspec.convert(obj["metadata"], Meta))

        for obj in mirror.all():
            hear(ADDED, obj)
        mirror.listen(hear)
        self._followed[resource] = mirror.reflector.synced

    # The graph

    def _hear(self, resource: Resource, kind: str, meta: Meta) -> None:
        old = self._nodes.pop(meta.uid, None)
        if old is not None:
            for owner in old.owners:
                self._dependents.get(owner.uid, set()).discard(meta.uid)
        if kind == DELETED:
            self._left(meta, old)
            return
        node = self._nodes[meta.uid] = Node(resource, meta)
        for owner in node.owners:
            self._dependents.setdefault(owner.uid, set()).add(meta.uid)
        concerned = node.owners or node.going
        changed = old is None or node.going or old.owners != node.owners
        if self._complete.is_set() and concerned and changed:
            self._queue.add(meta.uid)

    def _left(self, meta: Meta, old: Node | None) -> None:
        self._buried[meta.uid] = None
        while len(self._buried) > BURIED_REMEMBERED:
            self._buried.popitem(last=False)
        for uid in self._dependents.pop(meta.uid, set()):
            self._queue.add(uid)
        # An owner that waits for its dependents may be free to go now.
        for owner in (old.owners if old else meta.owner_references) or ():
            if owner.uid in self._nodes and self._nodes[owner.uid].going:
                self._queue.add(owner.uid)

    def _living_dependents(self, uid: str) -> list[Node]:
        uids = self._dependents.get(uid, set())
        return [self._nodes[each] for each in uids if each in self._nodes]

    # Decisions

    async def _look(self, key: Hashable) -> None:
        await self._complete.wait()
        node = self._nodes.get(str(key))
        if node is None:
            return
        if node.going:
            await self._release(node)
        elif node.owners:
            await self._collect(node)

    async def _collect(self, node: Node) -> None:
        solid: list[Owner] = []
        waiting: list[Owner] = []
        gone: list[Owner] = []
        for owner in node.owners:
            living = self._nodes.get(owner.uid)
            if living is None:
                (gone if await self._absent(node, owner) else solid).append(owner)
            elif living.going and FOREGROUND in living.finalizers:
                waiting.append(owner)
            else:
                solid.append(owner)
        if solid:
            if gone or waiting:
                await self._cut(node, {owner.uid for owner in [*gone, *waiting]})
            return
        if gone or waiting:
            # Whoever waits in the foreground wants the dependents of dependents gone too.
            policy = "Foreground" if waiting and self._living_dependents(node.meta.uid) else ""
            await self._delete(node, policy or "Background")

    async def _absent(self, node: Node, owner: Owner) -> bool:
        """Ask the server itself before anything is deleted for want of an owner."""
        if owner.uid in self._buried:
            return True
        group = owner.api_version.partition("/")[0] if "/" in owner.api_version else ""
        resource = self._resources.get((group, owner.kind))
        if resource is None:
            # A kind that the server does not have: nobody can say that the owner is gone.
            return False
        try:
            found = await self._client.get(resource, owner.name, node.meta.namespace)
        except ApiError as error:
            if error.not_found:
                return True
            raise
        return bool(found["metadata"]["uid"] != owner.uid)

    async def _release(self, node: Node) -> None:
        dependents = self._living_dependents(node.meta.uid)
        if ORPHAN in node.finalizers:
            for each in dependents:
                await self._cut(each, {node.meta.uid})
            await self._drop_finalizer(node, ORPHAN)
        elif FOREGROUND in node.finalizers:
            for each in dependents:
                if not each.going:
                    self._queue.add(each.meta.uid)
            if not any(_blocks(each, node.meta.uid) for each in dependents):
                await self._drop_finalizer(node, FOREGROUND)

    # Calls

    async def _cut(self, node: Node, owners: set[str]) -> None:
        kept = [owner for owner in node.owners if owner.uid not in owners]
        await self._patch(node, {"ownerReferences": msgspec.to_builtins(kept) or None})

    async def _drop_finalizer(self, node: Node, finalizer: str) -> None:
        kept = [each for each in node.finalizers if each != finalizer]
        await self._patch(node, {"finalizers": kept or None})

    async def _patch(self, node: Node, metadata: dict[str, object]) -> None:
        meta = node.meta
        # Lists are replaced whole: the version makes sure that nobody's change is lost.
        body = {"metadata": {**metadata, "uid": meta.uid, "resourceVersion": meta.resource_version}}
        try:
            await self._client.patch(node.resource, meta.name, body, meta.namespace)
        except ApiError as error:
            if not error.not_found:
                raise

    async def _delete(self, node: Node, propagation: str) -> None:
        meta = node.meta
        try:
            await self._client.delete(
                node.resource, meta.name, meta.namespace, uid=meta.uid, propagation=propagation
            )
        except ApiError as error:
            if not error.not_found and not error.conflict:
                raise


def _blocks(node: Node, owner_uid: str) -> bool:
    return any(owner.uid == owner_uid and owner.block_owner_deletion for owner in node.owners)
