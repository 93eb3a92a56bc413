"""`makeway.checkpointed()`: one line, no cost, never an error. Whose word is taken on a cluster: `tests/e2e/test_cluster.py`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import makeway


def test_it_touches_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "checkpoint"
    monkeypatch.setenv("MAKEWAY_CHECKPOINT_FILE", str(file))

    assert makeway.checkpointed() is True
    assert makeway.checkpointed(saved_at=1000.0) is True

    assert file.stat().st_mtime == 1000.0


def test_outside_of_makeway_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAKEWAY_CHECKPOINT_FILE", raising=False)

    assert makeway.checkpointed() is False


def test_a_file_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAKEWAY_CHECKPOINT_FILE", str(tmp_path / "no" / "such" / "folder"))

    assert makeway.checkpointed() is False


@pytest.fixture
def in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the token that a pod on a cluster has."""
    (tmp_path / "token").write_text("of-this-pod\n")
    monkeypatch.delenv("MAKEWAY_CHECKPOINT_FILE", raising=False)
    monkeypatch.setenv("MAKEWAY_TOKEN_FILE", str(tmp_path / "token"))


@pytest.mark.usefixtures("in_a_pod")
def test_on_a_cluster_the_pod_tells_the_service_with_its_own_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _service(status=200) as (url, heard):
        monkeypatch.setenv("MAKEWAY_URL", url)

        assert makeway.checkpointed(saved_at=1000.5) is True

    assert heard == [("/checkpointed", "Bearer of-this-pod", {"savedAt": 1000.5})]


@pytest.mark.usefixtures("in_a_pod")
def test_a_service_that_refuses_or_is_away_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with _service(status=403) as (url, _):
        monkeypatch.setenv("MAKEWAY_URL", url)
        assert makeway.checkpointed() is False

    assert makeway.checkpointed() is False


@contextlib.contextmanager
def _service(status: int) -> Iterator[tuple[str, list[tuple[str, str, object]]]]:
    """A stand-in for makeway's Service that writes down what it is told."""
    heard: list[tuple[str, str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", heard
        server.shutdown()
        thread.join()


def test_importing_makeway_loads_nothing_else() -> None:
    code = "import makeway, sys; makeway.checkpointed(); print([m for m in sys.modules if m.startswith(('aiohttp', 'numpy', 'msgspec', 'typer'))])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
