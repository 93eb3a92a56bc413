"""Owners and namespaces on the real embedded API."""

from __future__ import annotations

import pytest

from makeway.client.resource import CONFIG_MAPS, MODELS, NAMESPACES, NODES, PODS, SECRETS, Object
from makeway.embedded.controllers import run_controllers
from makeway.embedded.node import run_pretended
from tests.embedded.conftest import Cluster


def owned(name: str, owner: Object, *, blocks: bool = True) -> Object:
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": blocks,
    }
    metadata = {"name": name, "namespace": "default", "ownerReferences": [reference]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def owner_with_child(cluster: Cluster) -> tuple[Object, Object]:
    body = {"metadata": {"name": "owner", "namespace": "default"}}
    owner = await cluster.client.create(CONFIG_MAPS, body)
    child = await cluster.client.create(CONFIG_MAPS, owned("child", owner))
    return owner, child


async def test_background(cluster: Cluster) -> None:
    cluster.start(run_controllers(cluster.client))
    await owner_with_child(cluster)
    await cluster.client.delete(CONFIG_MAPS, "owner", "default", propagation="Background")
    await cluster.until_gone(CONFIG_MAPS, "child")


async def test_foreground_keeps_the_owner_until_the_last_dependent_is_gone(
    cluster: Cluster,
) -> None:
    cluster.start(run_controllers(cluster.client))
    await owner_with_child(cluster)
    body = {"metadata": {"finalizers": ["example.org/hold"]}}
    await cluster.client.patch(CONFIG_MAPS, "child", body, "default")
    await cluster.client.delete(CONFIG_MAPS, "owner", "default", propagation="Foreground")
    await cluster.until(
        CONFIG_MAPS, "child", lambda it: it["metadata"].get("deletionTimestamp") is not None
    )
    assert (await cluster.client.get(CONFIG_MAPS, "owner", "default"))["metadata"]["finalizers"]
    await cluster.client.patch(CONFIG_MAPS, "child", {"metadata": {"finalizers": None}}, "default")
    await cluster.until_gone(CONFIG_MAPS, "owner")
    await cluster.until_gone(CONFIG_MAPS, "child")


async def test_orphan_cuts_the_dependents_loose(cluster: Cluster) -> None:
    cluster.start(run_controllers(cluster.client))
    await owner_with_child(cluster)
    await cluster.client.delete(CONFIG_MAPS, "owner", "default", propagation="Orphan")
    await cluster.until_gone(CONFIG_MAPS, "owner")
    child = await cluster.client.get(CONFIG_MAPS, "child", "default")
    assert "ownerReferences" not in child["metadata"]


async def test_one_of_two_owners_is_enough_to_stay(cluster: Cluster) -> None:
    cluster.start(run_controllers(cluster.client))
    first, _ = await owner_with_child(cluster)
    other = await cluster.client.create(
        CONFIG_MAPS, {"metadata": {"name": "other", "namespace": "default"}}
    )
    both = owned("both", first)
    both["metadata"]["ownerReferences"] += owned("x", other)["metadata"]["ownerReferences"]
    await cluster.client.create(CONFIG_MAPS, both)
    await cluster.client.delete(CONFIG_MAPS, "owner", "default", propagation="Background")
    kept = await cluster.until(
        CONFIG_MAPS, "both", lambda it: len(it["metadata"]["ownerReferences"]) == 1
    )
    assert kept["metadata"]["ownerReferences"][0]["name"] == "other"


async def test_an_owner_that_never_was(cluster: Cluster) -> None:
    cluster.start(run_controllers(cluster.client))
    ghost = {"metadata": {"name": "ghost", "uid": "no-such-uid"}}
    await cluster.client.create(CONFIG_MAPS, owned("child", ghost))
    await cluster.until_gone(CONFIG_MAPS, "child")


async def test_a_namespace_goes_with_everything_in_it(cluster: Cluster) -> None:
    await cluster.fake_node("one")
    cluster.start(run_pretended(cluster.client))
    cluster.start(run_controllers(cluster.client))
    await cluster.client.create(NAMESPACES, {"metadata": {"name": "team"}})
    await cluster.client.create(SECRETS, {"metadata": {"name": "s", "namespace": "team"}})
    container = {"name": "main", "image": "x", "command": ["true"]}
    body = {
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"nodeName": "one", "containers": [container]},
    }
    await cluster.client.create(PODS, body)
    await cluster.client.delete(NAMESPACES, "team")
    await cluster.until_gone(NAMESPACES, "team")
    assert await cluster.client.list(PODS, "team") == []


async def test_models_become_pods_and_come_back(cluster: Cluster) -> None:
    await cluster.fake_node("one")
    cluster.start(run_pretended(cluster.client))
    cluster.start(run_controllers(cluster.client))
    cluster.start(cluster.bind_all("one"))
    spec = {
        "url": "hf://a/b",
        "engine": "VLLM",
        "features": ["TextGeneration"],
        "resourceProfile": "cpu:1",
    }
    body = {"metadata": {"name": "llm", "namespace": "default"}, "spec": spec}
    await cluster.client.create(MODELS, body)
    idle = await cluster.until(MODELS, "llm", lambda it: (it.get("status") or {}).get("conditions"))
    assert idle["status"]["conditions"][0]["type"] == "ScaledToZero"
    await cluster.client.patch(MODELS, "llm", {"spec": {"minReplicas": 1}}, "default")
    await cluster.until(MODELS, "llm", lambda it: it["status"]["replicas"].get("ready") == 1)
    [first] = await cluster.pods()
    await cluster.client.delete(PODS, first["metadata"]["name"], "default")

    async def replaced() -> bool:
        names = [each["metadata"]["name"] for each in await cluster.pods()]
        return len(names) == 1 and names[0] != first["metadata"]["name"]

    await cluster.until_true(replaced)


async def test_pods_of_a_node_that_is_gone_go_too(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("makeway.embedded.controllers.podgc.PATIENCE_S", 0.1)
    await cluster.fake_node("one")
    cluster.start(run_pretended(cluster.client))
    cluster.start(run_controllers(cluster.client))
    container = {"name": "main", "image": "x", "command": ["true"]}
    for name in ("p", "q"):
        body = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": "one", "containers": [container]},
        }
        await cluster.client.create(PODS, body)
        await cluster.until(PODS, name, lambda it: it["status"]["phase"] == "Running")
    await cluster.client.delete(NODES, "one")
    await cluster.client.delete(PODS, "p", "default")
    await cluster.until_gone(PODS, "p")
    await cluster.until_gone(PODS, "q")
