"""Calls to an API server that is reached directly: by a Unix socket, or by TCP with or without TLS.

A control loop makes tens of thousands of small calls. A general HTTP client spends more on each (URLs, proxies, cookies,
redirects) than the server does, and none of that exists between us and an API server. So this speaks just enough HTTP/1.1: one
call at a time on a connection, connections kept and reused.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, Protocol, cast
from urllib.parse import urlencode

import httptools
import msgspec

# The server closes an idle connection after a while; one that it may be closing right now is not used.
LONGEST_IDLE_S: Final = 30.0
CONNECT_WITHIN_S: Final = 10.0
READ_HEADERS: Final = frozenset({b"retry-after", b"location", b"warning"})


class NotConnectedError(OSError):
    """Nobody listens: the call was not sent, so it may be sent again."""


class Answer(msgspec.Struct, frozen=True):
    status: int
    content: bytes
    headers: dict[str, str]  # with the capitals that the names usually have


class Door(Protocol):
    """Where the server is, and how to get in."""

    @property
    def host(self) -> str:
        """As the server knows itself."""

    @property
    def prefix(self) -> str:
        """Before every path, where one address stands for several servers."""

    @property
    def tls(self) -> ssl.SSLContext | None: ...

    async def open(self, loop: asyncio.AbstractEventLoop) -> _Connection: ...


class UnixDoor(msgspec.Struct, frozen=True):
    path: str
    host: str = "localhost"
    prefix: str = ""
    tls: ssl.SSLContext | None = None

    async def open(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        _, connection = await loop.create_unix_connection(lambda: _Connection(loop), self.path)
        return connection


class TcpDoor(msgspec.Struct, frozen=True):
    address: str
    port: int
    host: str
    prefix: str = ""
    tls: ssl.SSLContext | None = None
    server_name: str = ""  # in its certificate, where that is another than its address

    async def open(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        name = (self.server_name or self.address) if self.tls is not None else None
        _, connection = await loop.create_connection(
            lambda: _Connection(loop), self.address, self.port, ssl=self.tls, server_hostname=name
        )
        return connection


class Wire:
    def __init__(self, door: Door) -> None:
        self.door = door
        self._free: list[_Connection] = []
        self._busy: set[_Connection] = set()

    async def call(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        data: bytes | None,
        timeout_s: float,
    ) -> Answer:
        connection = self._idle_one() or await self._connect()
        self._busy.add(connection)
        try:
            whole = self.door.prefix + path
            request = _request(self.door.host, method, whole, params, headers, data)
            answer = await connection.call(request, timeout_s)
        except BaseException:
            # Whatever comes on it now belongs to a call that nobody waits for.
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        if connection.open:
            self._free.append(connection)
        return answer

    def close(self) -> None:
        for connection in (*self._free, *self._busy):
            connection.close()
        self._free.clear()

    def _idle_one(self) -> _Connection | None:
        now = asyncio.get_running_loop().time()
        while self._free:
            connection = self._free.pop()
            if connection.open and now - connection.used_at < LONGEST_IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                return await self.door.open(loop)
        except ssl.SSLCertVerificationError:
            raise  # asking again would not make it trustworthy
        except OSError as error:
            raise NotConnectedError(str(error) or type(error).__name__) from error


def _request(
    host: str,
    method: str,
    path: str,
    params: Mapping[str, str] | None,
    headers: Mapping[str, str],
    data: bytes | None,
) -> bytes:
    target = f"{path}?{urlencode(params)}" if params else path
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if data is not None:
        lines.append(f"Content-Length: {len(data)}")
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return head + data if data else head


class _Connection(asyncio.Protocol):
    """One connection; the parser calls the `on_` methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.open = False
        self.used_at = loop.time()
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._content: list[bytes] = []
        self._headers: dict[str, str] = {}

    async def call(self, request: bytes, timeout_s: float) -> Answer:
        assert self._transport is not None
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        self._waiter = waiter
        timer = self._loop.call_later(timeout_s, self._time_out, waiter)
        self._transport.write(request)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None
            self.used_at = self._loop.time()

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.close()

    def _time_out(self, waiter: asyncio.Future[Answer]) -> None:
        if not waiter.done():
            waiter.set_exception(TimeoutError())

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self.open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._fail(exc or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close()
            self._fail(ConnectionError(f"no HTTP answer: {error}"))

    # What the parser finds

    def on_header(self, name: bytes, value: bytes) -> None:
        # Only what somebody asks for: an API server sends ten of them with every answer.
        if name.lower() in READ_HEADERS:
            self._headers[name.decode("latin-1").title()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._content.append(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.open = False
        answer = Answer(self._parser.get_status_code(), b"".join(self._content), self._headers)
        self._begin()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(answer)
