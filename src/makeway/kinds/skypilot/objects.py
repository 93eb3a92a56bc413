"""A task as Kubernetes objects.

`makeway launch -c NAME` is a group of pods, one a node, that is not started again when it is evicted. `makeway jobs launch` is an
Indexed Job, which is. Both carry the user's labels as they are, so the queue and the priority are what the task says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from makeway.kinds.metadata import GROUP_NAME, GROUP_TOTAL, QUEUE_NAME, RETRIABLE_IN_GROUP
from makeway.kinds.skypilot.accelerators import Place
from makeway.kinds.skypilot.task import Task, gpus_rounded_up

Object = dict[str, Any]

CLUSTER = "makeway.dev/cluster"
MANAGED_ID = "makeway.dev/job-id"
REQUESTED = "makeway.dev/requested"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# Not run on one machine; a cluster needs one, and this has a shell and Python.
DEFAULT_IMAGE = "python:3.12"
_LONGEST_NAME = 42


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line adds to the task."""

    name: str  # as the user said it
    namespace: str = "default"
    user: str = ""
    at: str = ""  # when, for the task's id: 2026-01-31-12-00-00-000000
    job_id: int = 1
    place: Place = Place()
    workdir: str = ""  # the folder, whole

    @property
    def cluster(self) -> str:
        """The name on the cluster: small letters, and four that tell users apart."""
        mark = hashlib.sha256(self.user.encode()).hexdigest()[:4]
        return f"{kubernetes_name(self.name)[: _LONGEST_NAME - 5].rstrip('-')}-{mark}"


def kubernetes_name(name: str) -> str:
    return name.lower().replace(".", "-").replace("_", "-")


def cluster_objects(task: Task, launch: Launch) -> list[Object]:
    """The pods of `makeway launch`, the head first."""
    task_id = f"sky-{launch.at}_{launch.cluster}_{launch.job_id}"
    return [_cluster_pod(task, launch, rank, task_id) for rank in range(task.num_nodes)]


def _cluster_pod(task: Task, launch: Launch, rank: int, task_id: str) -> Object:
    name = f"{launch.cluster}-{'head' if rank == 0 else f'worker{rank}'}"
    labels = {**task.labels, **_identity(launch), "skypilot-head-node": str(int(rank == 0))}
    annotations = {**task.annotations, REQUESTED: task.requested}
    if QUEUE_NAME in task.labels:
        labels[GROUP_NAME] = launch.cluster
        annotations |= {GROUP_TOTAL: str(task.num_nodes), RETRIABLE_IN_GROUP: "false"}
    elif task.num_nodes > 1:
        # Without a queue it is still all or nothing.
        labels["pod-group.scheduling.sigs.k8s.io/name"] = launch.cluster
        labels["pod-group.scheduling.sigs.k8s.io/min-available"] = str(task.num_nodes)
    rank_env = {"name": "SKYPILOT_NODE_RANK", "value": str(rank)}
    return _configured(
        task,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": launch.namespace,
                "labels": labels,
                "annotations": annotations,
            },
            "spec": _pod_spec(task, launch, task_id, rank_env),
        },
    )


def managed_job(task: Task, launch: Launch) -> Object:
    """The Job of `makeway jobs launch`. Its task id stays the same however often it is recovered."""
    task_id = f"sky-managed-{launch.at}_{kubernetes_name(launch.name)}_{launch.job_id}-0"
    name = f"{kubernetes_name(launch.name)[:40].rstrip('-')}-{launch.job_id}"
    identity = {**_identity(launch), MANAGED_ID: str(launch.job_id)}
    rank_env = {
        "name": "SKYPILOT_NODE_RANK",
        "valueFrom": {"fieldRef": {"fieldPath": _INDEX}},
    }
    managed = [
        {"name": "SKYPILOT_MANAGED_JOB_ID", "value": str(launch.job_id)},
        {"name": "SKYPILOT_TASK_IDS", "value": task_id},
        {"name": "SKYPILOT_JOB_RANK", "value": "0"},
        {"name": "SKYPILOT_NUM_JOBS", "value": "1"},
    ]
    # The queue is asked once, for the whole job: its pods must not queue a second time.
    for_pods = {k: v for k, v in task.labels.items() if not k.startswith("kueue.x-k8s.io/")}
    template = _configured(
        task,
        {
            "metadata": {"labels": {**for_pods, **identity}, "annotations": {**task.annotations}},
            "spec": _pod_spec(task, launch, task_id, rank_env, *managed),
        },
    )
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": launch.namespace,
            "labels": {**task.labels, **identity},
            "annotations": {**task.annotations, REQUESTED: task.requested},
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": task.num_nodes,
            "parallelism": task.num_nodes,
            "backoffLimit": task.recovery.max_restarts_on_errors,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _failure_rules(task)},
            "template": template,
        },
    }


def _failure_rules(task: Task) -> list[Object]:
    """An eviction is nobody's fault; nor is an exit code that asks for another start."""
    rules: list[Object] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
    if task.recovery.recover_on_exit_codes:
        codes = sorted(task.recovery.recover_on_exit_codes)
        rules.append({"action": "Ignore", "onExitCodes": {"operator": "In", "values": codes}})
    return rules


def _identity(launch: Launch) -> dict[str, str]:
    return {"parent": "skypilot", "skypilot-cluster-name": launch.cluster, CLUSTER: launch.name}


def _pod_spec(task: Task, launch: Launch, task_id: str, *env: Object) -> Object:
    container: Object = {
        "name": "ray-node",
        "image": task.image or DEFAULT_IMAGE,
        "command": ["/bin/bash", "-c", _script(task)],
        "env": [*_env(task, launch, task_id), *env],
        "resources": _resources(task),
    }
    if launch.workdir:
        container["workingDir"] = launch.workdir
    spec: Object = {"restartPolicy": "Never", "containers": [container]}
    if launch.place.affinity:
        spec["affinity"] = launch.place.affinity
    return spec


def _script(task: Task) -> str:
    """Setup in a shell of its own, then run; a setup that fails is not followed by a run."""
    if not task.setup.strip():
        return task.run
    setup = task.setup.rstrip("\n")
    return (
        "export SKYPILOT_SETUP_NODE_RANK=$SKYPILOT_NODE_RANK"
        " SKYPILOT_SETUP_NODE_IPS=$SKYPILOT_NODE_IPS"
        " SKYPILOT_SETUP_NUM_GPUS_PER_NODE=$SKYPILOT_NUM_GPUS_PER_NODE\n"
        f"(\n{setup}\n)\n"
        'failed=$?; if [ "$failed" -ne 0 ]; then'
        ' echo "setup failed with exit code $failed; run was not started" >&2; exit "$failed"; fi\n'
        f"{task.run}"
    )


def _env(task: Task, launch: Launch, task_id: str) -> list[Object]:
    own = {
        "SKYPILOT_TASK_ID": task_id,
        "SKYPILOT_NUM_NODES": str(task.num_nodes),
        "SKYPILOT_NUM_GPUS_PER_NODE": str(gpus_rounded_up(task)),
        # All nodes of a task are on this machine.
        "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * task.num_nodes),
        "SKYPILOT_USER": launch.user,
        "SKYPILOT_CLUSTER_INFO": _cluster_info(launch),
    }
    # What the user sets is the user's, also where it has the name of one of ours.
    wanted: Mapping[str, str] = {**own, **task.envs, **task.secrets}
    return [{"name": name, "value": value} for name, value in wanted.items()]


def _cluster_info(launch: Launch) -> str:
    info = {"cluster_name": launch.cluster, "cloud": "Kubernetes", "region": None, "zone": None}
    return msgspec.json.encode(info).decode()


def _resources(task: Task) -> Object:
    requests = {"cpu": _cpu(task.cpus), "memory": _memory(task.memory_gb)}
    if task.disk_gb:
        requests["ephemeral-storage"] = f"{task.disk_gb}G"
    if task.accelerators is None:
        return {"requests": requests}
    devices = {task.accelerators.resource: str(task.accelerators.count)}
    return {"requests": {**requests, **devices}, "limits": devices}


def _cpu(cpus: float) -> str:
    return str(int(cpus)) if cpus == int(cpus) else f"{round(cpus * 1000)}m"


def _memory(gigabytes: float) -> str:
    return f"{int(gigabytes)}G" if gigabytes == int(gigabytes) else f"{round(gigabytes * 1000)}M"


def _configured(task: Task, pod: Object) -> Object:
    """The user's own changes to the pod (`config.kubernetes.pod_config`), laid over ours."""
    return _laid_over(pod, task.pod_config) if task.pod_config else pod


def _laid_over(base: Object, over: Object) -> Object:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = _laid_over(old, value)
        elif key == "containers" and isinstance(old, list) and isinstance(value, list):
            # SkyPilot's pods have one container, and what is written for it may leave out its name.
            first = value[0] if value and isinstance(value[0], dict) else {}
            merged[key] = [_laid_over(old[0], first), *value[1:]]
        else:
            merged[key] = value
    return merged
