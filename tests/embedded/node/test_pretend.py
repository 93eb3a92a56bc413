from __future__ import annotations

import asyncio

import pytest

from makeway.client.resource import NODES, PODS, Object
from makeway.embedded.node import run_pretended
from makeway.embedded.node.pretend import duration_s, missing_node_status, wishes_of
from tests.embedded.conftest import Cluster

PRETEND = "makeway.dev/pretend-"


def pod(name: str, node: str = "one", policy: str = "Never", **wishes: str) -> Object:
    annotations = {f"{PRETEND}{key.replace('_', '-')}": value for key, value in wishes.items()}
    return {
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {
            "nodeName": node,
            "restartPolicy": policy,
            "containers": [{"name": "main", "image": "busybox"}],
        },
    }


def phase(obj: Object) -> str:
    return str((obj.get("status") or {}).get("phase"))


def ready(obj: Object) -> bool:
    conditions = {each["type"]: each["status"] for each in obj["status"].get("conditions") or []}
    return conditions.get("Ready") == "True"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("8s", 8), ("1.5m", 90), ("1h30m", 5400), ("250ms", 0.25), ("3", 3), ("x", 0), ("", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


def test_wishes() -> None:
    assert wishes_of(pod("p")).exit_after_s is None
    asked = wishes_of(pod("p", exit_code="3"))
    assert (asked.exit_after_s, asked.exit_code) == (0.0, 3)
    told = pod("p", grace="8s")
    assert wishes_of(told).grace_s == 8
    told["metadata"]["deletionGracePeriodSeconds"] = 5
    assert wishes_of(told).grace_s == 5
    told["metadata"]["annotations"] = {"makeway.dev/pretend-grace": "8s+1m"}
    assert wishes_of(told).grace_s == 65


def test_a_node_that_says_how_it_is_is_left_alone() -> None:
    told = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}, "metadata": {}}
    assert missing_node_status(told, 0) == {}


async def start(cluster: Cluster) -> None:
    await cluster.fake_node("one")
    cluster.start(run_pretended(cluster.client))


async def test_nodes_are_ready_and_pods_run_at_once(cluster: Cluster) -> None:
    await start(cluster)
    node = await cluster.until(NODES, "one", lambda it: it["status"].get("conditions"), "")
    assert node["status"]["conditions"][0]["status"] == "True"
    assert node["status"]["allocatable"] == node["status"]["capacity"]
    await cluster.client.create(PODS, pod("p"))
    runs = await cluster.until(PODS, "p", lambda it: phase(it) == "Running")
    assert ready(runs)
    assert runs["status"]["podIP"].startswith("10.244.")
    status = runs["status"]["containerStatuses"][0]
    assert (status["ready"], status["restartCount"]) == (True, 0)
    assert "running" in status["state"]


async def test_pods_of_other_nodes_are_left_alone(cluster: Cluster) -> None:
    await start(cluster)
    await cluster.client.create(
        NODES, {"metadata": {"name": "real"}, "status": {"capacity": {"cpu": "1"}}}
    )
    await cluster.client.create(PODS, pod("other", "real"))
    await cluster.client.create(PODS, pod("mine"))
    await cluster.until(PODS, "mine", lambda it: phase(it) == "Running")
    assert phase(await cluster.client.get(PODS, "other", "default")) == "Pending"


async def test_a_node_that_turns_fake_takes_up_its_pods(cluster: Cluster) -> None:
    await start(cluster)
    await cluster.client.create(
        NODES, {"metadata": {"name": "late"}, "status": {"capacity": {"cpu": "1"}}}
    )
    await cluster.client.create(PODS, pod("p", "late"))
    body = {"metadata": {"annotations": {"kwok.x-k8s.io/node": "fake"}}}
    await cluster.client.patch(NODES, "late", body)
    await cluster.until(PODS, "p", lambda it: phase(it) == "Running")


async def test_deleted_pods_are_gone_soon_whatever_their_grace(cluster: Cluster) -> None:
    await start(cluster)
    await cluster.client.create(PODS, pod("p"))
    await cluster.until(PODS, "p", lambda it: phase(it) == "Running")
    await cluster.client.delete(PODS, "p", "default", grace_s=600)
    await cluster.until_gone(PODS, "p", timeout_s=1)


async def test_pretended_grace(cluster: Cluster) -> None:
    await start(cluster)
    await cluster.client.create(PODS, pod("p", grace="600ms"))
    await cluster.until(PODS, "p", lambda it: phase(it) == "Running")
    before = asyncio.get_running_loop().time()
    await cluster.client.delete(PODS, "p", "default")
    await cluster.until_gone(PODS, "p")
    assert 0.5 < asyncio.get_running_loop().time() - before < 1.5


async def test_exit_after_and_exit_code(cluster: Cluster) -> None:
    await start(cluster)
    await cluster.client.create(PODS, pod("good", exit_after="200ms"))
    await cluster.client.create(PODS, pod("bad", exit_after="200ms", exit_code="3"))
    good = await cluster.until(PODS, "good", lambda it: phase(it) == "Succeeded")
    assert good["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"
    bad = await cluster.until(PODS, "bad", lambda it: phase(it) == "Failed")
    assert bad["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


async def test_an_exit_code_given_later_ends_a_running_pod(cluster: Cluster) -> None:
    await start(cluster)
    await cluster.client.create(PODS, pod("p"))
    await cluster.until(PODS, "p", lambda it: phase(it) == "Running")
    body = {"metadata": {"annotations": {f"{PRETEND}exit-code": "0"}}}
    await cluster.client.patch(PODS, "p", body, "default")
    await cluster.until(PODS, "p", lambda it: phase(it) == "Succeeded")


async def test_readiness_and_start_can_be_withheld_and_given(cluster: Cluster) -> None:
    await start(cluster)
    await cluster.client.create(PODS, pod("p", ready="false"))
    await cluster.client.create(PODS, pod("q", start="false"))
    runs = await cluster.until(PODS, "p", lambda it: phase(it) == "Running")
    assert not ready(runs)
    assert phase(await cluster.client.get(PODS, "q", "default")) == "Pending"
    for name, key in (("p", "ready"), ("q", "start")):
        body = {"metadata": {"annotations": {f"{PRETEND}{key}": None}}}
        await cluster.client.patch(PODS, name, body, "default")
    await cluster.until(PODS, "p", ready)
    await cluster.until(PODS, "q", lambda it: phase(it) == "Running")


async def test_restarts_are_pretended_too(cluster: Cluster) -> None:
    await start(cluster)
    await cluster.client.create(PODS, pod("p", policy="Always", exit_after="100ms"))
    again = await cluster.until(
        PODS,
        "p",
        lambda it: it["status"].get("containerStatuses", [{}])[0].get("restartCount") == 1,
    )
    assert phase(again) == "Running"
