"""Commands in a pod, as far as their channels go."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from makeway.embedded.api.channels import OUTCOME, RESIZE, STDOUT
from makeway.embedded.api.sessions import execute

POD = {
    "metadata": {"name": "p", "uid": "u"},
    "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
    "status": {"containerStatuses": [{"name": "c", "state": {"running": {"startedAt": "now"}}}]},
}


class Client:
    """Says what it was given, and hears what comes back."""

    def __init__(self, *says: bytes) -> None:
        self._says: list[dict[str, Any]] = [{"type": "websocket.connect"}]
        self._says += [{"type": "websocket.receive", "bytes": said} for said in says]
        self.heard: dict[int, bytes] = {}

    async def receive(self) -> Any:
        if not self._says:
            await asyncio.Event().wait()
        return self._says.pop(0)

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.send":
            channel, content = message["bytes"][0], message["bytes"][1:]
            self.heard[channel] = self.heard.get(channel, b"") + content


@pytest.mark.parametrize(
    "size", [b"{}", b"[]", b"no size", b'{"Height": -1, "Width": 70000}', b'{"Height": "x"}']
)
async def test_a_terminal_of_no_size_does_not_end_the_command(tmp_path: Path, size: bytes) -> None:
    run = tmp_path / "pods" / "u" / "containers" / "c" / "0"
    run.mkdir(parents=True)
    spec = {"env": {"PATH": "/usr/bin:/bin"}, "cwd": str(tmp_path)}
    (run / "spec.json").write_text(json.dumps(spec))
    asked = [("command", "sh"), ("command", "-c"), ("command", "sleep 0.2; echo done")]
    query = urlencode([*asked, ("tty", "true"), ("stdout", "true")]).encode()
    scope = {
        "type": "websocket",
        "query_string": query,
        "subprotocols": ["v5.channel.k8s.io"],
    }
    client = Client(bytes([RESIZE]) + size)
    await execute(scope, client.receive, client.send, tmp_path, POD)
    assert client.heard[STDOUT].strip() == b"done"
    assert json.loads(client.heard[OUTCOME])["status"] == "Success"
