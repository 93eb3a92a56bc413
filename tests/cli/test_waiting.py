"""Why somebody waits, in one sentence with numbers and names."""

from __future__ import annotations

from typing import Any

from makeway.cli.waiting import Scene, why_in

Object = dict[str, Any]


def queue(name: str, cpus: int) -> Object:
    resources = [{"name": "cpu", "nominalQuota": str(cpus)}]
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": resources}]}]
    return {"metadata": {"name": name}, "spec": {"cohortName": "ab", "resourceGroups": groups}}


def workload(name: str, cpus: int, priority: int, *conditions: Object, **status: Object) -> Object:
    container = {"resources": {"requests": {"cpu": str(cpus)}}}
    pod_set = {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"queueName": "local", "priority": priority, "podSets": [pod_set]},
        "status": {"conditions": list(conditions), **status},
    }


def admitted(name: str, cpus: int, priority: int) -> Object:
    usage = {"clusterQueue": "a", "podSetAssignments": [{"resourceUsage": {"cpu": str(cpus)}}]}
    return workload(
        name, cpus, priority, {"type": "QuotaReserved", "status": "True"}, admission=usage
    )


def scene(*workloads: Object) -> Scene:
    return Scene(
        workloads=list(workloads),
        cluster_queues={"a": queue("a", 4), "b": queue("b", 6)},
        local_queues={("team", "local"): "b"},
    )


def waiting(message: str) -> Object:
    return workload(
        "sweep", 5, 10, {"type": "QuotaReserved", "status": "False", "message": message}
    )


def test_the_sentence_has_the_numbers_and_who_runs_there() -> None:
    one = waiting("2 more cpu needed")

    assert why_in(scene(one, admitted("train", 7, 100)), one) == (
        "2 more cpu needed. It asks for 5 cpu; cohort ab has 10, of which 7 are in use."
        " team/train (priority 100) runs there; sweep starts by itself when there is room."
    )


def test_who_was_just_evicted_reads_for_whom_without_identifiers() -> None:
    message = "Preempted to accommodate a workload (UID: 1, JobUID: 2) due to x; preemptor: team/train (priority 100 over 10); loss: 19 GPU-seconds"
    one = waiting(message)

    sentence = why_in(scene(one), one)

    assert sentence == "it was stopped for team/train (priority 100 over 10); lost: 19 GPU-seconds."


def test_who_has_quota_does_not_wait_for_it() -> None:
    one = admitted("train", 7, 100)

    assert why_in(scene(one), one) == "it does not wait for quota: that is reserved."
