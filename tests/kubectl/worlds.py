"""The two servers that transcripts are made on: the embedded API and a real kube-apiserver, both with controllers and with nodes that only pretend.

kubectl is called synchronously, so what is ours runs on an event loop in a thread beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from tools.control_plane import KUBELETS, ControlPlane, kubelet_rights

from makeway.client import Client, Resource, embedded, from_kubeconfig
from makeway.embedded.controllers import run_controllers
from makeway.embedded.node.pretend import run_pretended
from makeway.embedded.server import serving

_START_TIMEOUT_S = 30.0
_CLUSTER_ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings")


@contextlib.contextmanager
def embedded_world() -> Iterator[Path]:
    """Its kubeconfig."""
    with tempfile.TemporaryDirectory(prefix="mw-", ignore_cleanup_errors=True) as folder:
        home = Path(folder) / "home"

        @contextlib.asynccontextmanager
        async def running() -> AsyncIterator[None]:
            async with (
                serving(home) as server,
                Client(embedded(server.socket_path, server.token)) as client,
                asyncio.TaskGroup() as group,
            ):
                tasks = [
                    group.create_task(run_controllers(client)),
                    group.create_task(run_pretended(client)),
                ]
                yield
                for task in tasks:
                    task.cancel()

        with _beside(running):
            yield home / "kubeconfig"


@contextlib.contextmanager
def real_world() -> Iterator[Path]:
    """Its kubeconfig."""
    with ControlPlane.start() as plane:

        @contextlib.asynccontextmanager
        async def running() -> AsyncIterator[None]:
            async with Client(from_kubeconfig(plane.kubeconfig)) as admin:
                await admin.create(_CLUSTER_ROLE_BINDINGS, kubelet_rights())
            kubelets = from_kubeconfig(plane.kubeconfig_of(KUBELETS))
            async with Client(kubelets) as client, asyncio.TaskGroup() as group:
                nodes = group.create_task(run_pretended(client))
                yield
                nodes.cancel()

        with _beside(running):
            yield plane.kubeconfig


WORLDS = {"embedded": embedded_world, "kube": real_world}


@contextlib.contextmanager
def _beside(
    running: Callable[[], contextlib.AbstractAsyncContextManager[None]],
) -> Iterator[None]:
    """On a loop in a thread, until the block ends."""
    ready, loops = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def main() -> None:
        stopping = asyncio.Event()
        async with running():
            loops.append((asyncio.get_running_loop(), stopping))
            ready.set()
            await stopping.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(_START_TIMEOUT_S), "the server did not start"
        yield
    finally:
        for loop, stopping in loops:
            loop.call_soon_threadsafe(stopping.set)
        thread.join()
