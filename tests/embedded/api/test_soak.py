"""Time leaves nothing behind: after the log of changes has been filled several times over, memory and the file stay as they were."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import psutil
import pytest

from makeway.embedded import store
from tests.embedded.api.unwired import Server

PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
MOST_GROWTH = 8 * 1024 * 1024


def churn(server: Server, first: int, count: int) -> None:
    """Pods come, change and go, under names that never return."""
    for number in range(first, first + count):
        name = f"pod-{number}"
        spec = {"containers": [{"name": "c", "image": "i"}], "schedulerName": "nobody"}
        code, content = server.call("POST", PODS, {"metadata": {"name": name}, "spec": spec})
        assert code == 201, content
        server.call("PATCH", f"{PODS}/{name}", {"metadata": {"labels": {"a": name}}}, MERGE)
        server.call("GET", PODS, query=f"labelSelector=a={name}&limit=1".encode())
        assert server.call("DELETE", f"{PODS}/{name}")[0] == 200


def used(folder: Path) -> tuple[int, int]:
    gc.collect()
    on_disk = sum(path.stat().st_size for path in folder.glob("s.db*"))
    return psutil.Process().memory_info().rss, on_disk


def test_memory_and_the_file_do_not_grow_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LOG_LENGTH", 500)
    monkeypatch.setattr(store, "_PRUNE_EVERY", 100)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            churn(server, 0, 800)
            memory, on_disk = used(Path(folder))
            churn(server, 800, 2400)
            later_memory, later_on_disk = used(Path(folder))
        finally:
            server.stop()
    assert later_memory - memory < MOST_GROWTH
    assert later_on_disk < on_disk * 1.5 + MOST_GROWTH
