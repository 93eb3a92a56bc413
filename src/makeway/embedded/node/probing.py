"""The probes of one run of a container, and what follows from their answers.

A startup probe comes first and alone. Then liveness may end the run, and readiness says whether it can be used; without one, a
container that is up is ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from makeway.client.resource import Object
from makeway.embedded.node.machine import LOOPBACK
from makeway.embedded.node.probes import Surroundings, follow, probe_once
from makeway.embedded.node.process import Run, Spec


class Change(Protocol):
    """What is new about the container's state."""

    def __call__(self, **facts: object) -> None: ...


class Prober:
    def __init__(
        self,
        *,
        container: Object,
        around: Surroundings,
        change: Change,
        tell: Callable[[str, str, str], None],
        stop: Callable[[], None],
    ) -> None:
        self._container = container
        self._around = around
        self._change = change
        self._tell = tell
        self._stop = stop

    async def run(self) -> None:
        if self._container.get("startupProbe"):
            await self._until_up()
        async with asyncio.TaskGroup() as group:
            if self._container.get("livenessProbe"):
                group.create_task(self._watch_liveness())
            if self._container.get("readinessProbe"):
                group.create_task(self._watch_readiness())
            else:
                self._change(ready=True, started=True)

    async def _until_up(self) -> None:
        up = asyncio.Event()
        asking = asyncio.ensure_future(
            self._ask(
                "startupProbe",
                lambda ok, said: up.set() if ok else self._fail("Startup", said),
                at_first=False,
            )
        )
        waiting = asyncio.ensure_future(up.wait())
        try:
            await asyncio.wait({asking, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (asking, waiting):
                task.cancel()
            await asyncio.gather(asking, waiting, return_exceptions=True)
        self._change(started=True)

    async def _watch_liveness(self) -> None:
        await self._ask(
            "livenessProbe",
            lambda ok, said: None if ok else self._fail("Liveness", said),
            at_first=True,
        )

    async def _watch_readiness(self) -> None:
        def turn(ok: bool, said: str) -> None:
            if not ok:
                self._tell("Warning", "Unhealthy", f"Readiness probe failed: {said}")
            self._change(ready=ok)

        await self._ask("readinessProbe", turn, at_first=False)

    async def _ask(self, which: str, turn: Callable[[bool, str], None], *, at_first: bool) -> None:
        probe = self._container[which]
        await follow(
            probe,
            lambda: probe_once(probe, self._container, LOOPBACK, self._around),
            turn,
            at_first=at_first,
        )

    def _fail(self, which: str, said: str) -> None:
        name = self._container["name"]
        self._tell("Warning", "Unhealthy", f"{which} probe failed: {said}")
        self._tell(
            "Normal",
            "Killing",
            f"Container {name} failed {which.lower()} probe, will be restarted",
        )
        self._stop()


def surroundings_of(run: Run) -> Surroundings:
    """After a restart of the server: as the shim was told."""
    spec = msgspec.json.decode((run.folder / "spec.json").read_bytes(), type=Spec)
    return Surroundings(env=spec.env, cwd=spec.cwd, uid=spec.uid, gid=spec.gid)
