"""Events on objects, as `kubectl describe` shows them.

Recording never waits: events queue up and are written beside the work, so that a thousand starts do
not wait for a thousand notes. The same words about the same object again raise a count instead of
making a second event.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from typing import Protocol

import msgspec

from makeway.client import ApiError, Client
from makeway.client.resource import CORE_EVENTS, Object
from makeway.control.clock import timestamp
from makeway.errors import UserError

log = logging.getLogger(__name__)

WRITERS = 1
REMEMBERED = 4096
BUSY = 8  # calls under way before which events step back
PAUSE_S = 0.02
LONGEST_SILENCE_S = 10.0


class Clock(Protocol):
    def now(self) -> float: ...


class _Note(msgspec.Struct, frozen=True):
    involved: tuple[str, str, str, str, str]
    kind: str
    reason: str
    message: str
    at: float


class EventRecorder:
    """`record(pod, "Normal", "Killing", "Stopping container main")`; `run()` writes them."""

    def __init__(self, client: Client, component: str, clock: Clock) -> None:
        self._client = client
        self._component = component
        self._clock = clock
        self._queue: asyncio.Queue[_Note] = asyncio.Queue()
        self._written: OrderedDict[tuple[object, ...], tuple[str, int]] = OrderedDict()
        self._numbers = 0

    def record(self, obj: Object, kind: str, reason: str, message: str) -> None:
        metadata = obj["metadata"]
        involved = (
            str(obj.get("apiVersion") or "v1"),
            str(obj.get("kind") or "Pod"),
            str(metadata.get("namespace") or ""),
            str(metadata["name"]),
            str(metadata.get("uid") or ""),
        )
        self._queue.put_nowait(_Note(involved, kind, reason, message[:1024], self._clock.now()))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(self._write_all())

    async def _write_all(self) -> None:
        while True:
            note = await self._queue.get()
            await self._let_others_first(note)
            try:
                await self._write(note)
            except (ApiError, UserError) as error:
                # Nothing depends on an event; its namespace may be on its way out.
                log.debug("event %s on %s not written: %s", note.reason, note.involved, error)

    async def _let_others_first(self, note: _Note) -> None:
        """A flood of work comes before the story of it, but not for ever."""
        while self._client.under_way > BUSY and self._clock.now() < note.at + LONGEST_SILENCE_S:
            await asyncio.sleep(PAUSE_S)

    async def _write(self, note: _Note) -> None:
        key = (note.involved, note.kind, note.reason, note.message)
        known = self._written.get(key)
        if known is not None and await self._count_again(note, *known):
            self._remember(key, known[0], known[1] + 1)
            return
        name = self._name(note)
        self._remember(key, name, 1)
        await self._client.create(CORE_EVENTS, self._event(note, name))

    def _remember(self, key: tuple[object, ...], name: str, count: int) -> None:
        self._written[key] = (name, count)
        self._written.move_to_end(key)
        while len(self._written) > REMEMBERED:
            self._written.popitem(last=False)

    async def _count_again(self, note: _Note, name: str, count: int) -> bool:
        body = {"count": count + 1, "lastTimestamp": timestamp(note.at)}
        try:
            await self._client.patch(CORE_EVENTS, name, body, note.involved[2] or "default")
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return True

    def _name(self, note: _Note) -> str:
        # As everywhere in Kubernetes: the object's name and a number that does not repeat.
        self._numbers += 1
        return f"{note.involved[3]}.{int(note.at * 1e9) + self._numbers:016x}"

    def _event(self, note: _Note, name: str) -> Object:
        api_version, kind, namespace, involved, uid = note.involved
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace or "default"},
            "involvedObject": {
                "apiVersion": api_version,
                "kind": kind,
                "name": involved,
                "uid": uid,
                **({"namespace": namespace} if namespace else {}),
            },
            "type": note.kind,
            "reason": note.reason,
            "message": note.message,
            "source": {"component": self._component},
            "firstTimestamp": timestamp(note.at),
            "lastTimestamp": timestamp(note.at),
            "count": 1,
            "reportingComponent": self._component,
            "reportingInstance": f"{self._component}-{socket.gethostname()}",
        }
