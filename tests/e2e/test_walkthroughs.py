"""The five documents that users come from, command by command with the real kubectl, and what must not happen in each.

The same on the embedded API and on a real API server (`pytest tests/e2e --backend kube`).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.harness import Machine, Object, kubectl_path, machine

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(not kubectl_path(), reason="there is no kubectl on this machine"),
]
ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
MANIFESTS = Path(__file__).parent / "manifests"


async def apply(box: Machine, *paths: str) -> str:
    """`kubectl apply -f` of example files, as the documents have it."""
    said = ""
    for path in paths:
        said += await box.kubectl("apply", "-f", str(EXAMPLES / path))
    return said


async def pods(box: Machine, namespace: str = "default") -> dict[str, Object]:
    return {p["metadata"]["name"]: p for p in await box.list("pods", namespace)}


def is_running(pod: Object) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


async def running(box: Machine, namespace: str = "default") -> list[str]:
    return sorted(name for name, pod in (await pods(box, namespace)).items() if is_running(pod))


def condition(obj: Object, kind: str) -> Object:
    found = [c for c in obj.get("status", {}).get("conditions", []) if c["type"] == kind]
    return found[0] if found else {}


def rows(table: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in table.strip().splitlines()]


# ---- 000: KubeAI's models --------------------------------------------------------------------------


async def test_000_the_critical_model_takes_the_gpu_and_the_other_waits_for_it() -> None:
    async with machine() as box:
        said = await apply(box, "kubeai/node.yaml", "kubeai/priority-classes.yaml")
        for name in ("high-priority", "medium-priority", "low-priority"):
            assert f"priorityclass.scheduling.k8s.io/{name} created" in said
        said = await apply(box, "kubeai/background-research-model.yaml")
        assert said == "model.kubeai.org/background-research-model created\n"
        await box.settled()
        (background,) = await running(box)
        assert background.startswith("model-background-research-model-")
        assert (await box.get("pod", background))["spec"]["priority"] == 10000

        said = await apply(box, "kubeai/critical-service-model.yaml")
        assert said == "model.kubeai.org/critical-service-model created\n"
        await box.settled()

        (critical,) = await running(box)
        assert critical.startswith("model-critical-service-model-")
        assert (await box.get("pod", critical))["spec"]["priority"] == 1000000
        # KubeAI makes the evicted pod again at once; it waits, and says why.
        (again,) = [name for name in await pods(box) if name != critical]
        assert again != background
        waits = condition(await box.get("pod", again), "PodScheduled")
        assert waits["reason"] == "Unschedulable"
        assert "Insufficient nvidia.com/gpu" in waits["message"]
        told = await box.kubectl("get", "events", "--field-selector", "reason=Preempted")
        assert f"pod/{background}" in told

        await box.kubectl("delete", "model", "critical-service-model")

        async def comes_back() -> bool:
            return await running(box) == [again]

        # A new cluster's garbage collector learns of a new kind within half a minute.
        await box.until(comes_back, timeout_s=60, what="the background model runs again")


async def test_000_a_model_without_replicas_says_so() -> None:
    async with machine() as box:
        await apply(box, "kubeai/node.yaml", "kubeai/priority-classes.yaml")
        text = (EXAMPLES / "kubeai/critical-service-model.yaml").read_text()
        await box.apply(text.replace("minReplicas: 1\n", "minReplicas: 0\n"))
        await box.settled()
        assert await pods(box) == {}
        model = await box.get("model", "critical-service-model")
        assert condition(model, "ScaledToZero")["status"] == "True"


# ---- 001: Kueue's GPU preemption -------------------------------------------------------------------

QUEUES = ("kueue/namespaces.yaml", "kueue/resource-flavors.yaml", "kueue/cluster-queues.yaml")
MORE_QUEUES = ("kueue/local-queues.yaml", "kueue/priorities.yaml")


async def kueue_demo(box: Machine, threshold: int = 100) -> None:
    await box.apply((MANIFESTS / "001-node.yaml").read_text())
    await apply(box, *QUEUES[:2])
    queues = (EXAMPLES / QUEUES[2]).read_text()
    await box.apply(
        queues.replace("maxPriorityThreshold: 100", f"maxPriorityThreshold: {threshold}")
    )
    await apply(box, *MORE_QUEUES)


async def workload(box: Machine, namespace: str) -> Object:
    (found,) = await box.list("workloads.kueue.x-k8s.io", namespace)
    return found


async def test_001_team_a_takes_over_and_team_b_comes_back() -> None:
    async with machine() as box:
        await kueue_demo(box)
        await box.settled()
        for queue in ("team-a-cq", "team-b-cq", "shared-cq"):
            assert condition(await box.get("clusterqueue", queue), "Active")["status"] == "True"

        said = await apply(box, "kueue/team-b-job.yaml")
        assert said == "job.batch/team-b-job created\n"
        await box.settled()
        assert len(await running(box, "team-b")) == 1
        table = rows(await box.kubectl("get", "workloads", "-n", "team-b"))
        assert table[0] == ["NAME", "QUEUE", "RESERVED IN", "ADMITTED", "FINISHED", "AGE"]
        assert re.fullmatch(r"job-team-b-job-[0-9a-f]{5}", table[1][0])
        assert table[1][1:4] == ["local-queue", "team-b-cq", "True"]

        await apply(box, "kueue/team-a-job.yaml")
        await box.settled()

        team_b = await workload(box, "team-b")
        assert condition(team_b, "Evicted")["reason"] == "Preempted"
        assert condition(team_b, "Preempted")["reason"] == "InCohortReclaimWhileBorrowing"
        assert condition(team_b, "Requeued")["status"] == "True"
        reserved = condition(team_b, "QuotaReserved")
        assert reserved["status"] == "False"
        assert "2 more needed" in reserved["message"]
        assert (await box.get("job", "team-b-job", "team-b"))["spec"]["suspend"] is True
        assert await running(box, "team-b") == []
        team_a = await workload(box, "team-a")
        assert condition(team_a, "Admitted")["status"] == "True"
        (assigned,) = team_a["status"]["admission"]["podSetAssignments"]
        assert assigned["flavors"]["cpu"] == "default-flavor"
        assert assigned["flavors"]["nvidia.com/gpu"] == "gpu-flavor"
        assert len(await running(box, "team-a")) == 1
        (record,) = await box.list("preemptions")
        assert record["status"]["phase"] == "Placed"

        await box.kubectl("delete", "job", "-n", "team-a", "team-a-job")
        await box.settled()
        assert len(await running(box, "team-b")) == 1


async def test_001_above_the_threshold_team_b_is_left_alone() -> None:
    async with machine() as box:
        await kueue_demo(box, threshold=99)
        await apply(box, "kueue/team-b-job.yaml")
        await box.settled()
        await apply(box, "kueue/team-a-job.yaml")
        await box.settled()

        assert len(await running(box, "team-b")) == 1
        assert await pods(box, "team-a") == {}
        assert condition(await workload(box, "team-a"), "QuotaReserved")["status"] == "False"
        assert await box.list("preemptions") == []


async def test_001_without_borrow_within_cohort_team_a_waits() -> None:
    async with machine() as box:
        await box.apply((MANIFESTS / "001-node.yaml").read_text())
        await apply(box, *QUEUES[:2])
        queues = (EXAMPLES / QUEUES[2]).read_text()
        await box.apply(
            re.sub(r"    borrowWithinCohort:\n      policy: .*\n      maxP.*\n", "", queues)
        )
        await apply(box, *MORE_QUEUES, "kueue/team-b-job.yaml")
        await box.settled()
        await apply(box, "kueue/team-a-job.yaml")
        await box.settled()
        assert len(await running(box, "team-b")) == 1
        assert await pods(box, "team-a") == {}


# ---- 002: SkyPilot tasks ---------------------------------------------------------------------------


async def sky_cluster(box: Machine) -> None:
    await box.apply((MANIFESTS / "002-node.yaml").read_text())
    await apply(box, "skypilot/queues.yaml")


async def test_002_the_high_priority_task_takes_the_place_of_the_low_one() -> None:
    async with machine() as box:
        await sky_cluster(box)
        await box.makeway("launch", "-y", "-d", "-c", "low", str(EXAMPLES / "skypilot/low.yaml"))
        await box.settled()
        (low,) = await running(box)
        table = rows(await box.kubectl("get", "workloads"))
        assert "low" in table[1][0]
        assert table[1][1:4] == ["user-queue", "cluster-queue", "True"]

        await box.makeway("launch", "-y", "-d", "-c", "high", str(EXAMPLES / "skypilot/high.yaml"))
        await box.settled()

        (high,) = await running(box)
        assert high != low
        assert "high" in high
        assert low not in await pods(box)


async def test_002_a_managed_job_comes_back_when_there_is_room_again() -> None:
    async with machine() as box:
        await sky_cluster(box)
        low, high = (str(EXAMPLES / f"skypilot/{name}.yaml") for name in ("low", "high"))
        await box.makeway("jobs", "launch", "-y", "-d", "-n", "low", low)
        await box.settled()
        assert len(await running(box)) == 1
        await box.makeway("jobs", "launch", "-y", "-d", "-n", "high", high)
        await box.settled()
        (pod,) = await running(box)
        assert "high" in pod
        await box.kubectl("delete", "job", "-l", "makeway.dev/cluster=high")
        await box.settled()
        (pod,) = await running(box)
        assert "low" in pod


# ---- 003: Koordinator's gang -----------------------------------------------------------------------


async def koordinator(box: Machine, low: str = "") -> None:
    await apply(box, "koordinator/nodes.yaml", "koordinator/priorityclasses.yaml")
    await box.apply(low or (EXAMPLES / "koordinator/low-priority-pods.yaml").read_text())
    await box.settled()


async def test_003_both_victims_leave_together_and_the_gang_starts_whole() -> None:
    async with machine() as box:
        slow = (EXAMPLES / "koordinator/low-priority-pods.yaml").read_text()
        slow = slow.replace(
            "  namespace: default\n",
            "  namespace: default\n  annotations: {makeway.dev/pretend-grace: 6s}\n",
        )
        await koordinator(box, slow)
        assert await running(box) == ["lp-pod-1", "lp-pod-2"]
        table = rows(await box.kubectl("get", "priorityclass"))
        assert table[0][:4] == ["NAME", "VALUE", "GLOBAL-DEFAULT", "AGE"]
        assert {row[0]: row[1] for row in table[1:]}["high-priority"] == "1000000"

        await apply(box, "koordinator/high-priority-job.yaml")

        async def told() -> bool:
            found = await pods(box)
            workers = [found.get(f"hp-worker-{n}", {}) for n in (1, 2)]
            return all(w.get("status", {}).get("nominatedNodeName") for w in workers)

        await box.until(told, what="both workers are nominated")
        found = await pods(box)
        for victim in ("lp-pod-1", "lp-pod-2"):
            assert "deletionTimestamp" in found[victim]["metadata"]
            target = condition(found[victim], "DisruptionTarget")
            assert target["reason"] == "PreemptionByScheduler"
            assert target["message"].startswith(
                "koord-scheduler: preempting to accommodate higher priority pods, "
                "preemptor: default/hp-training-job, triggerPod: default/hp-worker-"
            )
        nominated = {found[f"hp-worker-{n}"]["status"]["nominatedNodeName"] for n in (1, 2)}
        assert nominated == {"cn-beijing.1", "cn-beijing.2"}

        async def gang_runs() -> bool:
            return await running(box) == ["hp-worker-1", "hp-worker-2"]

        await box.until(gang_runs, what="the gang runs once the victims are gone")
        placed = {pod["spec"]["nodeName"] for pod in (await pods(box)).values()}
        assert placed == {"cn-beijing.1", "cn-beijing.2"}


async def test_003_nobody_falls_when_only_one_node_can_be_freed() -> None:
    async with machine() as box:
        low = (EXAMPLES / "koordinator/low-priority-pods.yaml").read_text()
        await koordinator(
            box,
            low.replace("priorityClassName: low-priority", "priorityClassName: high-priority", 1),
        )
        await apply(box, "koordinator/high-priority-job.yaml")
        await box.settled()
        assert await running(box) == ["lp-pod-1", "lp-pod-2"]
        assert await box.list("preemptions") == []
        why = condition((await pods(box))["hp-worker-1"], "PodScheduled")
        assert why["reason"] == "Unschedulable"
        assert "Insufficient cpu" in why["message"]


async def test_003_nobody_falls_for_a_gang_that_is_too_large() -> None:
    async with machine() as box:
        await koordinator(box)
        await apply(box, "koordinator/three-workers.yaml")
        await box.settled()
        assert await running(box) == ["lp-pod-1", "lp-pod-2"]


# ---- 004: PriorityClass and training ---------------------------------------------------------------


async def essay(box: Machine) -> None:
    await apply(
        box,
        "priorityclass/nodes.yaml",
        "priorityclass/high-priority-inference.yaml",
        "priorityclass/low-priority-training.yaml",
        "priorityclass/training-job-1.yaml",
    )
    await box.settled()
    assert await running(box) == ["training-job-1"]


async def test_004_inference_takes_the_gpus_of_training() -> None:
    async with machine() as box:
        await essay(box)
        uid = (await box.get("pod", "training-job-1"))["metadata"]["uid"]
        await apply(box, "priorityclass/inference-1.yaml")
        await box.settled()
        assert await running(box) == ["inference-1"]
        assert "training-job-1" not in await pods(box)
        preemptor = (await box.get("pod", "inference-1"))["metadata"]["uid"]
        told = await box.kubectl(
            "get", "events", "--field-selector", "reason=Preempted", "-o", "json"
        )
        assert uid in told
        assert f"Preempted by pod {preemptor} on node" in told
        nothing = await box.kubectl("get", "events", "--field-selector", "reason=Preempting")
        assert nothing == ""


async def test_004_never_stays_pending_and_says_why() -> None:
    async with machine() as box:
        await essay(box)
        await apply(box, "priorityclass/never.yaml")
        await box.settled()
        assert await running(box) == ["training-job-1"]
        (waiting,) = [p for name, p in (await pods(box)).items() if name != "training-job-1"]
        why = condition(waiting, "PodScheduled")
        assert why["reason"] == "Unschedulable"
        assert "Insufficient nvidia.com/gpu" in why["message"]
        assert "preemptionPolicy=Never" in why["message"]


async def test_004_the_policy_that_does_not_exist_is_refused() -> None:
    async with machine() as box:
        said = await box.kubectl(
            "apply", "-f", str(EXAMPLES / "priorityclass/wrong-preempt-higher.yaml"), fails=True
        )
        assert 'preemptionPolicy: Unsupported value: "PreemptHigherPriority"' in said
        assert 'supported values: "PreemptLowerPriority", "Never"' in said


async def test_004_yaml_that_lost_its_indentation_is_refused() -> None:
    async with machine() as box:
        said = await box.kubectl(
            "apply", "-f", str(EXAMPLES / "priorityclass/wrong-unindented.yaml"), fails=True
        )
        assert "resource name may not be empty" in said


async def test_004_a_class_that_is_not_defined_is_named() -> None:
    async with machine() as box:
        said = await box.kubectl(
            "apply", "-f", str(EXAMPLES / "priorityclass/training-job-1.yaml"), fails=True
        )
        assert "no PriorityClass with name low-priority-training was found" in said
