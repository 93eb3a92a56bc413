"""`kubectl port-forward`: each connection to the local port is a pair of streams, one for data and one for what went wrong.

Pods of this machine are processes, which share its network: a port of a pod is a port of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Final

from makeway.embedded.api import spdy
from makeway.embedded.api.http import Receive, Scope, Send
from makeway.embedded.api.streams import StreamEvent, Streams
from makeway.kinds.serving.refusal import Obj

PROTOCOLS: Final = ("portforward.k8s.io",)
HOSTS: Final = ("127.0.0.1", "::1")
CHUNK: Final = 64 * 1024


class _Forwarded:
    """One connection: the client's two streams, and ours to the pod's port."""

    def __init__(self, streams: Streams, errors: int, data: int, port: str, pod: Obj) -> None:
        self._data = data
        self._streams = streams
        self._errors = errors
        self._port = port
        self._pod = pod
        self._connected = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        try:
            reader, self._writer = await _connect(_port(self._port))
            self._connected.set()
            while content := await reader.read(CHUNK):
                await self._streams.write(self._data, content)
        except (OSError, ValueError) as error:
            await self._streams.write(self._errors, self._explain(error).encode())
        finally:
            self._connected.set()
            for stream in (self._data, self._errors):
                await self._streams.write(stream, b"", last=True)
            self._streams.forget(self._data, self._errors)
            self.hang_up()

    def _explain(self, error: Exception) -> str:
        metadata = self._pod["metadata"]
        code = getattr(error, "errno", None)
        why = os.strerror(code).lower() if code else str(error)
        return (
            f"error forwarding port {self._port} to pod {metadata['name']}, uid {metadata['uid']}:"
            f" failed to connect to localhost:{self._port}: {why}"
        )

    async def feed(self, content: bytes, *, last: bool) -> None:
        await self._connected.wait()
        if self._writer is None or self._writer.is_closing():
            return
        with contextlib.suppress(OSError):
            self._writer.write(content)
            await self._writer.drain()
            if last:
                self._writer.write_eof()

    def hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Programs listen on either; what is said when none does is said of the first."""
    try:
        return await asyncio.open_connection(HOSTS[0], port)
    except OSError:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection(HOSTS[1], port)
        raise


def _port(text: str) -> int:
    port = int(text) if text.isdecimal() else 0
    if not 0 < port < 65536:
        raise ValueError(f'"{text}" is not a port')
    return port


async def forward(scope: Scope, receive: Receive, send: Send, pod: Obj) -> None:
    """Until the client goes."""
    streams = Streams(receive, send)
    await streams.accept(scope, PROTOCOLS)
    forwarding = _Forwarding(streams, pod)
    try:
        while (event := await streams.next()) is not None:
            await forwarding.heed(event)
    finally:
        await forwarding.stop()
        await streams.close()


class _Forwarding:
    """All connections of one `kubectl port-forward`."""

    def __init__(self, streams: Streams, pod: Obj) -> None:
        self._streams = streams
        self._pod = pod
        self._half_open: dict[str, spdy.Opened] = {}
        self._running: dict[int, tuple[_Forwarded, asyncio.Task[None]]] = {}

    async def heed(self, event: StreamEvent) -> None:
        match event:
            case spdy.Opened():
                self._open(event)
            case spdy.Received() if event.stream in self._running:
                one, _ = self._running[event.stream]
                await one.feed(event.content, last=event.last)
            case spdy.Dropped() if event.stream in self._running:
                self._running[event.stream][0].hang_up()

    def _open(self, opened: spdy.Opened) -> None:
        """A request's two streams come one after the other, in either order."""
        request = opened.headers.get("requestid", "")
        other = self._half_open.pop(request, None)
        if other is None:
            self._half_open[request] = opened
            return
        is_error = opened.headers.get("streamtype") == "error"
        errors, data = (opened, other) if is_error else (other, opened)
        port = data.headers.get("port", "")
        one = _Forwarded(self._streams, errors.stream, data.stream, port, self._pod)
        self._running[data.stream] = (one, asyncio.create_task(self._run(one, data.stream)))

    async def _run(self, one: _Forwarded, stream: int) -> None:
        try:
            await one.run()
        finally:
            del self._running[stream]

    async def stop(self) -> None:
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
