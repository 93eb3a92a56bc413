"""HTTP that becomes SPDY: what kubectl before 1.30 asks for, and later ones fall back to.

uvicorn knows one upgrade, to a WebSocket. This adds the other: the application is called with a scope of type `spdy`, and reads and writes
bytes in ASGI's words for WebSockets.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

log = logging.getLogger(__name__)

SPDY: Final = b"spdy/3.1"
MAX_WAITING: Final = 256 * 1024  # bytes that were received and not asked for


class Http(HttpToolsProtocol):
    """Requests as uvicorn serves them, and upgrades to SPDY."""

    def _should_upgrade(self) -> bool:
        return super()._should_upgrade() or self._get_upgrade() == SPDY

    def handle_websocket_upgrade(self) -> None:
        if self._get_upgrade() != SPDY:
            super().handle_websocket_upgrade()
            return
        self.connections.discard(self)
        _Upgraded(self).start()


class _Upgraded(asyncio.Protocol):
    """The connection after the request: bytes both ways."""

    def __init__(self, http: HttpToolsProtocol) -> None:
        url = httptools.parse_url(http.url)
        self._scope: dict[str, Any] = {
            **http.scope,
            "type": "spdy",
            "path": unquote(url.path.decode("ascii")),
            "query_string": url.query or b"",
        }
        self._app = http.app
        self._transport = http.transport
        self._state = http.server_state
        self._received: deque[bytes] = deque()
        self._waiting = 0
        self._gone = False
        self._something = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._connected = False

    def start(self) -> None:
        self._transport.set_protocol(self)
        self._state.connections.add(self)  # type: ignore[arg-type]  # all it is asked for is shutdown()
        task = asyncio.get_running_loop().create_task(self._run())
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        except Exception:
            log.exception("session failed: %s", self._scope["path"])
        finally:
            self._transport.close()

    def shutdown(self) -> None:
        """Asked for by the server when it goes down."""
        self._transport.close()

    # ---- from the connection ---------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        self._waiting += len(data)
        if self._waiting > MAX_WAITING:
            self._transport.pause_reading()
        self._something.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._gone = True
        self._something.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # ---- for the application ---------------------------------------------------------------------

    async def _receive(self) -> dict[str, Any]:
        if not self._connected:
            self._connected = True
            return {"type": "websocket.connect"}
        while not self._received:
            if self._gone:
                return {"type": "websocket.disconnect"}
            self._something.clear()
            await self._something.wait()
        content = self._received.popleft()
        self._waiting -= len(content)
        if self._waiting <= MAX_WAITING and not self._gone:
            self._transport.resume_reading()
        return {"type": "websocket.receive", "bytes": content}

    async def _send(self, message: dict[str, Any]) -> None:
        if self._gone:
            return
        match message["type"]:
            case "websocket.accept":
                upgrade = [(b"connection", b"Upgrade"), (b"upgrade", b"SPDY/3.1")]
                self._write_head(101, [*upgrade, *message.get("headers", [])])
            case "websocket.http.response.start":
                self._write_head(
                    message["status"], [*message["headers"], (b"connection", b"close")]
                )
            case "websocket.send":
                self._transport.write(message["bytes"])
            case "websocket.http.response.body":
                self._transport.write(message["body"])
            case "websocket.close":
                self._transport.close()
        await self._writable.wait()

    def _write_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self._transport.write(STATUS_LINE[status] + lines + b"\r\n")
