"""A Job as a real process: stopped with notice, started again, finished from where it was."""

from __future__ import annotations

import asyncio
from pathlib import Path

from makeway.client.resource import JOBS, PODS, Object
from makeway.embedded.controllers import run_controllers
from makeway.embedded.node import LocalNode, NodeOptions
from tests.embedded.conftest import Cluster

# Counts to twelve; on SIGTERM writes how far it came, and goes on from there the next time.
TRAINING = """
n=$(cat "$SAVE/step" 2>/dev/null || echo 0)
echo "starts at $n"
trap 'echo $n > "$SAVE/step"; echo "saved $n"; exit 143' TERM
while [ "$n" -lt 12 ]; do sleep 0.1; n=$((n+1)); done
echo "done at $n"
"""


def training(save: Path) -> Object:
    container = {
        "name": "main",
        "image": "python",
        "command": ["sh", "-c", TRAINING],
        "env": [{"name": "SAVE", "value": str(save)}],
    }
    return {
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {
            "backoffLimit": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def lines(cluster: Cluster, obj: Object) -> list[str]:
    path = cluster.home / "logs" / obj["metadata"]["uid"] / "main.log"
    if not path.exists():
        return []
    return [line.split(" ", 3)[3] for line in path.read_text().splitlines()]


async def test_a_suspended_job_saves_and_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    local = LocalNode(cluster.client, cluster.home, NodeOptions(name="here"))
    cluster.start(local.run())
    cluster.start(run_controllers(cluster.client))
    cluster.start(cluster.bind_all("here"))
    await asyncio.wait_for(local.ready.wait(), 10)
    await cluster.client.create(JOBS, training(tmp_path))
    await cluster.until(JOBS, "train", lambda it: (it.get("status") or {}).get("ready") == 1)
    [first] = await cluster.pods()
    await asyncio.sleep(0.3)
    await cluster.client.patch(JOBS, "train", {"spec": {"suspend": True}}, "default")
    await cluster.until_gone(PODS, first["metadata"]["name"])
    held = await cluster.until(JOBS, "train", lambda it: "active" not in it["status"])
    assert "failed" not in held["status"]
    reached = int((tmp_path / "step").read_text())
    assert lines(cluster, first) == ["starts at 0", f"saved {reached}"]
    await cluster.client.patch(JOBS, "train", {"spec": {"suspend": False}}, "default")
    done = await cluster.until(
        JOBS, "train", lambda it: it["status"].get("succeeded") == 1, timeout_s=20
    )
    assert done["status"]["conditions"][-1]["type"] == "Complete"
    [second] = await cluster.pods()
    assert lines(cluster, second) == [f"starts at {reached}", "done at 12"]
