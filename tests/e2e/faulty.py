"""A stretch of bad network in front of a real API server: answers of our choice, watches that are cut or too old.

async with faulty(connection) as way:
    way.refuse(429, times=20)
    way.cut_watches()
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable

import aiohttp
from aiohttp import web

from makeway.client import Connection

REASONS = {410: "Expired", 429: "TooManyRequests", 500: "InternalError"}
HOP_BY_HOP = frozenset({"connection", "content-length", "host", "transfer-encoding"})
READING = frozenset({"GET", "HEAD"})


class Way:
    """The way to the server, and what goes wrong on it."""

    def __init__(self, to: Connection) -> None:
        self.happened: Counter[str] = Counter()
        self.url = ""
        self._to = to
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        self._refusals: list[int] = []
        self._too_old = 0
        self._watches: set[asyncio.Task[None]] = set()

    def refuse(self, code: int, times: int) -> None:
        """The next so many writes are answered with this."""
        self._refusals += [code] * times

    def forget_versions(self, watches: int) -> None:
        """The next so many watches are told that what they ask for is too old."""
        self._too_old += watches

    def cut_watches(self) -> None:
        for watch in list(self._watches):
            watch.cancel()

    async def close(self) -> None:
        self.cut_watches()
        await self._session.close()

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        watching = request.query.get("watch") == "true"
        if request.method not in READING and self._refusals:
            return self._status(self._refusals.pop())
        if watching and self._too_old:
            self._too_old -= 1
            return self._status(410)
        identity = await self._to.credentials.identity()
        async with self._session.request(
            request.method,
            f"{self._to.url}{request.raw_path}",
            data=await request.read() or None,
            headers=_kept(request.headers.items()),
            ssl=self._to.tls(identity) or True,
        ) as answer:
            if watching:
                return await self._follow(request, answer)
            body = await answer.read()
            return web.Response(
                status=answer.status, body=body, headers=_kept(answer.headers.items())
            )

    async def _follow(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        stream = web.StreamResponse(status=answer.status, headers=_kept(answer.headers.items()))
        await stream.prepare(request)

        async def copy() -> None:
            async for chunk in answer.content.iter_any():
                await stream.write(chunk)

        watch = asyncio.ensure_future(copy())
        self._watches.add(watch)
        try:
            with contextlib.suppress(ConnectionError, aiohttp.ClientError):
                await asyncio.wait({watch})
        finally:
            self._watches.discard(watch)
            if watch.cancelled():
                self.happened["cut"] += 1
                assert request.transport is not None
                request.transport.close()  # in the middle of whatever it was saying
            watch.cancel()
        return stream

    def _status(self, code: int) -> web.Response:
        self.happened[str(code)] += 1
        status = {
            "apiVersion": "v1",
            "kind": "Status",
            "status": "Failure",
            "code": code,
            "reason": REASONS[code],
            "message": "the way is bad today",
        }
        return web.json_response(status, status=code)


def _kept(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in HOP_BY_HOP}


@contextlib.asynccontextmanager
async def faulty(to: Connection) -> AsyncIterator[Way]:
    way = Way(to)
    app = web.Application(client_max_size=32 << 20)
    app.router.add_route("*", "/{path:.*}", way.pass_on)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    way.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield way
    finally:
        await way.close()
        await runner.cleanup()
