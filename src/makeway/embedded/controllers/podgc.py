"""Pods of nodes that are gone: nobody else will ever end them.

A pod that was already being deleted goes at once; one that ran gets a moment, since a node that is
replaced comes back under its name, and then says why it ended.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from makeway.client import ApiError, Client
from makeway.client.resource import PODS, Object
from makeway.client.watch import DELETED, Key
from makeway.control.clock import timestamp
from makeway.embedded.mirror import Mirror
from makeway.embedded.objects import deleted, name_of, namespace_of, phase, uid_of
from makeway.embedded.workqueue import WorkQueue

PATIENCE_S = 5.0


class Clock(Protocol):
    def now(self) -> float: ...


class PodCollector:
    def __init__(self, client: Client, pods: Mirror, nodes: Mirror, clock: Clock) -> None:
        self._client = client
        self._pods = pods
        self._nodes = nodes
        self._clock = clock
        self._queue = WorkQueue("podgc", workers=8)
        self._by_node: dict[str, set[Key]] = {}
        pods.listen(self._on_pod)
        nodes.listen(self._on_node)

    async def run(self) -> None:
        await self._queue.run(self._look)

    def _on_pod(self, kind: str, pod: Object) -> None:
        node = pod["spec"].get("nodeName")
        if not node:
            return
        key = (namespace_of(pod), name_of(pod))
        here = self._by_node.setdefault(node, set())
        if kind == DELETED:
            here.discard(key)
            return
        here.add(key)
        if self._nodes.reflector.synced.is_set() and self._nodes.get("", node) is None:
            self._queue.add_in(key, 0.0 if deleted(pod) else PATIENCE_S)

    def _on_node(self, kind: str, node: Object) -> None:
        if kind == DELETED:
            for key in self._by_node.pop(name_of(node), set()):
                pod = self._pods.objects.get(key)
                waits = pod is not None and not deleted(pod)
                self._queue.add_in(key, PATIENCE_S if waits else 0.0)

    async def _look(self, key: Hashable) -> None:
        assert isinstance(key, tuple)
        pod = self._pods.objects.get(key)
        if pod is None or self._nodes.get("", pod["spec"].get("nodeName", "")) is not None:
            return
        try:
            if phase(pod) not in ("Succeeded", "Failed"):
                await self._tell(pod)
            await self._client.delete(
                PODS, name_of(pod), namespace_of(pod), uid=uid_of(pod), grace_s=0
            )
        except ApiError as error:
            if not error.not_found and not error.conflict:
                raise

    async def _tell(self, pod: Object) -> None:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByPodGC",
            "message": "PodGC: node no longer exists",
            "lastTransitionTime": timestamp(self._clock.now()),
        }
        body = {
            "metadata": {"uid": uid_of(pod)},
            "status": {"phase": "Failed", "conditions": [condition]},
        }
        await self._client.patch(
            PODS, name_of(pod), body, namespace_of(pod), kind="strategic", subresource="status"
        )
