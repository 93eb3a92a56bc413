"""Load on an API over TLS that costs the client little: both share the machine's few cores.

Calls go over the bare HTTP/1.1 that our own components use, with TLS under it. A watcher does not decode what it hears: it counts
lines and keeps a checksum, so that a hundred of them fit beside the server, and equal checksums say that all of them heard the
same bytes in the same order.

    python -m bench.load watch HOME PATH COUNT LINES    # prints "ready", then one JSON line when every watcher has heard LINES
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
import zlib
from pathlib import Path
from typing import cast

import httptools

from makeway.cli.eventloop import run
from makeway.client.wire import TcpDoor, Wire

CALL_TIMEOUT_S = 60.0
HEARING_TIMEOUT_S = 60.0
HOST = "127.0.0.1"


class Way:
    """How to reach the API of a home."""

    def __init__(self, home: Path) -> None:
        self.port = int((home / "port").read_text())
        self.token = (home / "token").read_text().strip()
        self.context = ssl.create_default_context(cafile=str(home / "ca.crt"))


class SecureWire(Wire):
    """The wire of our own components, over TLS."""

    def __init__(self, way: Way) -> None:
        super().__init__(TcpDoor(HOST, way.port, host=f"{HOST}:{way.port}", tls=way.context))
        self._headers = {"Authorization": f"Bearer {way.token}", "Content-Type": "application/json"}

    async def send(
        self, method: str, path: str, data: bytes | None = None, content_type: str = ""
    ) -> bytes:
        headers = {**self._headers, "Content-Type": content_type} if content_type else self._headers
        answer = await self.call(method, path, None, headers, data, CALL_TIMEOUT_S)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.content[:500]!r}")
        return answer.content


class Listener(asyncio.Protocol):
    """One watch: how many lines came, and their checksum."""

    def __init__(self, path: str, token: str, wanted: int, *, keep: bool) -> None:
        self.lines = 0
        self.checksum = 0
        self.kept: list[bytes] = []
        self.started = asyncio.get_running_loop().create_future()
        self.done = asyncio.get_running_loop().create_future()
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        self._wanted = wanted
        self._keep = keep
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request.encode())

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        for waiting in (self.started, self.done):
            if not waiting.done():
                waiting.set_exception(exc or ConnectionResetError("the watch was cut off"))

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() != 200:
            raise RuntimeError(f"the watch was refused: {self._parser.get_status_code()}")
        self.started.set_result(None)

    def on_body(self, body: bytes) -> None:
        self.lines += body.count(b"\n")
        self.checksum = zlib.crc32(body, self.checksum)
        if self._keep:
            self.kept.append(body)
        if self.lines >= self._wanted and not self.done.done():
            self.done.set_result(None)


async def _watch(home: Path, path: str, count: int, wanted: int) -> None:
    way = Way(home)
    loop = asyncio.get_running_loop()
    listeners: list[Listener] = []
    for number in range(count):
        listener = Listener(path, way.token, wanted, keep=number == 0)
        await loop.create_connection(
            lambda made=listener: made,  # type: ignore[misc]  # a default argument binds it now
            HOST, way.port, ssl=way.context,
        )  # fmt: skip
        listeners.append(listener)
    await asyncio.gather(*(listener.started for listener in listeners))
    print("ready", flush=True)
    done = asyncio.gather(*(listener.done for listener in listeners))
    # What was lost by then shows in the numbers.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(done, HEARING_TIMEOUT_S)
    heard = [json.loads(line)["object"] for line in b"".join(listeners[0].kept).splitlines()]
    print(
        json.dumps(
            {
                "lines": [listener.lines for listener in listeners],
                "checksums": sorted({listener.checksum for listener in listeners}),
                "versions": [int(each["metadata"]["resourceVersion"]) for each in heard],
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    _, command, home, path, count, wanted = sys.argv
    assert command == "watch", "the one thing that this module does by itself"
    run(_watch(Path(home), path, int(count), int(wanted)))
