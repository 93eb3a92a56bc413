"""The API without a network, on one loop for a whole test: what made-up requests are sent to by the thousand."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from makeway.embedded.api.app import App
from makeway.embedded.api.bootstrap import ensure_first_objects
from makeway.embedded.store import Store
from makeway.kinds.serving.registry import build

NOW = 1_800_000_000.0
TOKEN = "t"


class Server:
    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.store = Store(folder / "s.db")
        self.loop.run_until_complete(self._start(folder))

    async def _start(self, folder: Path) -> None:
        self.store.start()
        self.app = App(self.store, build(), TOKEN, lambda: NOW, folder)
        ensure_first_objects(self.app.objects, NOW)

    def call(
        self,
        method: str,
        path: str,
        body: Any = b"",
        content_type: str = "application/json",
        query: bytes = b"",
        authorization: bytes = f"Bearer {TOKEN}".encode(),
    ) -> tuple[int, bytes]:
        """The status and the content of the answer; what is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.loop.run_until_complete(
            self._call(
                {
                    "type": "http",
                    "method": method,
                    "path": unquote(path),  # as the HTTP server does it
                    "query_string": query,
                    "headers": [
                        (b"authorization", authorization),
                        (b"content-type", content_type.encode("latin-1", "replace")),
                    ],
                },
                data,
            )
        )

    async def _call(self, scope: dict[str, Any], data: bytes) -> tuple[int, bytes]:
        answers: list[dict[str, Any]] = []
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": data}

        async def send(message: dict[str, Any]) -> None:
            answers.append(message)

        await asyncio.wait_for(self.app(scope, receive, send), 20)
        content = b"".join(answer.get("body", b"") for answer in answers[1:])
        return int(answers[0]["status"]), content

    def stop(self) -> None:
        self.store.stop()
        self.loop.close()
