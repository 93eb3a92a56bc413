"""An upgraded connection that carries many streams: SPDY, as it is or inside a WebSocket.

The connection is spoken to in ASGI's words for WebSockets (`websocket.receive`, `websocket.send`, ...), whichever of the two it is: see
`upgrade.py` for the bare one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Final, assert_never

from makeway.embedded.api import spdy
from makeway.embedded.api.http import Receive, Scope, Send
from makeway.kinds.serving.refusal import Refusal

TUNNELLED: Final = "SPDY/3.1+"  # before the name of what is spoken in a WebSocket
PROTOCOL_HEADER: Final = b"x-stream-protocol-version"
MAX_STREAMS: Final = 1000
LINGER_S: Final = 5.0

StreamEvent = spdy.Opened | spdy.Received | spdy.Dropped


class Streams:
    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._framing = spdy.Framing()
        self._open: dict[int, bool] = {}  # and whether we may still write to it
        self._heard: deque[StreamEvent] = deque()

    async def accept(self, scope: Scope, protocols: Sequence[str]) -> str:
        """Agree on the first of these that was offered."""
        await self._receive()  # websocket.connect
        bare = scope["type"] == "spdy"
        offered = _offered(scope) if bare else scope.get("subprotocols") or []
        prefix = "" if bare else TUNNELLED
        chosen = next((p for p in protocols if prefix + p in offered), None)
        if chosen is None:
            why = f"unable to upgrade: unable to negotiate protocol: client supports {offered}, server accepts {list(protocols)}"
            raise Refusal(403, "Forbidden", why)
        headers = [(PROTOCOL_HEADER, chosen.encode())] if bare else []
        await self._send(
            {"type": "websocket.accept", "subprotocol": prefix + chosen, "headers": headers}
        )
        return chosen

    async def next(self) -> StreamEvent | None:
        """What happens next to a stream; None when the client has gone."""
        while not self._heard:
            message = await self._receive()
            if message["type"] != "websocket.receive":
                return None
            try:
                for event in self._framing.feed(message.get("bytes") or b""):
                    await self._hear(event)
            except spdy.BrokenFrameError:
                return None
        return self._heard.popleft()

    async def _hear(self, event: spdy.Event) -> None:
        match event:
            case spdy.Pinged():
                await self._write(spdy.pong(event.number))
            case spdy.Opened() if len(self._open) >= MAX_STREAMS:
                await self._write(spdy.reset(event.stream, spdy.REFUSED))
            case spdy.Opened():
                self._open[event.stream] = True
                await self._write(self._framing.reply(event.stream))
                self._heard.append(event)
            case spdy.Dropped():
                self.forget(event.stream)
                self._heard.append(event)
            case spdy.Received():
                self._heard.append(event)
            case spdy.Leaving():
                pass  # its open streams may still be used
            case _:
                assert_never(event)

    async def write(self, stream: int, content: bytes, *, last: bool = False) -> None:
        """Writing to a stream that is closed says nothing to anybody."""
        if self._open.get(stream):
            self._open[stream] = not last
            await self._write(spdy.data(stream, content, last=last))

    def forget(self, *streams: int) -> None:
        """Both sides are done with these."""
        for stream in streams:
            self._open.pop(stream, None)

    async def _write(self, content: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": content})

    async def close(self) -> None:
        """Say goodbye, and let the client hang up: hanging up on what it still sends would lose what it has not read."""
        with contextlib.suppress(OSError, RuntimeError):
            for stream in [stream for stream, writable in self._open.items() if writable]:
                await self.write(stream, b"", last=True)
            await self._write(spdy.goaway(max(self._open, default=0)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    while await self.next() is not None:
                        pass
            await self._send({"type": "websocket.close", "code": 1000})


def _offered(scope: Scope) -> list[str]:
    """Each in a header of its own, or all in one."""
    lines = [value.decode("latin-1") for name, value in scope["headers"] if name == PROTOCOL_HEADER]
    return [name.strip() for line in lines for name in line.split(",") if name.strip()]
