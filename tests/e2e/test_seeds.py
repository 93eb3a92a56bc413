"""Two of the documents that users come from, command by command: the Kueue demo (001) and Koordinator's gang (003)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.harness import Machine, kubectl_path, machine

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(not kubectl_path(), reason="there is no kubectl on this machine"),
]
MANIFESTS = Path(__file__).parent / "manifests"


def manifest(name: str) -> str:
    return (MANIFESTS / name).read_text()


async def apply(box: Machine, *names: str) -> None:
    for name in names:
        await box.apply(manifest(name))
    await box.settled()


async def the_workload(box: Machine, namespace: str) -> dict[str, str]:
    """Its conditions, as `status/reason`, and what it says about its quota."""
    (found,) = await box.list("workloads", namespace)
    conditions = found.get("status", {}).get("conditions", [])
    told = {c["type"]: f"{c['status']}/{c['reason']}" for c in conditions}
    told |= {f"{c['type']} says": c["message"] for c in conditions}
    return told


async def running(box: Machine, namespace: str = "default") -> dict[str, str]:
    pods = await box.list("pods", namespace)
    return {
        p["metadata"]["name"]: p["spec"]["nodeName"]
        for p in pods
        if p["status"]["phase"] == "Running" and "deletionTimestamp" not in p["metadata"]
    }


async def test_seed_001_team_a_takes_over_and_team_b_comes_back() -> None:
    async with machine() as box:
        await apply(box, "001-node.yaml", "001-queues.yaml", "001-team-b-job.yaml")
        assert len(await running(box, "team-b")) == 1
        table = await box.kubectl("get", "workloads", "-n", "team-b")
        assert table.split()[:7] == [
            "NAME",
            "QUEUE",
            "RESERVED",
            "IN",
            "ADMITTED",
            "FINISHED",
            "AGE",
        ]

        await apply(box, "001-team-a-job.yaml")

        assert len(await running(box, "team-a")) == 1
        assert await running(box, "team-b") == {}
        team_b = await the_workload(box, "team-b")
        assert team_b["Evicted"] == "True/Preempted"
        assert team_b["Preempted"] == "True/InCohortReclaimWhileBorrowing"
        assert team_b["Requeued"] == "True/Preempted"
        assert team_b["QuotaReserved"] == "False/WaitingForQuota"
        assert team_b["QuotaReserved says"].endswith("in flavor default-flavor, 2 more needed")
        team_a = await the_workload(box, "team-a")
        assert (team_a["Admitted"], team_a["PodsReady"]) == ("True/Admitted", "True/Started")
        (record,) = await box.list("preemptions")
        assert record["status"]["phase"] == "Placed"
        assert record["spec"]["victims"][0]["workload"].startswith("team-b/job-team-b-job-")

        await box.kubectl("delete", "job", "-n", "team-a", "team-a-job")
        await box.settled()

        assert len(await running(box, "team-b")) == 1
        assert (await the_workload(box, "team-b"))["Evicted"] == "False/QuotaReserved"


async def test_seed_001_with_a_threshold_below_team_b_nobody_falls() -> None:
    async with machine() as box:
        queues = manifest("001-queues.yaml").replace(
            "maxPriorityThreshold: 100", "maxPriorityThreshold: 99"
        )
        await apply(box, "001-node.yaml")
        await box.apply(queues)
        await apply(box, "001-team-b-job.yaml")
        await apply(box, "001-team-a-job.yaml")

        assert len(await running(box, "team-b")) == 1
        assert await running(box, "team-a") == {}
        assert (await the_workload(box, "team-a"))["QuotaReserved"] == "False/WaitingForQuota"
        assert await box.list("preemptions") == []


async def test_seed_003_the_gang_takes_both_nodes_at_once() -> None:
    async with machine() as box:
        await apply(box, "003-cluster.yaml", "003-low.yaml")
        assert sorted((await running(box)).values()) == ["cn-beijing.1", "cn-beijing.2"]

        await apply(box, "003-gang.yaml")

        placed = await running(box)
        assert sorted(placed) == ["hp-worker-1", "hp-worker-2"]
        assert sorted(placed.values()) == ["cn-beijing.1", "cn-beijing.2"]
        (record,) = await box.list("preemptions")
        assert record["spec"]["preemptor"] == "default/hp-training-job"
        assert sorted(v["workload"] for v in record["spec"]["victims"]) == [
            "default/lp-pod-1",
            "default/lp-pod-2",
        ]


async def test_seed_003_victims_are_told_together_and_the_gang_is_nominated() -> None:
    async with machine() as box:
        low = manifest("003-low.yaml").replace(
            "metadata:\n", "metadata:\n  annotations: {makeway.dev/pretend-grace: 8s}\n"
        )
        await apply(box, "003-cluster.yaml")
        await box.apply(low)
        await box.settled()

        await apply(box, "003-gang.yaml")

        pods = {p["metadata"]["name"]: p for p in await box.list("pods")}
        for victim in ("lp-pod-1", "lp-pod-2"):
            assert "deletionTimestamp" in pods[victim]["metadata"]
            (told,) = [
                c for c in pods[victim]["status"]["conditions"] if c["type"] == "DisruptionTarget"
            ]
            assert told["reason"] == "PreemptionByScheduler"
            assert told["message"].startswith(
                "koord-scheduler: preempting to accommodate higher priority pods, "
                "preemptor: default/hp-training-job, triggerPod: default/hp-worker-"
            )
        nominated = {pods[w]["status"]["nominatedNodeName"] for w in ("hp-worker-1", "hp-worker-2")}
        assert nominated == {"cn-beijing.1", "cn-beijing.2"}

        async def gang_runs() -> bool:
            return sorted(await running(box)) == ["hp-worker-1", "hp-worker-2"]

        await box.until(gang_runs, what="the gang runs once the victims are gone")


async def test_seed_003_nobody_falls_when_only_one_node_can_be_freed() -> None:
    async with machine() as box:
        low = manifest("003-low.yaml").replace(
            "priorityClassName: low-priority", "priorityClassName: high-priority", 1
        )
        await apply(box, "003-cluster.yaml")
        await box.apply(low)
        await box.settled()

        await apply(box, "003-gang.yaml")

        assert sorted(await running(box)) == ["lp-pod-1", "lp-pod-2"]
        assert await box.list("preemptions") == []
        worker = await box.get("pod", "hp-worker-1")
        (why,) = [c for c in worker["status"]["conditions"] if c["type"] == "PodScheduled"]
        assert (why["status"], why["reason"]) == ("False", "Unschedulable")
        assert why["message"].startswith("0/2 nodes are available: 2 Insufficient cpu.")
