"""Jobs of other projects, from kubectl to running pods: queued, started, preempted, gone on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.e2e.harness import Machine, machine
from tests.e2e.queues import cpu_queue

Object = dict[str, Any]

NODE = """
apiVersion: v1
kind: Node
metadata: {name: node-1, annotations: {kwok.x-k8s.io/node: fake}, labels: {kubernetes.io/hostname: node-1}}
status:
  allocatable: {cpu: "32", memory: 64Gi, pods: "110"}
  capacity: {cpu: "32", memory: 64Gi, pods: "110"}
"""
CLASS = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: high}
value: 1000
"""
QUEUES = "---".join((NODE, cpu_queue("cq", 6, door="queue"), CLASS))
LABELS = "{kueue.x-k8s.io/queue-name: queue}"
CONTAINERS = "[{name: app, image: busybox, resources: {requests: {cpu: '1'}}}]"
JOBSET = f"""
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {{name: train, labels: {LABELS}}}
spec:
  replicatedJobs:
  - name: leader
    template: {{spec: {{template: {{spec: {{containers: {CONTAINERS}}}}}}}}}
  - name: workers
    replicas: 2
    template: {{spec: {{parallelism: 2, completions: 2, template: {{spec: {{containers: {CONTAINERS}}}}}}}}}
"""
PYTORCH = f"""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: torch, labels: {LABELS}}}
spec:
  pytorchReplicaSpecs:
    Master: {{replicas: 1, template: {{spec: {{containers: {CONTAINERS}}}}}}}
    Worker: {{replicas: 2, template: {{spec: {{containers: {CONTAINERS}}}}}}}
"""
LWS = f"""
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {{name: serve, labels: {LABELS}}}
spec:
  replicas: 3
  leaderWorkerTemplate:
    size: 2
    leaderTemplate: {{spec: {{containers: {CONTAINERS}}}}}
    workerTemplate: {{spec: {{containers: {CONTAINERS}}}}}
"""
STATEFUL = f"""
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db, labels: {LABELS}}}
spec:
  replicas: 2
  serviceName: db
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec: {{containers: {CONTAINERS}}}
"""
HIGH = f"""
apiVersion: batch/v1
kind: Job
metadata:
  name: urgent
  labels: {{kueue.x-k8s.io/queue-name: queue, kueue.x-k8s.io/priority-class: high}}
spec:
  parallelism: 6
  completions: 6
  template:
    metadata: {{annotations: {{makeway.dev/pretend-exit-after: 1s}}}}
    spec: {{restartPolicy: Never, containers: {CONTAINERS}}}
"""


def running(box: Machine, *names: str) -> Callable[[], Any]:
    """Whether exactly these pods run, by the beginnings of their names."""

    async def question() -> bool:
        pods = [p for p in await box.list("pods") if p["status"].get("phase") == "Running"]
        alive = [p["metadata"]["name"] for p in pods if not p["metadata"].get("deletionTimestamp")]
        return len(alive) == len(names) and all(
            any(pod.startswith(name) for pod in alive) for name in names
        )

    return question


async def preempted_and_back(box: Machine, *names: str) -> None:
    """A job of high priority takes all of the quota, ends, and what it displaced runs again."""
    await box.until(running(box, *names), what=f"{names} run")
    await box.apply(HIGH)
    await box.until(running(box, *["urgent-"] * 6), 30, what="urgent runs alone")
    await box.until(running(box, *names), 30, what=f"{names} run again")


async def test_a_jobset_runs_is_preempted_and_runs_again() -> None:
    async with machine() as box:
        await box.apply(QUEUES + "---" + JOBSET)
        names = ("train-leader-0-0-", "train-workers-0-0-", "train-workers-0-1-")
        workers = ("train-workers-1-0-", "train-workers-1-1-")
        await preempted_and_back(box, *names, *workers)
        shown = await box.kubectl("get", "jobset")
        assert shown.split()[:6] == [
            *("NAME", "TERMINALSTATE", "RESTARTS", "COMPLETED", "SUSPENDED", "AGE")
        ]
        (workload,) = [w for w in await box.list("workloads") if "train" in w["metadata"]["name"]]
        counts = {s["name"]: s["count"] for s in workload["spec"]["podSets"]}
        assert counts == {"leader": 1, "workers": 4}


async def test_a_pytorchjob_tells_its_pods_where_they_are() -> None:
    async with machine() as box:
        await box.apply(QUEUES + "---" + PYTORCH)
        await preempted_and_back(box, "torch-master-0", "torch-worker-0", "torch-worker-1")
        pod = await box.get("pod", "torch-worker-1")
        env = {e["name"]: e["value"] for e in pod["spec"]["containers"][0]["env"]}
        assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"]) == ("2", "3", "127.0.0.1")
        master = await box.get("pod", "torch-master-0")
        port = {e["name"]: e["value"] for e in master["spec"]["containers"][0]["env"]}
        assert port["MASTER_PORT"] == env["MASTER_PORT"]


async def test_each_group_of_a_leaderworkerset_queues_by_itself() -> None:
    async with machine() as box:
        await box.apply(QUEUES + "---" + LWS)
        names = [f"serve-{group}" for group in range(3)] + [
            f"serve-{group}-1" for group in range(3)
        ]
        await box.until(running(box, *names), what="three groups of two")
        workloads = await box.list("workloads")
        assert sorted(w["metadata"]["name"].rsplit("-", 1)[0] for w in workloads) == [
            *(f"leaderworkerset-serve-{group}" for group in range(3))
        ]
        await preempted_and_back(box, *names)


async def test_a_statefulset_starts_in_order_and_comes_back_under_its_names() -> None:
    async with machine() as box:
        await box.apply(QUEUES + "---" + STATEFUL)
        await preempted_and_back(box, "db-0", "db-1")
        (workload,) = [w for w in await box.list("workloads") if "db" in w["metadata"]["name"]]
        assert [(s["name"], s["count"]) for s in workload["spec"]["podSets"]] == [("main", 2)]


async def test_a_statefulset_at_zero_is_on_hold_and_is_resized_only_by_way_of_it() -> None:
    async with machine() as box:
        await box.apply(QUEUES + "---" + STATEFUL)
        await box.until(running(box, "db-0", "db-1"), what="both run")
        marks = (await box.get("pod", "db-1"))["metadata"]
        (workload,) = await box.list("workloads")
        assert marks["annotations"]["kueue.x-k8s.io/pod-group-name"] == workload["metadata"]["name"]
        assert marks["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "2"
        assert "finalizers" not in marks

        refused = await box.kubectl("scale", "statefulset/db", "--replicas=3", fails=True)
        assert "spec.replicas: Invalid value: 3: field is immutable" in refused

        async def on_hold() -> bool:
            (found,) = await box.list("workloads")
            told = {c["type"]: c["reason"] for c in found["status"]["conditions"]}
            return told["QuotaReserved"] == "OnHold" and "admission" not in found["status"]

        await box.kubectl("scale", "statefulset/db", "--replicas=0")
        await box.until(on_hold, what="the Workload waits for pods to be wanted again")
        await box.until(running(box), what="no pods")

        await box.kubectl("scale", "statefulset/db", "--replicas=3")
        await box.until(running(box, "db-0", "db-1", "db-2"), what="all three run")
        (found,) = await box.list("workloads")
        assert found["metadata"]["uid"] == workload["metadata"]["uid"]
        assert found["spec"]["podSets"][0]["count"] == 3


async def test_pods_of_a_queued_deployment_are_held_by_nothing() -> None:
    deployment = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, labels: {LABELS}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{containers: {CONTAINERS}}}
"""
    async with machine() as box:
        await box.apply(QUEUES + "---" + deployment)

        async def all_run() -> bool:
            pods = await box.list("pods")
            return len(pods) == 2 and all(p["status"]["phase"] == "Running" for p in pods)

        await box.until(all_run, what="both run")
        pods = await box.list("pods")
        assert not any(p["metadata"].get("finalizers") for p in pods)
        first = pods[0]["metadata"]["name"]
        await box.kubectl("delete", "pod", first)

        async def replaced() -> bool:
            names = [w["metadata"]["name"] for w in await box.list("workloads")]
            return await all_run() and len(names) == 2 and not any(first in n for n in names)

        await box.until(replaced, what="another pod queues in its place, and nothing is left of it")


async def test_a_kind_without_its_operator_queues_and_says_so() -> None:
    ray = f"""
apiVersion: ray.io/v1
kind: RayCluster
metadata: {{name: ray, labels: {LABELS}}}
spec:
  headGroupSpec: {{template: {{spec: {{containers: {CONTAINERS}}}}}}}
  workerGroupSpecs: [{{groupName: gpu, replicas: 2, template: {{spec: {{containers: {CONTAINERS}}}}}}}]
"""
    async with machine() as box:
        await box.apply(QUEUES + "---" + ray)

        async def started() -> bool:
            found = await box.get("raycluster", "ray")
            return found["spec"].get("suspend") is False and bool(found.get("status"))

        await box.until(started, what="admitted and told")
        found = await box.get("raycluster", "ray")
        told = {c["type"]: c["message"] for c in found["status"]["conditions"]}
        assert "made by KubeRay, which does not run on this machine" in told["OperatorNeeded"]
        assert "OperatorNeeded" in await box.kubectl("get", "events")


async def test_a_jobset_that_fails_starts_again_and_then_says_why_not() -> None:
    failing = JOBSET.replace(f", labels: {LABELS}", "").replace(
        "  replicatedJobs:", "  failurePolicy: {maxRestarts: 1}\n  replicatedJobs:"
    )
    failing = failing.replace(
        "completions: 2, template: {",
        "completions: 2, backoffLimit: 0, template: {metadata: {annotations: {makeway.dev/pretend-exit-after: 300ms,"
        ' makeway.dev/pretend-exit-code: "7"}}, ',
    ).replace("{spec: {containers:", "{spec: {restartPolicy: Never, containers:")
    async with machine() as box:
        await box.apply(NODE + "---" + failing)

        async def ended() -> bool:
            status = (await box.get("jobset", "train")).get("status") or {}
            return bool(status.get("terminalState") == "Failed")

        await box.until(ended, 30, what="it failed for good")
        found = await box.get("jobset", "train")
        assert found["status"]["restarts"] == 1
        (why,) = [c for c in found["status"]["conditions"] if c["type"] == "Failed"]
        assert why["reason"] == "ReachedMaxRestarts"
        assert "(first failed job: train-workers-" in why["message"]


async def test_sets_without_a_queue_are_all_or_nothing() -> None:
    plain = f", labels: {LABELS}"
    async with machine() as box:
        await box.apply(NODE.replace('"32"', '"7"'))
        await box.apply(LWS.replace(plain, "").replace("replicas: 3", "replicas: 1"))
        await box.until(running(box, "serve-0", "serve-0-1"), what="a group runs")
        await box.apply(JOBSET.replace(plain, ""))
        names = ("train-leader-0-0-", "train-workers-0-0-", "train-workers-0-1-")
        workers = ("train-workers-1-0-", "train-workers-1-1-")
        both = ("serve-0", "serve-0-1", *names, *workers)
        await box.until(running(box, *both), what="all five beside it")
        await box.kubectl("delete", "jobset", "train")
        await box.apply(JOBSET.replace(plain, "").replace("replicas: 2", "replicas: 3"))

        async def all_wait() -> bool:
            pods = [p for p in await box.list("pods") if "train" in p["metadata"]["name"]]
            told = [c.get("message") for p in pods for c in p["status"].get("conditions") or []]
            return len(pods) == 7 and len([text for text in told if text]) == 7

        await box.until(all_wait, what="seven pods that need 7 of 5 CPUs wait and are told")
        assert await running(box, "serve-0", "serve-0-1")()


async def test_a_daemonset_has_a_pod_on_every_node() -> None:
    daemons = f"""
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: agent}}
spec:
  selector: {{matchLabels: {{app: agent}}}}
  template:
    metadata: {{labels: {{app: agent}}}}
    spec: {{containers: {CONTAINERS}}}
"""
    async with machine() as box:
        await box.apply(NODE + "---" + daemons)
        await box.until(running(box, "agent-"), what="one node, one pod")
        await box.apply(NODE.replace("node-1", "node-2"))
        await box.until(running(box, "agent-", "agent-"), what="two nodes, two pods")
        nodes = {pod["spec"]["nodeName"] for pod in await box.list("pods")}
        assert nodes == {"node-1", "node-2"}
