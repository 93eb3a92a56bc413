"""What the server adds to objects on their way in."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest

from makeway.kinds.serving.kind import Context
from makeway.kinds.serving.pods import PodRules, quality_of_service
from makeway.kinds.serving.queueing import GATES, role_hash
from makeway.kinds.serving.registry import build
from makeway.kinds.serving.schemas import definitions

Obj = dict[str, Any]


class Objects:
    """A lookup over a few objects."""

    def __init__(self, **objects: list[Obj]) -> None:
        self._objects = {name.replace("__", "."): found for name, found in objects.items()}

    def get(self, resource: str, namespace: str, name: str) -> Obj | None:
        for obj in self._objects.get(resource.partition(".")[0], []):
            if (
                obj["metadata"]["name"] == name
                and obj["metadata"].get("namespace", "") == namespace
            ):
                return obj
        return None

    def list(self, resource: str, namespace: str = "") -> Iterable[Obj]:
        found = self._objects.get(resource.partition(".")[0], [])
        return [
            obj for obj in found if not namespace or obj["metadata"].get("namespace") == namespace
        ]


def admitted(pod: Obj, **others: list[Obj]) -> Obj:
    rules = PodRules()
    rules.default(pod)
    rules.create(pod, Context(0.0, Objects(**others)))
    assert rules.validate(pod) == []
    return pod


def pod(**more: Any) -> Obj:
    container = {"name": "c", "image": "busybox", "resources": more.pop("resources", {})}
    metadata = {"name": "p", "namespace": "team", **more.pop("metadata", {})}
    return {"metadata": metadata, "spec": {"containers": [container], **more}}


def test_a_pod_gets_what_the_real_server_gives_it() -> None:
    spec = admitted(pod(resources={"limits": {"cpu": 2, "nvidia.com/gpu": 1}}))["spec"]
    assert spec["containers"][0]["resources"] == {
        "limits": {"cpu": "2", "nvidia.com/gpu": "1"},
        "requests": {"cpu": "2", "nvidia.com/gpu": "1"},
    }
    assert spec["containers"][0]["imagePullPolicy"] == "Always"
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"], spec["priority"]) == (
        "Always",
        30,
        0,
    )
    assert [toleration["tolerationSeconds"] for toleration in spec["tolerations"]] == [300, 300]


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("a", "Always"),
        ("a:latest", "Always"),
        ("a:1", "IfNotPresent"),
        ("r:5000/a", "Always"),
        ("a@sha256:0", "IfNotPresent"),
    ],
)
def test_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    given = pod()
    given["spec"]["containers"][0]["image"] = image
    assert admitted(given)["spec"]["containers"][0]["imagePullPolicy"] == policy


def test_a_queued_pod_is_gated() -> None:
    given = admitted(
        pod(
            metadata={"labels": {"kueue.x-k8s.io/queue-name": "q"}},
            resources={"requests": {"cpu": 6}},
        )
    )
    assert given["metadata"]["labels"]["kueue.x-k8s.io/managed"] == "true"
    assert given["metadata"]["finalizers"] == ["kueue.x-k8s.io/managed"]
    assert [gate["name"] for gate in given["spec"]["schedulingGates"]] == list(GATES)
    condition = given["status"]["conditions"][0]
    assert (condition["type"], condition["reason"]) == ("PodScheduled", "SchedulingGated")
    # As the real Kueue wrote it for this very pod.
    assert given["metadata"]["annotations"]["kueue.x-k8s.io/role-hash"] == "4cb13f91"


def test_pods_of_a_queued_job_are_left_alone() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    metadata = {"labels": {"kueue.x-k8s.io/queue-name": "q"}, "ownerReferences": [owner]}
    assert "schedulingGates" not in admitted(pod(metadata=metadata))["spec"]


def test_a_local_queue_called_default_takes_who_names_none() -> None:
    queue = {"metadata": {"name": "default", "namespace": "team"}}
    given = admitted(pod(), localqueues=[queue])
    assert given["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "default"


def test_pods_that_differ_in_what_they_ask_for_differ_in_role() -> None:
    first, second = (
        admitted(pod(resources={"requests": {"cpu": 1}})),
        admitted(pod(resources={"requests": {"cpu": 2}})),
    )
    assert role_hash(first["spec"]) != role_hash(second["spec"])
    assert role_hash(first["spec"]) == role_hash(
        admitted(pod(resources={"requests": {"cpu": "1000m"}}))["spec"]
    )


def test_a_limit_range_fills_in() -> None:
    limits = {"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}
    found = {"metadata": {"name": "l", "namespace": "team"}, "spec": {"limits": [limits]}}
    resources = admitted(pod(), limitranges=[found])["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
        ({"limits": {"nvidia.com/gpu": "1"}}, "BestEffort"),
    ],
)
def test_quality_of_service(resources: Obj, quality: str) -> None:
    assert quality_of_service({"containers": [{"name": "c", "resources": resources}]}) == quality


def test_every_served_version_has_a_definition_that_reads_an_empty_object() -> None:
    known = definitions()
    for kind in build():
        if kind.group in ("metrics.k8s.io", "resource.k8s.io"):
            continue  # nobody writes these: they are measured, or only there to be listed
        for version in kind.versions:
            assert version.schema in known, (kind.resource, version.name)
            assert known.fits(version.schema, b"{}"), version.schema


def test_defaults_are_the_same_when_given_twice() -> None:
    for kind in build():
        if kind.kind == "Binding":
            continue
        obj: Obj = {"metadata": {"name": "x"}}
        kind.rules.default(obj)
        before = repr(obj)
        kind.rules.default(obj)
        assert repr(obj) == before, kind.resource


@pytest.mark.parametrize("resource", ["clusterqueues", "localqueues", "workloads"])
def test_kueue_versions_convert_there_and_back(resource: str) -> None:
    old: dict[str, Obj] = {
        "clusterqueues": {
            "spec": {"cohort": "c", "flavorFungibility": {"whenCanBorrow": "MayStopSearch"}},
            "status": {},
        },
        "localqueues": {"spec": {"clusterQueue": "q"}, "status": {"flavorUsage": [{"name": "f"}]}},
        "workloads": {
            "spec": {
                "priorityClassName": "high",
                "priorityClassSource": "scheduling.k8s.io/priorityclass",
            },
            "status": {"accumulatedPastExexcutionTimeSeconds": 5},
        },
    }
    kind = build()[f"{resource}.kueue.x-k8s.io"]
    conversion = kind.versions[1].conversion
    assert conversion is not None
    obj = old[resource]
    before = copy.deepcopy(obj)
    conversion.to_storage(obj)
    assert obj != before
    conversion.from_storage(obj)
    assert obj == before
