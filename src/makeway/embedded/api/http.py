"""Requests and answers on bare ASGI: what a handler needs, and nothing between it and the
server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from makeway.kinds.serving.refusal import Obj, Refusal, bad_request

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

# A larger object is refused, as the API server refuses it (its limit is 3 MiB).
MAX_BODY = 3 * 1024 * 1024
MAX_DRAINED = 64 * 1024 * 1024
JSON = b"application/json"

encode = msgspec.json.Encoder().encode


class Request:
    """One request; the body is read once, on demand."""

    __slots__ = ("_query", "_receive", "headers", "method", "path", "query_string", "warnings")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.query_string: bytes = scope["query_string"]
        self._receive = receive
        self._query: dict[str, str] | None = None
        self.warnings: list[str] = []

    @property
    def query(self) -> dict[str, str]:
        if self._query is None:
            text = self.query_string.decode("latin-1")
            self._query = dict(parse_qsl(text, keep_blank_values=True)) if text else {}
        return self._query

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("true", "1")

    def number(self, name: str) -> int | None:
        text = self.query.get(name)
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None

    @property
    def dry_run(self) -> bool:
        value = self.query.get("dryRun", "")
        if value not in ("", "All"):
            raise Refusal(
                422, "Invalid", f'dryRun: Unsupported value: "{value}": supported values: "All"'
            )
        return value == "All"

    @property
    def content_type(self) -> str:
        return self.header(b"content-type").partition(";")[0].strip().lower()

    async def body(self) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise bad_request("the request body was cut off")
            chunk = message.get("body", b"")
            size += len(chunk)
            more = bool(message.get("more_body"))
            if size > MAX_BODY:
                # The rest is read and dropped, up to a point: who is still sending would not see the answer.
                chunks.clear()
                if not more or size > MAX_DRAINED:
                    raise Refusal(
                        413,
                        "RequestEntityTooLarge",
                        f"Request entity too large: limit is {MAX_BODY}",
                    )
                continue
            chunks.append(chunk)
            if not more:
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def disconnected(self) -> None:
        """Return when the client has gone."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return


class Answer:
    """A complete answer: status, body, content type and extra headers."""

    __slots__ = ("body", "code", "content_type", "headers")

    def __init__(
        self,
        body: bytes,
        code: int = 200,
        content_type: bytes = JSON,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self.body = body
        self.code = code
        self.content_type = content_type
        self.headers = headers

    async def send(self, send: Send, warnings: list[str]) -> None:
        headers = [
            (b"content-type", self.content_type),
            (b"content-length", b"%d" % len(self.body)),
            *self.headers,
            *(warning_header(text) for text in warnings),
        ]
        await send({"type": "http.response.start", "status": self.code, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def warning_header(text: str) -> tuple[bytes, bytes]:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return b"warning", f'299 - "{escaped}"'.encode("utf-8", "replace")


def json_answer(content: Any, code: int = 200) -> Answer:
    return Answer(encode(content), code)


def refusal_answer(refusal: Refusal) -> Answer:
    return json_answer(refusal.status(), refusal.code)


def plain(text: str, code: int = 200) -> Answer:
    return Answer(text.encode(), code, b"text/plain; charset=utf-8")


def success(resource: str, group: str, name: str, uid: str) -> Obj:
    details: Obj = {"name": name, "kind": resource, "uid": uid}
    if group:
        details["group"] = group
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }
