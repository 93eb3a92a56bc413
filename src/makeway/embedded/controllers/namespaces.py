"""Namespaces on their way out: everything in them is deleted, then they are let go."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from makeway.client import ApiError, Client
from makeway.client.resource import NAMESPACES, Object, Resource
from makeway.embedded.controllers.discovery import discover
from makeway.embedded.mirror import Mirror
from makeway.embedded.objects import deleted, name_of, uid_of
from makeway.embedded.workqueue import WorkQueue

# While pods are ending, how often to look whether they are gone.
POLL_S = 0.25


class NamespaceCleaner:
    def __init__(self, client: Client, namespaces: Mirror) -> None:
        self._client = client
        self._namespaces = namespaces
        self._queue = WorkQueue("namespace", workers=4)
        namespaces.listen(self._on_namespace)

    def _on_namespace(self, kind: str, namespace: Object) -> None:
        if deleted(namespace):
            self._queue.add(name_of(namespace))

    async def run(self) -> None:
        await self._queue.run(self._clean)

    async def _clean(self, key: Hashable) -> None:
        name = str(key)
        namespace = self._namespaces.get("", name)
        if namespace is None or not deleted(namespace):
            return
        if await self._empty(name):
            await self._let_go(namespace)
        else:
            self._queue.add_in(key, POLL_S)

    async def _empty(self, name: str) -> bool:
        """Ask everything to go; true when nothing is left."""
        served = [
            each
            for each in await discover(self._client)
            if each.resource.namespaced and {"list", "delete"} <= each.verbs
        ]
        left = 0
        for each in served:
            items = await self._client.list(each.resource, name)
            left += len(items)
            going = [item for item in items if not deleted(item)]
            await asyncio.gather(*(self._delete(each.resource, item) for item in going))
        return left == 0

    async def _delete(self, resource: Resource, item: Object) -> None:
        try:
            await self._client.delete(
                resource,
                name_of(item),
                str(item["metadata"]["namespace"]),
                uid=uid_of(item),
                propagation="Background",
            )
        except ApiError as error:
            if not error.not_found and not error.conflict:
                raise

    async def _let_go(self, namespace: Object) -> None:
        body = {
            **namespace,
            "spec": {**(namespace.get("spec") or {}), "finalizers": []},
        }
        try:
            await self._client.update(NAMESPACES, body, subresource="finalize")
        except ApiError as error:
            if error.not_found or error.conflict:
                return
            raise
