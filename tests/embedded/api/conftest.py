"""A running embedded API for tests: over its Unix socket in the test's own loop, or for the real kubectl."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from makeway.embedded.server import ApiServer, serve

ROOT = Path(__file__).parents[3]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


class Api:
    """Requests to a running API, in a test's words."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session
        self.warnings: list[str] = []

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        **query: str,
    ) -> tuple[int, Any]:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": content_type} if data is not None else {}
        async with self.session.request(
            method, path, data=data, headers=headers, params=query
        ) as answer:
            self.warnings = answer.headers.getall("Warning", [])
            text = await answer.read()
            return answer.status, json.loads(
                text
            ) if "json" in answer.content_type else text.decode()

    async def get(self, path: str, **query: str) -> Any:
        code, content = await self.call("GET", path, **query)
        assert code == 200, content
        return content

    async def create(self, path: str, body: Any, **query: str) -> Any:
        code, content = await self.call("POST", path, body, **query)
        assert code == 201, content
        return content

    async def patch(self, path: str, body: Any, content_type: str = MERGE, **query: str) -> Any:
        code, content = await self.call("PATCH", path, body, content_type=content_type, **query)
        assert code in (200, 201), content
        return content

    async def delete(self, path: str, body: Any = None, **query: str) -> Any:
        code, content = await self.call("DELETE", path, body, **query)
        assert code == 200, content
        return content

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[Callable[[], Any]]:
        """Yields a function that awaits the next event."""
        async with self.session.get(path, params={"watch": "true", **query}) as answer:
            assert answer.status == 200

            async def following() -> Any:
                line = await asyncio.wait_for(answer.content.readline(), 5)
                return json.loads(line) if line else None

            yield following


async def connect(server: ApiServer) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        "http://makeway",
        connector=aiohttp.UnixConnector(str(server.socket_path), limit=0),
        headers={"Authorization": f"Bearer {server.token}"},
    )


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    server = await serve(tmp_path / "home")
    async with await connect(server) as session:
        yield Api(server, session)
    await server.stop()


def pod(name: str = "a", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


PODS = "/api/v1/namespaces/default/pods"


# ---- the real kubectl -------------------------------------------------------------------------------


class Kubectl:
    """The real kubectl, pointed at a running API."""

    def __init__(self, binary: Path, home: Path, scratch: Path) -> None:
        self.binary = binary
        self.home = home
        self.environment = {
            "KUBECONFIG": str(home / "kubeconfig"),
            "HOME": str(scratch),
            "PATH": os.environ.get("PATH", ""),
        }

    def run(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.binary), *arguments],
            env=self.environment, input=given, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def __call__(self, *arguments: str, given: str = "") -> str:
        result = self.run(*arguments, given=given)
        assert result.returncode == 0, f"kubectl {' '.join(arguments)}: {result.stderr}"
        return result.stdout

    def refused(self, *arguments: str, given: str = "") -> str:
        result = self.run(*arguments, given=given)
        assert result.returncode == 1, f"kubectl {' '.join(arguments)}: {result.stdout}"
        return result.stderr.strip()

    def apply(self, *manifests: str) -> str:
        return self("apply", "-f", "-", given="\n---\n".join(manifests))


@pytest.fixture(scope="session")
def kubectl_binary() -> Path:
    specification = importlib.util.spec_from_file_location(
        "kubectl_tool", ROOT / "tools" / "kubectl.py"
    )
    assert specification is not None
    assert specification.loader is not None
    tool = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(tool)
    try:
        return Path(tool.kubectl())
    except tool.KubectlMissingError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


class _BackgroundServer:
    """The API on a loop in a thread of its own, since kubectl is called synchronously."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(20)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = await serve(self._home)
        self._ready.set()
        await self._stopping.wait()
        await server.stop()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()


@pytest.fixture
def kubectl(kubectl_binary: Path, tmp_path: Path) -> Iterator[Kubectl]:
    server = _BackgroundServer(tmp_path / "home")
    try:
        yield Kubectl(kubectl_binary, tmp_path / "home", tmp_path / "user")
    finally:
        server.stop()
