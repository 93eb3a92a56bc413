"""An API server of one resource that does what a test tells it to: fail, cut the stream, forget."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Object = dict[str, Any]


def pod(name: str, *, uid: str = "", **labels: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "a",
            "uid": uid or f"uid-{name}",
            "labels": labels,
        },
    }


class FakeApi:
    """Pods in memory. `answers` are given first, one per request, in place of the real answer."""

    def __init__(self) -> None:
        self.pods: dict[str, Object] = {}
        self.version = 0
        self.requests: list[web.BaseRequest] = []
        self.bodies: list[bytes] = []
        self.answers: list[Callable[[], web.Response]] = []
        self.watchers: list[asyncio.Queue[bytes | None]] = []
        self.server = TestServer(self._app())

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    @property
    def url(self) -> str:
        return f"http://{self.server.host}:{self.server.port}"

    def put(self, obj: Object, kind: str = "ADDED") -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            self.pods.pop(obj["metadata"]["name"], None)
        else:
            self.pods[obj["metadata"]["name"]] = obj
        self.send({"type": kind, "object": obj})

    def send(self, event: Object) -> None:
        for queue in self.watchers:
            queue.put_nowait(json.dumps(event).encode() + b"\n")

    def cut(self) -> None:
        """End every stream."""
        for queue in self.watchers:
            queue.put_nowait(None)
        self.watchers.clear()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        if self.answers:
            return self.answers.pop(0)()
        if request.query.get("watch"):
            return await self._watch(request)
        if request.method == "GET" and request.path.endswith("/pods"):
            return self._page(request)
        return web.json_response({"kind": "Pod", "path": request.path})

    def _page(self, request: web.Request) -> web.Response:
        items = list(self.pods.values())
        start = int(request.query.get("continue", "0"))
        end = start + int(request.query.get("limit", "500"))
        more = {"continue": str(end)} if end < len(items) else {}
        return web.json_response(
            {"metadata": {"resourceVersion": str(self.version), **more}, "items": items[start:end]}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.watchers.append(queue)
        await answer.prepare(request)
        while (line := await queue.get()) is not None:
            await answer.write(line)
        return answer


def status(code: int, reason: str, message: str = "", **details: Any) -> Callable[[], web.Response]:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return lambda: web.json_response({**body, "details": details}, status=code)
