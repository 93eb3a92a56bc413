"""A whole cluster for a test: API, controllers, pretended nodes and the scheduler, driven by the real kubectl.

On the embedded API by default; `pytest --backend kube` (or MAKEWAY_BACKEND=kube) runs the same tests on a real one.

async with machine() as box:
    await box.apply(NODES)
    await box.kubectl("get", "pods")
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any, cast

import msgspec

from makeway.client import ApiError, Client, Connection, Reflector
from makeway.client.resource import NODES, PODS
from makeway.control.clock import SystemClock
from makeway.control.config import Configuration
from makeway.control.loop import Loop
from makeway.kube.adapter import KubeCluster, run_scheduler
from tests.e2e.backends import BACKEND, Backend, embedded_backend, kube_backend

Object = dict[str, Any]
Through = contextlib.AbstractAsyncContextManager[Connection]

SCHEDULER_NAMES = ("makeway", "default-scheduler", "koord-scheduler")


def kubectl_path() -> str:
    """The kubectl that was asked for, or the cached one, or the machine's."""
    cache = Path(os.environ.get("MAKEWAY_CACHE") or Path.home() / ".cache" / "makeway")
    cached = cache / "kubectl-1.36.3"
    return (
        os.environ.get("KUBECTL")
        or (str(cached) if cached.exists() else "")
        or shutil.which("kubectl")
        or ""
    )


class Machine:
    def __init__(self, backend: Backend, client: Client, loop: Loop) -> None:
        self.backend = backend
        self.client = client
        self.loop = loop
        self.scheduler = cast("KubeCluster", loop.cluster)

    @property
    def server(self) -> Any:
        """The embedded API itself; on a real one, where it is."""
        return getattr(self.backend, "server", self.backend)

    async def kubectl(self, *args: str, text: str = "", fails: bool = False) -> str:
        return await self._run(kubectl_path(), *args, text=text, fails=fails)

    async def makeway(self, *args: str, fails: bool = False) -> str:
        """Our own command line, on this cluster."""
        return await self._run(sys.executable, "-m", "makeway.cli.main", *args, fails=fails)

    async def _run(self, program: str, *args: str, text: str = "", fails: bool = False) -> str:
        env = {
            **os.environ,
            "KUBECONFIG": str(self.backend.kubeconfig),
            "HOME": str(self.backend.home),
            "MAKEWAY_HOME": str(self.backend.home / "none"),
        }
        process = await asyncio.create_subprocess_exec(
            program,
            *args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
        )
        out, err = await process.communicate(text.encode())
        if bool(process.returncode) != fails:
            called = " ".join((Path(program).name, *args))
            raise AssertionError(f"{called}: {out.decode()}{err.decode()}")
        return out.decode() if not fails else err.decode()

    async def apply(self, text: str) -> str:
        return await self.kubectl("apply", "-f", "-", text=text)

    async def get(self, kind: str, name: str, namespace: str = "default") -> Object:
        found: Object = json.loads(
            await self.kubectl("get", kind, name, "-n", namespace, "-o", "json")
        )
        return found

    async def list(self, kind: str, namespace: str = "") -> list[Object]:
        where = ("-n", namespace) if namespace else ("-A",)
        found: list[Object] = json.loads(await self.kubectl("get", kind, *where, "-o", "json"))[
            "items"
        ]
        return found

    async def settled(self, quiet_s: float = 0.0, timeout_s: float = 30.0) -> None:
        """Until nothing was written for a while and the loop has nothing to do."""
        async with asyncio.timeout(timeout_s):
            while True:
                before = await self.backend.version()
                await asyncio.sleep(quiet_s or self.backend.quiet_s)
                if await self.backend.version() == before and self.loop.idle.is_set():
                    return

    async def until(self, true: Callable[[], Any], timeout_s: float = 15.0, what: str = "") -> None:
        """Until an awaitable question is answered with yes."""
        try:
            async with asyncio.timeout(timeout_s):
                while not await true():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"never happened: {what or true}") from None


def chosen_backend() -> str:
    return os.environ.get(BACKEND) or "embedded"


@contextlib.asynccontextmanager
async def machine(
    config: Configuration | None = None,
    *,
    port: int = 0,
    bind_first_fit: bool = False,
    backend: str = "",
    without: Collection[str] = (),
    through: Callable[[Connection], Through] | None = None,
) -> AsyncIterator[Machine]:
    """`backend` is embedded or kube; without it, what the test run was asked for. `without` are kinds that nobody runs.
    `through` changes how the scheduler reaches the server.
    """
    real = (backend or chosen_backend()) == "kube"
    place: contextlib.AbstractAsyncContextManager[Backend]
    place = kube_backend() if real else embedded_backend(port, without)
    clock = SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        world: Backend = await stack.enter_async_context(place)
        way = world.scheduler()
        if through is not None:
            way = await stack.enter_async_context(through(way))
        client = await stack.enter_async_context(Client(way))
        ready = asyncio.Event()
        started: asyncio.Future[Loop] = asyncio.get_running_loop().create_future()
        answering = _answering(config or Configuration())
        tasks = [asyncio.create_task(work) for work in world.tasks(client)]
        tasks.append(
            asyncio.create_task(run_scheduler(client, answering, clock, ready, started=started))
        )
        if bind_first_fit:
            tasks.append(asyncio.create_task(_bind_anywhere(client)))
        try:
            await _first(ready, tasks)
            yield Machine(world, client, started.result())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _answering(config: Configuration) -> Configuration:
    """The suite runs without another scheduler: its manifests ask for these."""
    if config.makeway.scheduler_names:
        return config
    ours = msgspec.structs.replace(config.makeway, scheduler_names=SCHEDULER_NAMES)
    return msgspec.structs.replace(config, makeway=ours)


async def _first(ready: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Ready, or the error of whoever did not get there."""
    waiting = asyncio.create_task(ready.wait())
    done, _ = await asyncio.wait([waiting, *tasks], timeout=20, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        if task is not waiting:
            task.result()
    assert ready.is_set(), "the scheduler did not start in time"


async def _bind_anywhere(client: Client) -> None:
    """Another scheduler, as simple as can be: every open pod goes to the first node."""
    open_pods: asyncio.Queue[Object] = asyncio.Queue()

    def look(_change: str, pod: Object) -> None:
        if not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates"):
            open_pods.put_nowait(pod)

    nodes: Reflector[Object] = Reflector(client, NODES)
    watched: Reflector[Object] = Reflector(client, PODS, look)
    async with asyncio.TaskGroup() as group:
        group.create_task(nodes.run())
        group.create_task(watched.run())
        while True:
            pod = await open_pods.get()
            if not nodes.cache or pod["metadata"].get("deletionTimestamp"):
                continue
            node = next(iter(nodes.cache.values()))["metadata"]["name"]
            meta = {k: pod["metadata"][k] for k in ("name", "namespace", "uid")}
            binding = {"metadata": meta, "target": {"kind": "Node", "name": node}}
            with contextlib.suppress(ApiError):
                await client.create(PODS, binding, meta["namespace"], subresource="binding")
