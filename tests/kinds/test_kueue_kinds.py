"""Kueue's kinds in both versions, and what is said about bad input."""

from __future__ import annotations

from typing import Any

import pytest

from makeway.errors import InvalidObject
from makeway.kinds import (
    admissioncheck,
    clusterqueue,
    cohort,
    composing,
    localqueue,
    namespace,
    resourceflavor,
    topology,
    workload,
)
from makeway.model.queue import QueueCheck


def cluster_queue(**spec: Any) -> dict[str, Any]:
    return {"kind": "ClusterQueue", "metadata": {"name": "team"}, "spec": spec}


def groups(nominal: str = "4", **limits: str) -> list[dict[str, Any]]:
    item = {"name": "cpu", "nominalQuota": nominal, **limits}
    return [{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [item]}]}]


def test_both_versions_of_a_cluster_queue() -> None:
    old = clusterqueue.read(
        cluster_queue(
            cohort="all",
            admissionChecks=["budget"],
            flavorFungibility={"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"},
            resourceGroups=groups(borrowingLimit="1500m", lendingLimit="0"),
        )
    )
    new = clusterqueue.read(
        cluster_queue(
            cohortName="all",
            admissionChecksStrategy={"admissionChecks": [{"name": "budget"}]},
            flavorFungibility={"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "MayStopSearch"},
            resourceGroups=groups(borrowingLimit="1500m", lendingLimit="0"),
        )
    )
    assert old == new
    assert new.checks == (QueueCheck(name="budget"),)
    quota = new.resource_groups[0].flavors[0].quotas[0]
    assert (quota.nominal, quota.borrowing_limit, quota.lending_limit) == (4000, 1500, 0)


def test_no_selector_matches_nothing_and_an_empty_one_everything() -> None:
    assert clusterqueue.read(cluster_queue()).namespace_selector is None
    everything = clusterqueue.read(cluster_queue(namespaceSelector={})).namespace_selector
    assert everything is not None
    assert everything.matches({"any": "thing"})


def test_an_unset_word_in_a_present_block_stays_unset() -> None:
    assert clusterqueue.read(cluster_queue()).preemption.reclaim == "Never"
    present = clusterqueue.read(cluster_queue(preemption={"withinClusterQueue": "LowerPriority"}))
    assert (present.preemption.within_queue, present.preemption.reclaim) == ("LowerPriority", "")


@pytest.mark.parametrize(
    ("spec", "field", "what"),
    [
        (
            {"resourceGroups": groups("-1")},
            "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota",
            "must be greater than or equal to 0",
        ),
        (
            {"resourceGroups": groups("eight")},
            "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota",
            "quantities must match",
        ),
        (
            {
                "resourceGroups": [
                    {
                        "coveredResources": ["cpu", "gpu"],
                        "flavors": [{"name": "f", "resources": []}],
                    }
                ]
            },
            "spec.resourceGroups[0].flavors[0].resources",
            "same number of resources",
        ),
        ({"queueingStrategy": "Random"}, "spec.queueingStrategy", "Unsupported value"),
        (
            {"preemption": {"withinClusterQueue": "Always"}},
            "spec.preemption.withinClusterQueue",
            '"LowerPriority"',
        ),
        (
            {"fairSharing": {"weight": "-1"}},
            "spec.fairSharing.weight",
            "greater than or equal to 0",
        ),
    ],
)
def test_bad_input_names_object_field_and_remedy(
    spec: dict[str, Any], field: str, what: str
) -> None:
    with pytest.raises(InvalidObject) as error:
        clusterqueue.read(cluster_queue(**spec))
    assert error.value.obj == "ClusterQueue team"
    assert error.value.field == field
    assert what in str(error.value)
    assert error.value.hint


def test_small_kinds() -> None:
    flavor = resourceflavor.read(
        {
            "metadata": {"name": "spot", "annotations": {"makeway.dev/capacity": "elastic"}},
            "spec": {"nodeLabels": {"type": "spot"}, "topologyName": "t"},
        }
    )
    assert (flavor.name, flavor.node_labels, flavor.topology, flavor.elastic) == (
        "spot",
        {"type": "spot"},
        "t",
        True,
    )
    team = cohort.read(
        {
            "metadata": {"name": "team"},
            "spec": {"parentName": "root", "fairSharing": {"weight": "500m"}},
        }
    )
    assert (team.parent, team.weight) == ("root", 0.5)
    local = localqueue.read(
        {
            "metadata": {"name": "l", "namespace": "n"},
            "spec": {"clusterQueue": "q", "stopPolicy": "Hold"},
        }
    )
    assert (local.namespace, local.queue, local.stop) == ("n", "q", "Hold")
    assert namespace.read({"metadata": {"name": "n"}}).labels == {
        "kubernetes.io/metadata.name": "n"
    }
    check = {
        "metadata": {"name": "c"},
        "status": {"conditions": [{"type": "Active", "status": "True"}]},
    }
    assert admissioncheck.read(check).active
    assert not admissioncheck.read({"metadata": {"name": "c"}}).active


def test_a_topology_ends_at_the_host() -> None:
    levels = [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
    obj = {"kind": "Topology", "metadata": {"name": "t"}, "spec": {"levels": levels}}
    assert topology.read(obj).levels == ("rack", "kubernetes.io/hostname")
    obj["spec"] = {"levels": levels[::-1]}
    with pytest.raises(InvalidObject, match="lowest level"):
        topology.read(obj)


def kueue_workload(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "kind": "Workload",
        "metadata": {
            "name": "w",
            "namespace": "ns",
            "uid": "u",
            "labels": {"kueue.x-k8s.io/job-uid": "j"},
            "creationTimestamp": "2026-01-15T12:00:00Z",
            "annotations": {
                "makeway.dev/checkpoint-every": "10m",
                "makeway.dev/restart-takes": "90s",
            },
        },
        "spec": {"queueName": "q", "priority": 7, **spec},
        "status": status or {},
    }


def condition(kind: str, status: str = "True", **fields: str) -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": "2026-01-15T12:00:30Z", **fields}


def test_what_was_asked_for() -> None:
    found = workload.read(
        kueue_workload(
            podSets=[
                {
                    "name": "main",
                    "count": 4,
                    "minCount": 2,
                    "template": {"spec": {"containers": []}},
                }
            ]
        )
    )
    assert (found.id, found.uid, found.owner_uid, found.local_queue, found.priority) == (
        "ns/w",
        "u",
        "j",
        "q",
        7,
    )
    assert (found.pod_sets[0].count, found.pod_sets[0].min_count) == (4, 2)
    assert (found.checkpoint.every_s, found.checkpoint.restart_s) == (600.0, 90.0)
    assert found.needs == "both"
    assert found.admission is None


def test_what_was_decided_and_done() -> None:
    found = workload.read(
        kueue_workload(
            {
                "conditions": [
                    condition("QuotaReserved"),
                    condition("Admitted", "False"),
                    condition("Evicted", reason="Preempted"),
                    condition("Preempted", reason="InCohortReclamation"),
                    condition("Requeued", "False", reason="PodsReadyTimeout"),
                ],
                "admission": {
                    "clusterQueue": "team",
                    "podSetAssignments": [
                        {
                            "name": "main",
                            "count": 2,
                            "flavors": {"cpu": "f"},
                            "resourceUsage": {"cpu": "3"},
                        }
                    ],
                },
                "admissionChecks": [{"name": "c", "state": "Retry", "message": "later"}],
                "reclaimablePods": [{"name": "main", "count": 1}],
                "requeueState": {"requeueAt": "2026-01-15T12:01:00Z", "count": 1},
            }
        )
    )
    assert found.admission is not None
    assert (found.admission.queue, found.admission.admitted) == ("team", False)
    assert found.admission.assignments[0].usage == (("cpu", 3000),)
    assert found.admission.reserved_at == found.created_at + 30
    assert (found.evicted_at, found.evicted_reason) == (found.created_at + 30, "Preempted")
    assert found.last_preemption_reason == "InCohortReclamation"
    assert found.requeue_blocked
    assert found.requeue_at == found.created_at + 60
    assert found.reclaimable == (("main", 1),)
    assert found.checks[0].message == "later"


def test_without_checks_reserved_is_admitted() -> None:
    status = {"conditions": [condition("QuotaReserved")], "admission": {"clusterQueue": "team"}}
    found = workload.read(kueue_workload(status)).admission
    assert found is not None
    assert found.admitted


def test_a_minimum_above_the_size_is_refused() -> None:
    with pytest.raises(InvalidObject) as error:
        workload.read(kueue_workload(podSets=[{"name": "main", "count": 2, "minCount": 3}]))
    assert error.value.field == "spec.podSets[0].minCount"


def test_gates_and_boost() -> None:
    obj = kueue_workload(preemptionGates=[{"name": "g"}])
    obj["metadata"]["annotations"] = {
        "kueue.x-k8s.io/admission-gated-by": "a,b",
        "kueue.x-k8s.io/priority-boost": "5",
    }
    found = workload.read(obj)
    assert found.held_back == "Admission is gated by: a,b"
    assert found.preemption_gated
    assert (found.priority, found.boost) == (7, 0)
    boosted = workload.read(obj, priority_boost=True)
    assert (boosted.priority, boosted.boost) == (12, 5)


@pytest.mark.parametrize(
    ("name", "kind", "group", "uid", "expected"),
    [
        (
            "sample-job",
            "Job",
            "batch",
            "11111111-2222-3333-4444-555555555555",
            "job-sample-job-fad91",
        ),
        ("my-pod", "Pod", "", "11111111-2222-3333-4444-555555555555", "pod-my-pod-614c2"),
        ("name", "Job", "batch", "uid", "job-name-ef3a1"),
    ],
)
def test_a_workload_is_named_after_its_job(
    name: str, kind: str, group: str, uid: str, expected: str
) -> None:
    assert composing.workload_name(kind, group, name, uid) == expected


def test_requests_above_limits_are_named_before_quota_is_given() -> None:
    resources = {"requests": {"cpu": "2", "memory": "1"}, "limits": {"cpu": "1", "memory": "1"}}
    template = {"spec": {"containers": [{"name": "c", "resources": resources}]}}
    found = workload.read(kueue_workload(podSets=[{"name": "main", "template": template}]))
    assert found.invalid == (
        "resources validation failed: spec.podSets[0].template.spec.containers[0]:"
        ' Invalid value: ["cpu"]: requests must not exceed its limits'
    )
