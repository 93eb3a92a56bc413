"""What a cluster asks of a replica: `/healthz` (alive?), `/readyz` (of use?) and `/metrics`; and where pods say that they
have saved: `POST /checkpointed`.

A replica that waits for the lease is ready too: a rolling update must not wait for an election. It is not alive when its
event loop hangs, and then it does not answer, which is the point of asking.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import aiohttp
import msgspec
from aiohttp import web

from makeway.client import ApiError
from makeway.control.metrics import Metrics
from makeway.errors import UserError
from makeway.kube.checkpoints import Checkpoints, Refused

_LARGEST_REPORT = 4096
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """What a pod posts; without a time it means now."""

    saved_at: float | None = None


class Health:
    """What the replica says about itself."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()  # the API server answered once


@contextlib.asynccontextmanager
async def serve_endpoints(
    listen: str, health: Health, metrics: Metrics, checkpoints: Checkpoints
) -> AsyncIterator[str]:
    """Listen on `HOST:PORT` until the block ends; yields the address that was taken."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_: web.Request) -> web.Response:
        if health.connected.is_set():
            return web.Response(text="ok")
        return web.Response(status=503, text="the API server has not answered yet")

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text().encode(), headers={"Content-Type": PROMETHEUS})

    async def checkpointed(request: web.Request) -> web.Response:
        return await _take_report(request, checkpoints)

    app = web.Application(client_max_size=_LARGEST_REPORT)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", show_metrics)
    app.router.add_post("/checkpointed", checkpointed)
    async with listening(app, parse_address(listen), "--listen") as address:
        yield address


@contextlib.asynccontextmanager
async def listening(
    app: web.Application,
    address: tuple[str, int],
    option: str,
    secure: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """While the block runs the app is served; yields the address that was taken."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, *address, ssl_context=secure)
        try:
            await site.start()
        except OSError as error:
            raise UserError(
                f"cannot listen: {error.strerror}.",
                where=":".join(map(str, address)),
                hint=f"Choose another: {option}",
            ) from error
        bound = runner.addresses[0]
        yield f"{bound[0]}:{bound[1]}"
    finally:
        await runner.cleanup()


async def _take_report(request: web.Request, checkpoints: Checkpoints) -> web.Response:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        return web.Response(status=401, text="send the token of the pod as a bearer token")
    try:
        report = msgspec.json.decode(await request.read() or b"{}", type=Report)
        counts = await checkpoints.report(token.strip(), report.saved_at)
    except msgspec.DecodeError as error:
        return web.Response(status=400, text=f'expected {{"savedAt": seconds since 1970}}: {error}')
    except Refused as refused:
        return web.Response(status=refused.status, text=str(refused))
    except (ApiError, UserError, aiohttp.ClientError) as error:
        return web.Response(status=503, text=f"the API server does not take it: {error}")
    return web.json_response({"lastCheckpoint": counts})


def parse_address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit():
        raise UserError(
            f'expected HOST:PORT, got "{listen}".',
            where="--listen",
            hint="For example 0.0.0.0:8080.",
        )
    return host.strip("[]") or "0.0.0.0", int(port)
