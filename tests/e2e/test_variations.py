"""What a reader of the five documents tries next: other names, numbers and orders, and the mistakes that are easily made."""

from __future__ import annotations

from typing import Any

import pytest

from makeway.control.config import parse
from tests.e2e.harness import Machine, Object, kubectl_path, machine
from tests.e2e.queues import cpu_queue
from tests.e2e.test_walkthroughs import (
    EXAMPLES,
    apply,
    condition,
    kueue_demo,
    pods,
    running,
    workload,
)

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(not kubectl_path(), reason="there is no kubectl on this machine"),
]
NODE = """
apiVersion: v1
kind: Node
metadata: {{name: {name}, annotations: {{kwok.x-k8s.io/node: fake}}}}
status: {{capacity: {{cpu: "{cpu}", memory: 64Gi, pods: "110"}}}}
---
"""
CLASSES = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: top}
value: 9000
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: meh}
value: 50
"""
QUEUE = (
    cpu_queue("lab", 4, door="door")
    + """---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: urgent}
value: 700
"""
)


def nodes(*cpus: int) -> str:
    return "".join(NODE.format(name=f"box-{n}", cpu=cpu) for n, cpu in enumerate(cpus, 1))


def pod(name: str, cpu: int, priority: str, labels: str = "", more: str = "") -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{{labels}}}}}
spec:
  priorityClassName: {priority}
  {more}
  containers: [{{name: c, image: x, command: [sleep, 1d], resources: {{requests: {{cpu: "{cpu}"}}}}}}]
---
"""


def job(name: str, cpu: int, queue: str = "door") -> str:
    return f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}, labels: {{kueue.x-k8s.io/queue-name: {queue}}}}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{{name: c, image: x, command: [sleep, 1d], resources: {{requests: {{cpu: "{cpu}"}}}}}}]
---
"""


async def suspended(box: Machine) -> dict[str, bool]:
    return {j["metadata"]["name"]: j["spec"].get("suspend", False) for j in await box.list("jobs")}


async def only_workload(box: Machine, of: str) -> Object:
    found = await box.list("workloads.kueue.x-k8s.io")
    (one,) = [w for w in found if w["metadata"]["ownerReferences"][0]["name"] == of]
    return one


async def change(box: Machine, kind: str, name: str, patch: str) -> None:
    await box.kubectl("patch", kind, name, "--type=merge", "-p", patch)
    await box.settled()


# ---- Kueue -----------------------------------------------------------------------------------------


async def test_team_a_first_and_team_b_waits_until_it_has_gone() -> None:
    async with machine() as box:
        await kueue_demo(box)
        await apply(box, "kueue/team-a-job.yaml")
        await box.settled()
        await apply(box, "kueue/team-b-job.yaml")
        await box.settled()
        assert (await running(box, "team-b"), len(await running(box, "team-a"))) == ([], 1)
        said = condition(await workload(box, "team-b"), "QuotaReserved")
        assert said["message"].endswith("cpu in flavor default-flavor, 2 more needed")
        assert await box.list("preemptions.makeway.dev") == []

        await box.kubectl("delete", "job", "-n", "team-a", "team-a-job")
        await box.settled()

        assert len(await running(box, "team-b")) == 1


async def test_a_mistyped_queue_is_told_and_the_near_one_named() -> None:
    async with machine() as box:
        await box.apply(nodes(8) + QUEUE + "---" + job("one", 1, queue="dor"))
        await box.settled()
        said = condition(await only_workload(box, "one"), "QuotaReserved")
        assert (said["reason"], said["message"]) == (
            "Misconfigured",
            "LocalQueue dor doesn't exist",
        )
        answer = await box.makeway("describe", "job", "one")
        assert 'LocalQueue dor doesn\'t exist. Did you mean "door"?' in answer


async def test_who_is_made_urgent_while_it_waits_takes_the_place_of_who_runs() -> None:
    async with machine() as box:
        await box.apply(nodes(8) + QUEUE + "---" + job("first", 3))
        await box.settled()
        await box.apply(job("second", 3))
        await box.settled()
        assert await suspended(box) == {"first": False, "second": True}

        await box.kubectl("label", "job", "second", "kueue.x-k8s.io/priority-class=urgent")
        await box.settled()

        assert await suspended(box) == {"first": True, "second": False}
        told = condition(await only_workload(box, "first"), "Preempted")
        assert told["reason"] == "InClusterQueue"
        assert "(priority 700 over 0)" in told["message"]


async def test_the_record_and_the_victim_say_who_would_have_cost_more() -> None:
    async with machine() as box:
        dear = job("dear", 2).replace(
            "labels:", "annotations: {makeway.dev/restart-takes: 5h}, labels:"
        )
        await box.apply(nodes(8) + QUEUE + "---" + dear + job("cheap", 2))
        await box.settled()
        await box.apply(
            job("next", 2).replace("labels: {", "labels: {kueue.x-k8s.io/priority-class: urgent, ")
        )
        await box.settled()
        assert await suspended(box) == {"dear": False, "cheap": True, "next": False}

        described = await box.kubectl("describe", "preemptions.makeway.dev")
        assert "Alternatives:" in described
        assert "GPU-seconds more" in described
        explained = await box.makeway("explain", "cheap")
        assert "fell for Job/default/next; dearer were:" in explained
        assert "  Job/default/dear: loses" in explained


async def test_a_drained_queue_stops_everybody_and_goes_on_when_it_is_opened() -> None:
    async with machine() as box:
        await box.apply(nodes(8) + QUEUE + "---" + job("one", 2) + job("two", 2))
        await box.settled()
        await change(box, "clusterqueue", "lab", '{"spec": {"stopPolicy": "HoldAndDrain"}}')
        assert await suspended(box) == {"one": True, "two": True}
        evicted = condition(await only_workload(box, "one"), "Evicted")
        assert (evicted["status"], evicted["reason"]) == ("True", "ClusterQueueStopped")

        await change(box, "clusterqueue", "lab", '{"spec": {"stopPolicy": "None"}}')

        assert await suspended(box) == {"one": False, "two": False}


async def test_a_workload_switched_off_frees_its_place_and_gets_it_back_when_switched_on() -> None:
    async with machine() as box:
        await box.apply(nodes(8) + QUEUE + "---" + job("one", 3))
        await box.settled()
        await box.apply(job("two", 3))
        await box.settled()
        name = (await only_workload(box, "one"))["metadata"]["name"]
        await change(box, "workload", name, '{"spec": {"active": false}}')
        assert await suspended(box) == {"one": True, "two": False}

        await box.kubectl("delete", "job", "two")
        await change(box, "workload", name, '{"spec": {"active": true}}')

        assert await suspended(box) == {"one": False}


async def test_cutting_the_quota_stops_nobody_and_lets_nobody_in() -> None:
    async with machine() as box:
        await box.apply(nodes(8) + QUEUE + "---" + job("one", 3))
        await box.settled()
        less = [{"name": "cpu", "nominalQuota": 1}]
        patch: dict[str, Any] = {
            "coveredResources": ["cpu"],
            "flavors": [{"name": "any", "resources": less}],
        }
        text = str({"spec": {"resourceGroups": [patch]}}).replace("'", '"')
        await change(box, "clusterqueue", "lab", text)
        await box.apply(job("two", 1))
        await box.settled()
        assert await suspended(box) == {"one": False, "two": True}


# ---- gangs -----------------------------------------------------------------------------------------

MINIMUM = "pod-group.scheduling.sigs.k8s.io/name: trio, pod-group.scheduling.sigs.k8s.io/min-available: '2'"


async def test_a_gang_by_labels_starts_with_its_minimum_and_the_third_waits_for_room() -> None:
    async with machine() as box:
        await box.apply(nodes(4, 4) + CLASSES)
        await box.apply(pod("low-1", 4, "meh") + pod("low-2", 4, "meh"))
        await box.settled()
        await box.apply("".join(pod(f"w-{n}", 3, "top", MINIMUM) for n in (1, 2, 3)))
        await box.settled()

        assert await running(box) == ["w-1", "w-2"]
        waits = condition(await box.get("pod", "w-3"), "PodScheduled")
        assert waits["message"].startswith("0/2 nodes are available: 2 Insufficient cpu.")
        (record,) = await box.list("preemptions.makeway.dev")
        assert record["status"]["phase"] == "Placed"
        assert {v["afterwards"] for v in record["spec"]["victims"]} == {"Preempted"}

        await box.kubectl("delete", "pod", "w-1")
        await box.settled()

        assert await running(box) == ["w-2", "w-3"]


async def test_a_gang_one_too_many_for_free_nodes_is_told_what_the_last_one_lacks() -> None:
    async with machine() as box:
        await box.apply(nodes(4, 4) + CLASSES)
        await apply(box, "koordinator/priorityclasses.yaml", "koordinator/three-workers.yaml")
        await box.settled()
        assert await running(box) == []
        for member in (await pods(box)).values():
            said = condition(member, "PodScheduled")["message"]
            assert said.startswith("0/2 nodes are available: 2 Insufficient cpu.")


async def test_a_member_of_a_group_that_nobody_made_says_so() -> None:
    async with machine() as box:
        await box.apply(nodes(4) + CLASSES)
        group = "pod-group.scheduling.sigs.k8s.io: nobody"
        await box.apply(pod("lost", 1, "top", group, "schedulerName: koord-scheduler"))
        await box.settled()
        said = condition(await box.get("pod", "lost"), "PodScheduled")
        assert said["message"] == "its PodGroup default/nobody does not exist yet"


# ---- budgets and models ----------------------------------------------------------------------------

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      priorityClassName: meh
      containers: [{name: c, image: x, command: [sleep, 1d], resources: {requests: {cpu: "3"}}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
"""


@pytest.mark.parametrize(
    ("victims", "placed"), [("least-loss", ["big-1"]), ("kube", ["big-1", "big-2"])]
)
async def test_a_budget_lets_one_go_and_is_hard_only_under_least_loss(
    victims: str, placed: list[str]
) -> None:
    async with machine(parse(f"makeway: {{victims: {victims}}}", where="test")) as box:
        await box.apply(nodes(4, 4) + CLASSES + "---" + DEPLOYMENT)
        await box.settled()
        budget = await box.get("poddisruptionbudget", "web")
        assert budget["status"]["disruptionsAllowed"] == 1

        for name in ("big-1", "big-2"):
            await box.apply(pod(name, 3, "top"))
            await box.settled()

        found = await running(box)
        assert [name for name in found if name.startswith("big")] == placed
        budget = await box.get("poddisruptionbudget", "web")
        assert budget["status"]["disruptionsAllowed"] == 0


async def test_models_say_which_profile_or_class_is_missing() -> None:
    text = (EXAMPLES / "kubeai/critical-service-model.yaml").read_text()
    async with machine() as box:
        await apply(box, "kubeai/node.yaml", "kubeai/priority-classes.yaml")
        await box.apply(text.replace("nvidia-gpu-l4:1", "nvidia-gpu-l5:1"))
        await box.apply(
            text.replace("high-priority", "higher-priority").replace("critical-", "other-")
        )
        await box.settled()
        models = {m["metadata"]["name"]: m for m in await box.list("models", "default")}
        told = {
            name: " ".join(c["message"] for c in model["status"]["conditions"])
            for name, model in models.items()
        }
        assert 'resource profile not found: "nvidia-gpu-l5"' in told["critical-service-model"]
        assert "no PriorityClass with name higher-priority was found" in told["other-service-model"]


# ---- mistakes --------------------------------------------------------------------------------------


async def test_our_own_apply_adds_the_servers_hint() -> None:
    async with machine() as box:
        wrong = str(EXAMPLES / "priorityclass/wrong-preempt-higher.yaml")
        said = await box.makeway("apply", "-f", wrong, fails=True)
        assert 'supported values: "PreemptLowerPriority", "Never"' in said
        assert "Write preemptionPolicy: PreemptLowerPriority" in said
