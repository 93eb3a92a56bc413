"""A small cluster: the real embedded API, the controllers, and a scheduler that binds at once."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from makeway.client import ApiError, Client, Reflector, embedded
from makeway.client.resource import CORE_EVENTS, NODES, PODS, Object, Resource
from makeway.embedded.node.process import Run
from makeway.embedded.server import serving


@pytest.fixture
def home() -> Iterator[Path]:
    # Short: a Unix socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="mw-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class Cluster:
    def __init__(self, client: Client, home: Path) -> None:
        self.client = client
        self.home = home
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def fake_node(self, name: str, **capacity: str) -> Object:
        return await self.client.create(
            NODES,
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}},
                "status": {"capacity": {"cpu": "64", "pods": "110", **capacity}},
            },
        )

    async def bind_all(self, node: str) -> None:
        """A scheduler without judgement: every pod goes to this node."""
        waiting: asyncio.Queue[Object] = asyncio.Queue()

        def hear(kind: str, pod: Object) -> None:
            if kind == "ADDED" and not pod["spec"].get("nodeName"):
                waiting.put_nowait(pod)

        reflector = Reflector[Object](self.client, PODS, hear)
        async with asyncio.TaskGroup() as group:
            group.create_task(reflector.run())
            while True:
                group.create_task(self._bind(await waiting.get(), node))

    async def _bind(self, pod: Object, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace},
            "target": target,
        }
        with contextlib.suppress(ApiError):
            await self.client.create(PODS, body, subresource="binding")

    async def pods(self, namespace: str = "default") -> list[Object]:
        return await self.client.list(PODS, namespace)

    async def events(self, reason: str, namespace: str = "default") -> list[str]:
        found = await self.client.list(CORE_EVENTS, namespace)
        return [each["message"] for each in found if each["reason"] == reason]

    async def until(
        self,
        resource: Resource,
        name: str,
        true: Callable[[Object], object],
        namespace: str = "default",
        timeout_s: float = 10.0,
    ) -> Object:
        """The object, once it is as wanted."""
        last: Object = {}
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    with contextlib.suppress(ApiError):
                        last = await self.client.get(resource, name, namespace)
                        if true(last):
                            return last
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{name} did not get there; it is {last.get('status')}") from None

    async def until_gone(
        self, resource: Resource, name: str, namespace: str = "default", timeout_s: float = 10.0
    ) -> None:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    await self.client.get(resource, name, namespace)
                except ApiError as error:
                    if error.not_found:
                        return
                    raise
                await asyncio.sleep(0.02)

    async def until_true(
        self, true: Callable[[], Coroutine[Any, Any, object]], timeout_s: float = 10.0
    ) -> None:
        async with asyncio.timeout(timeout_s):
            while not await true():
                await asyncio.sleep(0.02)


@pytest.fixture
async def cluster(home: Path) -> AsyncIterator[Cluster]:
    async with (
        serving(home) as server,
        Client(embedded(server.socket_path, server.token)) as client,
    ):
        made = Cluster(client, home)
        try:
            yield made
        finally:
            await made.stop()
            for attempt in home.glob("pods/*/containers/*/*"):  # noqa: ASYNC240
                Run(attempt).kill()
