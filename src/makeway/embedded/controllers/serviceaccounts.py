"""Every namespace has a service account called `default`."""

from __future__ import annotations

from collections.abc import Hashable

from makeway.client import ApiError, Client
from makeway.client.resource import SERVICE_ACCOUNTS, Object
from makeway.client.watch import DELETED
from makeway.embedded.mirror import Mirror
from makeway.embedded.objects import deleted, name_of
from makeway.embedded.workqueue import WorkQueue


class AccountKeeper:
    def __init__(self, client: Client, namespaces: Mirror) -> None:
        self._client = client
        self._namespaces = namespaces
        self._queue = WorkQueue("serviceaccount-controller")
        self._kept: set[str] = set()  # namespaces that have theirs
        namespaces.listen(self._on_namespace)

    def _on_namespace(self, kind: str, namespace: Object) -> None:
        name = name_of(namespace)
        if kind == DELETED:
            self._kept.discard(name)
        elif name not in self._kept:
            self._queue.add(name)

    async def run(self) -> None:
        await self._queue.run(self._keep)

    async def _keep(self, name: Hashable) -> None:
        namespace = self._namespaces.get("", str(name))
        if namespace is None or deleted(namespace) or name in self._kept:
            return
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": str(name)},
        }
        try:
            await self._client.create(SERVICE_ACCOUNTS, account)
        except ApiError as error:
            if not error.already_exists:
                raise
        self._kept.add(str(name))
