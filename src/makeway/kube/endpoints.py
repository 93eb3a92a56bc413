"""What a cluster asks of a replica: `/healthz` (alive?), `/readyz` (of use?) and `/metrics`.

A replica that waits for the lease is ready too: a rolling update must not wait for an election. It is not alive when its
event loop hangs, and then it does not answer, which is the point of asking.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from makeway.control.metrics import Metrics
from makeway.errors import UserError

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Health:
    """What the replica says about itself."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()  # the API server answered once


@contextlib.asynccontextmanager
async def serve_endpoints(listen: str, health: Health, metrics: Metrics) -> AsyncIterator[str]:
    """Listen on `HOST:PORT` until the block ends; yields the address that was taken."""
    host, port = parse_address(listen)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_: web.Request) -> web.Response:
        if health.connected.is_set():
            return web.Response(text="ok")
        return web.Response(status=503, text="the API server has not answered yet")

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text().encode(), headers={"Content-Type": PROMETHEUS})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", show_metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise UserError(
                f"cannot listen: {error.strerror}.", where=listen, hint="Choose another: --listen"
            ) from error
        bound = runner.addresses[0]
        yield f"{bound[0]}:{bound[1]}"
    finally:
        await runner.cleanup()


def parse_address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit():
        raise UserError(
            f'expected HOST:PORT, got "{listen}".',
            where="--listen",
            hint="For example 0.0.0.0:8080.",
        )
    return host.strip("[]") or "0.0.0.0", int(port)
