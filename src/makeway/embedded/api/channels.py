"""The numbered channels between kubectl and a command: 0 in, 1 out, 2 errors, 3 the outcome as a Status, 4 the size of the terminal.

Over a WebSocket a frame's first byte is its channel, and 255 closes one. Over SPDY (kubectl before 1.30) each channel is a stream of its
own, named in its headers.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Protocol
from urllib.parse import parse_qsl

import msgspec

from makeway.embedded.api import spdy
from makeway.embedded.api.http import Receive, Scope, Send, encode
from makeway.embedded.api.streams import StreamEvent, Streams
from makeway.kinds.serving.refusal import Obj, bad_request

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
SPDY_PROTOCOLS: Final = ("v4.channel.k8s.io",)
STDIN, STDOUT, STDERR, OUTCOME, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
STREAM_TYPES: Final = {
    "stdin": STDIN,
    "stdout": STDOUT,
    "stderr": STDERR,
    "error": OUTCOME,
    "resize": RESIZE,
}
PATIENCE_S: Final = 30.0  # for a client to open the streams that it announced


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    container: str
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    def channels(self) -> set[int]:
        """Those that the client opens a stream for."""
        wanted = {
            STDIN: self.stdin,
            STDOUT: self.stdout,
            STDERR: self.stderr and not self.tty,
            RESIZE: self.tty,
        }
        return {OUTCOME} | {channel for channel, asked in wanted.items() if asked}


def read_question(scope: Scope) -> Asked:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    said = dict(pairs)

    def flag(name: str) -> bool:
        return said.get(name, "").lower() in ("true", "1")

    return Asked(
        command=tuple(value for key, value in pairs if key == "command"),
        container=said.get("container", ""),
        stdin=flag("stdin"),
        stdout=flag("stdout"),
        stderr=flag("stderr"),
        tty=flag("tty"),
    )


class Channels(Protocol):
    async def write(self, channel: int, content: bytes) -> None: ...

    async def read(self) -> tuple[int, bytes] | None:
        """A channel and its bytes; None when the client has gone."""

    async def end(self, outcome: Obj) -> None: ...


async def open_channels(scope: Scope, receive: Receive, send: Send, asked: Asked) -> Channels:
    if scope["type"] == "spdy":
        streams = Streams(receive, send)
        await streams.accept(scope, SPDY_PROTOCOLS)
        channels = _StreamChannels(streams)
        await channels.wait_for(asked.channels())
        return channels
    return await _SocketChannels.accept(scope, receive, send)


class _SocketChannels:
    """Over a WebSocket."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    @classmethod
    async def accept(cls, scope: Scope, receive: Receive, send: Send) -> _SocketChannels:
        await receive()  # websocket.connect
        offered = scope.get("subprotocols") or []
        chosen = next((p for p in PROTOCOLS if p in offered), None)
        if chosen is None:
            raise bad_request(f"unable to upgrade: none of {', '.join(PROTOCOLS)} was offered")
        await send({"type": "websocket.accept", "subprotocol": chosen})
        return cls(receive, send)

    async def write(self, channel: int, content: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": bytes([channel]) + content})

    async def read(self) -> tuple[int, bytes] | None:
        while True:
            message = await self._receive()
            if message["type"] != "websocket.receive":
                return None
            content = message.get("bytes") or (message.get("text") or "").encode()
            if content:
                return content[0], content[1:]

    async def end(self, outcome: Obj) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            await self.write(OUTCOME, encode(outcome))
            await self._send({"type": "websocket.close", "code": 1000})


class _StreamChannels:
    """Over SPDY."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._channel: dict[int, int] = {}  # of a stream
        self._stream: dict[int, int] = {}  # of a channel
        self._early: list[tuple[int, bytes]] = []
        self._size = b""

    async def wait_for(self, channels: set[int]) -> None:
        """Until the client has opened these: what a command writes must have somewhere to go."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while channels - self._stream.keys():
                    event = await self._streams.next()
                    if event is None:
                        return
                    self._early += self._heard(event)

    def _heard(self, event: StreamEvent) -> list[tuple[int, bytes]]:
        if isinstance(event, spdy.Opened):
            channel = STREAM_TYPES.get(event.headers.get("streamtype", ""))
            if channel is not None:
                self._channel[event.stream] = channel
                self._stream[channel] = event.stream
            return []
        channel = self._channel.get(event.stream)
        if channel is None or isinstance(event, spdy.Dropped):
            return []
        if channel == RESIZE:
            return [(RESIZE, size) for size in self._sizes(event.content)]
        heard = [(channel, event.content)] if event.content else []
        return [*heard, (CLOSE, bytes([channel]))] if event.last else heard

    def _sizes(self, content: bytes) -> list[bytes]:
        """Each is a line; a stream may break them anywhere."""
        *whole, self._size = (self._size + content[:1024]).split(b"\n")
        return whole

    async def write(self, channel: int, content: bytes) -> None:
        if channel in self._stream:
            await self._streams.write(self._stream[channel], content)

    async def read(self) -> tuple[int, bytes] | None:
        while not self._early:
            event = await self._streams.next()
            if event is None:
                return None
            self._early = self._heard(event)
        return self._early.pop(0)

    async def end(self, outcome: Obj) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            await self.write(OUTCOME, encode(outcome))
        await self._streams.close()
