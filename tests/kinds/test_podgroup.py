"""Pods that belong together: Kueue's groups by role, and gangs of three APIs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from makeway.kinds import podgroup
from makeway.kinds.podgroup import (
    Member,
    PodGroup,
    gang_of,
    gang_workload,
    pod_group_from,
    role_hash,
)
from makeway.model.workload import WorkloadId

Object = dict[str, Any]
TOLERATIONS = [
    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
]


def pod(
    name: str = "a",
    cpu: str = "1",
    *,
    labels: Object | None = None,
    notes: Object | None = None,
    phase: str = "Pending",
    **spec: Any,
) -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": name,
            "labels": labels or {},
            "annotations": notes or {},
        },
        "spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": cpu}}}], **spec},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("cpu", "known"), [("3", "b54683bb"), ("1", "4b0469f7"), ("2", "c3465716")]
)
def test_roles_have_the_names_that_kueue_gives_them(cpu: str, known: str) -> None:
    """Recorded from Kueue 0.19.1."""
    assert role_hash(pod(cpu=cpu, priority=0, tolerations=TOLERATIONS)) == known


def test_a_role_that_was_written_down_is_not_computed_again() -> None:
    assert role_hash(pod(notes={"kueue.x-k8s.io/role-hash": "ABC123"})) == "abc123"


def test_a_pod_set_for_each_role_sorted_by_name() -> None:
    sets = podgroup.group_pod_sets([pod("a", "1"), pod("b", "2"), pod("c", "1")])
    assert sorted(s["count"] for s in sets) == [1, 2]
    assert [s["name"] for s in sets] == sorted(s["name"] for s in sets)


@pytest.mark.parametrize(
    ("labels", "notes", "spec"),
    [
        ({"pod-group.scheduling.sigs.k8s.io": "g"}, {}, {}),
        ({"pod-group.scheduling.sigs.k8s.io/name": "g"}, {}, {}),
        ({"scheduling.x-k8s.io/pod-group": "g"}, {}, {}),
        ({}, {"gang.scheduling.koordinator.sh/name": "g"}, {}),
        ({}, {}, {"schedulingGroup": {"podGroupName": "g"}}),
    ],
)
def test_all_ways_to_name_a_gang(labels: Object, notes: Object, spec: Object) -> None:
    assert gang_of(pod(labels=labels, notes=notes, **spec)) == "team/g"


def test_minimums_of_the_three_apis() -> None:
    meta = {"name": "g", "namespace": "team"}
    assert pod_group_from({"metadata": meta, "spec": {"minMember": 3}}).minimum == 3
    native = {"metadata": meta, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
    assert pod_group_from(native).minimum == 2
    basic = {"metadata": meta, "spec": {"schedulingPolicy": {"basic": {}}}}
    assert pod_group_from(basic).minimum is None


def test_pods_alone_can_say_how_many_are_needed() -> None:
    by_note = pod(notes={"gang.scheduling.koordinator.sh/min-available": "4"})
    by_label = pod(
        labels={"pod-group.scheduling.sigs.k8s.io/min-available": "2"},
        notes={"gang.scheduling.koordinator.sh/min-available": "4"},
    )
    assert podgroup.minimum_of(None, [by_note]) == 4
    assert podgroup.minimum_of(None, [by_label]) == 2
    assert podgroup.minimum_of(None, [pod()]) == 1


def test_gangs_named_together_are_one_workload() -> None:
    together = {"gang.scheduling.koordinator.sh/groups": json.dumps(["team/b", "other/a"])}
    workload = podgroup.workload_id_of_gang("team/b", None, [pod(notes=together)])
    assert workload == "other/a,team/b"


def test_an_incomplete_gang_is_held_back_with_the_numbers() -> None:
    member = Member(gang="team/g", group=PodGroup(id="team/g", minimum=2), pods=(pod("a"),))
    found = gang_workload(WorkloadId("team/g"), [member], ours=True)
    assert found.held_back == "1 of the 2 pods of gang team/g exist"
    assert found.gang is not None
    assert found.gang.minimums == (("team/g", 2),)


def test_a_gang_waits_for_its_pod_group() -> None:
    found = gang_workload(
        WorkloadId("team/g"), [Member(gang="team/g", pods=(pod("a"),))], ours=True
    )
    assert found.held_back == "its PodGroup team/g does not exist yet"


def test_one_member_that_may_not_preempt_speaks_for_all() -> None:
    member = Member(
        gang="team/g",
        group=PodGroup(id="team/g", minimum=2),
        pods=(pod("a", preemptionPolicy="Never", priority=9), pod("b", priority=9)),
    )
    found = gang_workload(WorkloadId("team/g"), [member], ours=True)
    assert (found.preempts, found.priority, found.held_back) == (False, 9, "")


def test_an_exemption_label_protects_the_gang() -> None:
    exempt = pod("a", labels={"quota.scheduling.koordinator.sh/preemptible": "false"})
    found = gang_workload(WorkloadId("team/g"), [Member(gang="team/g", pods=(exempt,))], ours=True)
    assert (
        found.protected == "the label quota.scheduling.koordinator.sh/preemptible=false exempts it"
    )


def test_a_gang_of_finished_pods_is_finished() -> None:
    member = Member(gang="team/g", pods=(pod("a", phase="Succeeded"), pod("b", phase="Failed")))
    assert gang_workload(WorkloadId("team/g"), [member], ours=True).finished
