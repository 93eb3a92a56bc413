"""The controllers against the real embedded API, with pretended nodes below them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from makeway.client.resource import DEPLOYMENTS, JOBS, PODS, Object
from makeway.embedded.controllers import run_controllers
from makeway.embedded.node import run_pretended
from tests.embedded.conftest import Cluster


def job(name: str = "train", template: Object | None = None, **spec: Any) -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "template": {
                "metadata": template or {},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "busybox", "command": ["true"]}],
                },
            },
            **spec,
        },
    }


async def start(cluster: Cluster) -> None:
    await cluster.fake_node("one")
    cluster.start(run_pretended(cluster.client))
    cluster.start(run_controllers(cluster.client))
    cluster.start(cluster.bind_all("one"))


def conditions(obj: Object) -> dict[str, tuple[str, str]]:
    return {
        each["type"]: (each["status"], each.get("reason", ""))
        for each in (obj.get("status") or {}).get("conditions") or []
    }


async def test_a_job_runs_to_its_end(cluster: Cluster) -> None:
    await start(cluster)
    ends = {"annotations": {"makeway.dev/pretend-exit-after": "100ms"}}
    await cluster.client.create(JOBS, job(template=ends, completions=3, parallelism=2))
    done = await cluster.until(JOBS, "train", lambda it: "Complete" in conditions(it))
    status = done["status"]
    assert (status["succeeded"], status["ready"], status["terminating"]) == (3, 0, 0)
    assert "active" not in status
    assert "failed" not in status
    assert status["completionTime"]
    assert conditions(done)["SuccessCriteriaMet"] == ("True", "CompletionsReached")
    pods = await cluster.pods()
    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * 3
    assert all("finalizers" not in pod["metadata"] for pod in pods)

    async def told() -> bool:
        return await cluster.events("Completed") == ["Job completed"]

    await cluster.until_true(told)
    assert len(await cluster.events("SuccessfulCreate")) == 3


async def test_suspend_and_resume(cluster: Cluster) -> None:
    await start(cluster)
    await cluster.client.create(JOBS, job(suspend=True))
    held = await cluster.until(JOBS, "train", lambda it: "Suspended" in conditions(it))
    assert conditions(held)["Suspended"] == ("True", "JobSuspended")
    assert "startTime" not in held["status"]
    await cluster.client.patch(JOBS, "train", {"spec": {"suspend": False}}, "default")
    runs = await cluster.until(JOBS, "train", lambda it: it["status"].get("ready") == 1)
    assert conditions(runs)["Suspended"] == ("False", "JobResumed")
    assert runs["status"]["startTime"]
    await cluster.client.patch(JOBS, "train", {"spec": {"suspend": True}}, "default")
    held = await cluster.until(
        JOBS, "train", lambda it: conditions(it).get("Suspended") == ("True", "JobSuspended")
    )
    assert "failed" not in held["status"]
    assert "startTime" not in held["status"]

    async def gone() -> bool:
        return not await cluster.pods()

    await cluster.until_true(gone)


async def test_deleting_a_job_takes_its_pods_along(cluster: Cluster) -> None:
    await start(cluster)
    await cluster.client.create(JOBS, job(parallelism=2, completions=2))
    await cluster.until(JOBS, "train", lambda it: it.get("status", {}).get("ready") == 2)
    await cluster.client.delete(JOBS, "train", "default", propagation="Background")

    async def gone() -> bool:
        return not await cluster.pods()

    await cluster.until_true(gone)


async def test_a_deployment_rolls_and_goes(cluster: Cluster) -> None:
    await start(cluster)
    labels = {"app": "web"}
    body: Object = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "one", "command": ["x"]}]},
            },
        },
    }
    await cluster.client.create(DEPLOYMENTS, body)
    await cluster.until(
        DEPLOYMENTS, "web", lambda it: it.get("status", {}).get("availableReplicas") == 3
    )
    new = [{"name": "main", "image": "two", "command": ["x"]}]
    await cluster.client.patch(
        DEPLOYMENTS, "web", {"spec": {"template": {"spec": {"containers": new}}}}, "default"
    )
    rolled = await cluster.until(
        DEPLOYMENTS,
        "web",
        lambda it: (
            conditions(it).get("Progressing") == ("True", "NewReplicaSetAvailable")
            and it["status"]["observedGeneration"] == it["metadata"]["generation"]
            and it["status"].get("updatedReplicas") == 3
        ),
    )
    assert rolled["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"

    async def only_new() -> bool:
        images = [pod["spec"]["containers"][0]["image"] for pod in await cluster.pods()]
        return images == ["two"] * 3

    await cluster.until_true(only_new)
    await cluster.client.delete(DEPLOYMENTS, "web", "default", propagation="Background")

    async def gone() -> bool:
        return not await cluster.client.list(PODS, "default")

    await cluster.until_true(gone)


async def test_counters_stay_right_through_crashes(cluster: Cluster) -> None:
    await cluster.fake_node("one")
    cluster.start(run_pretended(cluster.client))
    cluster.start(cluster.bind_all("one"))
    ends = {"annotations": {"makeway.dev/pretend-exit-after": "30ms"}}
    spec: Any = {"completions": 24, "parallelism": 6, "template": ends}
    await cluster.client.create(JOBS, job(**spec))
    chance = random.Random(7)

    async def complete() -> bool:
        return "Complete" in conditions(await cluster.client.get(JOBS, "train", "default"))

    async with asyncio.timeout(30):
        while not await complete():
            crashing = asyncio.create_task(run_controllers(cluster.client))
            await asyncio.sleep(chance.uniform(0.1, 0.4))
            crashing.cancel()
            await asyncio.gather(crashing, return_exceptions=True)
    done = await cluster.client.get(JOBS, "train", "default")
    assert done["status"]["succeeded"] == 24
    assert "failed" not in done["status"]
    assert len(await cluster.pods()) == 24


async def test_an_evicted_pod_counts_as_one_failure_and_comes_back(cluster: Cluster) -> None:
    await start(cluster)
    await cluster.client.create(JOBS, job(podReplacementPolicy="Failed"))
    await cluster.until(JOBS, "train", lambda it: it.get("status", {}).get("ready") == 1)
    [first] = await cluster.pods()
    await cluster.client.delete(PODS, first["metadata"]["name"], "default")
    counted = await cluster.until(JOBS, "train", lambda it: it["status"].get("failed") == 1)
    assert counted["status"]["terminating"] == 0
    assert "active" not in counted["status"]
    assert counted["status"].get("uncountedTerminatedPods", {}) == {}
