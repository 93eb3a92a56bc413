"""What each kind of job asks for, and how it is started and stopped."""

from __future__ import annotations

from typing import Any

import pytest

from makeway.kinds.frameworks import JOB_KINDS
from makeway.kinds.gated import GATED_KINDS
from makeway.kinds.queued import CannotQueue

Object = dict[str, Any]
UPDATE = {
    "labels": {"podset": "x"},
    "nodeSelector": {"tier": "spot"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
}


def nothing(kind: str, key: str) -> Object | None:
    return None


def template(cpu: str = "1", **spec: Any) -> Object:
    container = {"name": "app", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": {"labels": {"own": "yes"}}, "spec": {"containers": [container], **spec}}


def made(kind: str, **spec: Any) -> Object:
    meta = {"name": "it", "namespace": "team", "uid": "u1"}
    return {"apiVersion": JOB_KINDS[kind].api_version, "kind": kind, "metadata": meta, "spec": spec}


def jobset(**spec: Any) -> Object:
    workers = {"spec": {"parallelism": 3, "completions": 2, "template": template()}}
    replicated = [
        {"name": "Leader", "template": {"spec": {"template": template()}}},
        {"name": "workers", "replicas": 2, "template": workers},
    ]
    return made("JobSet", replicatedJobs=replicated, **spec)


def pytorch(**spec: Any) -> Object:
    specs = {"Worker": {"replicas": 3, "template": template()}, "Master": {"template": template()}}
    return made("PyTorchJob", pytorchReplicaSpecs=specs, **spec)


def ray_cluster_spec() -> Object:
    groups = [
        {"groupName": "small", "template": template()},
        {"groupName": "big", "replicas": 2, "numOfHosts": 4, "template": template()},
    ]
    return {"headGroupSpec": {"template": template()}, "workerGroupSpecs": groups}


def train_job() -> Object:
    return made("TrainJob", runtimeRef={"name": "torch"}, trainer={"numNodes": 4, "image": "mine"})


def runtime(kind: str, key: str) -> Object | None:
    if (kind, key) != ("ClusterTrainingRuntime", "torch"):
        return None
    node = template()
    node["spec"]["containers"][0]["name"] = "node"
    jobs = [{"name": "node", "template": {"spec": {"template": node}}}]
    return {"spec": {"template": {"spec": {"replicatedJobs": jobs}}}}


def counts(job: Object) -> dict[str, int]:
    pod_sets = JOB_KINDS[job["kind"]].pod_sets(job, runtime)
    return {pod_set["name"]: pod_set["count"] for pod_set in pod_sets}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (jobset(), {"leader": 1, "workers": 4}),
        (pytorch(), {"master": 1, "worker": 3}),
        (made("RayCluster", **ray_cluster_spec()), {"head": 1, "small": 1, "big": 8}),
        (
            made("RayJob", rayClusterSpec=ray_cluster_spec()),
            {"head": 1, "small": 1, "big": 8, "submitter": 1},
        ),
        (
            made("RayJob", rayClusterSpec=ray_cluster_spec(), submissionMode="HTTPMode"),
            {"head": 1, "small": 1, "big": 8},
        ),
        (train_job(), {"node": 4}),
    ],
    ids=lambda value: str(value.get("kind", "")),
)
def test_pod_sets(job: Object, expected: dict[str, int]) -> None:
    assert counts(job) == expected
    assert list(counts(job)) == list(expected)


def merged(job: Object, patch: Object) -> Object:
    result = dict(job)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else value
    return result


@pytest.mark.parametrize(
    "job",
    [
        jobset(suspend=True),
        pytorch(runPolicy={"suspend": True}),
        train_job(),
        made("RayJob", rayClusterSpec=ray_cluster_spec(), suspend=True),
    ],
    ids=lambda job: job["kind"],
)
def test_stopping_puts_back_what_starting_changed(job: Object) -> None:
    kind = JOB_KINDS[job["kind"]]
    pod_sets = kind.pod_sets(job, runtime)
    updates = {slot.name: UPDATE for slot in kind.slots(job, runtime)}

    started = merged(job, kind.start_patch(job, updates, {}, runtime))

    assert not kind.suspended(started)
    assert '"tier"' in str(started["spec"]).replace("'", '"')
    step = kind.stop(started, pod_sets, runtime)
    assert step.done
    stopped = merged(started, step.patch)
    assert kind.suspended(stopped)
    assert kind.pod_sets(stopped, runtime) == pod_sets
    assert "tier" not in str(stopped["spec"])
    assert kind.stop(stopped, pod_sets, runtime).patch == {}


def test_a_train_job_waits_for_its_runtime() -> None:
    with pytest.raises(CannotQueue, match='ClusterTrainingRuntime "torch" not found'):
        JOB_KINDS["TrainJob"].pod_sets(train_job(), nothing)


def test_more_pod_sets_than_a_workload_holds_are_refused() -> None:
    groups = [{"groupName": f"g{i}", "template": template()} for i in range(18)]
    job = made("RayCluster", headGroupSpec={"template": template()}, workerGroupSpecs=groups)
    with pytest.raises(CannotQueue, match="19 pod sets"):
        JOB_KINDS["RayCluster"].pod_sets(job, nothing)


def test_a_jobs_own_priority_class_comes_first() -> None:
    policy = {"schedulingPolicy": {"priorityClass": "urgent"}}
    assert JOB_KINDS["PyTorchJob"].priority_class(pytorch(runPolicy=policy)) == "urgent"


def test_jobs_of_a_set_that_succeeded_give_their_quota_back() -> None:
    done = {**jobset(), "status": {"replicatedJobsStatus": [{"name": "workers", "succeeded": 1}]}}
    assert JOB_KINDS["JobSet"].reclaimable(done) == [("workers", 2)]


def test_a_ray_job_on_another_cluster_does_not_queue() -> None:
    job = made("RayJob", clusterSelector={"ray.io/cluster": "shared"})
    assert not JOB_KINDS["RayJob"].queues(job)


def test_groups_of_a_leaderworkerset_have_workloads_of_their_own() -> None:
    form = {"size": 4, "leaderTemplate": template("2"), "workerTemplate": template()}
    owner = {
        "metadata": {"name": "serve", "uid": "u1"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": form},
    }
    first, second = GATED_KINDS["LeaderWorkerSet"].groups(owner)
    assert first.workload != second.workload
    assert first.workload.startswith("leaderworkerset-serve-0-")
    assert [(s["name"], s["count"]) for s in first.pod_sets] == [("leader", 1), ("worker", 3)]
    pod = {"metadata": {"labels": {"leaderworkerset.sigs.k8s.io/group-index": "1"}}}
    assert GATED_KINDS["LeaderWorkerSet"].workload_of(pod, owner) == second.workload
