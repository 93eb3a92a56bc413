"""Whatever is sent, the answer is an object or a refusal with a reason, never an error of ours."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.embedded.api.unwired import Server

CONTAINER = {
    "name": "c",
    "image": "i",
    "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": 1}, "requests": {"memory": "1Gi"}},
    "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "ports": [{"containerPort": 80}],
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    "livenessProbe": {"httpGet": {"port": 80}},
}
POD_SPEC = {
    "containers": [CONTAINER],
    "initContainers": [{"name": "i", "image": "i"}],
    "volumes": [{"name": "v", "configMap": {"name": "x"}}, {"name": "w"}],
    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
    "nodeSelector": {"a": "b"},
    "schedulingGates": [{"name": "g"}],
    "restartPolicy": "Never",
    "overhead": {"cpu": "1m"},
}
METADATA = {
    "name": "x",
    "labels": {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/max-exec-time-seconds": "5"},
    "annotations": {"kueue.x-k8s.io/job-min-parallelism": "1"},
    "finalizers": ["a/b"],
    "ownerReferences": [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    ],
}
GROUP = {
    "coveredResources": ["cpu"],
    "flavors": [
        {
            "name": "f",
            "resources": [
                {"name": "cpu", "nominalQuota": 1, "borrowingLimit": "2", "lendingLimit": 1}
            ],
        }
    ],
}
SELECTOR = {
    "matchLabels": {"a": "b"},
    "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": POD_SPEC}
OBJECTS: dict[str, dict[str, Any]] = {
    "/api/v1/namespaces/default/pods": {"spec": POD_SPEC},
    "/api/v1/nodes": {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}, "status": {"capacity": {"cpu": 1}, "conditions": []}},
    "/api/v1/namespaces/default/secrets": {"stringData": {"a": "b"}, "data": {"c": "ZA=="}},
    "/api/v1/namespaces/default/services": {"spec": {"ports": [{"port": 80}]}},
    "/api/v1/namespaces/default/persistentvolumeclaims": {"spec": {"resources": {"requests": {"storage": "1Gi"}}}},
    "/apis/batch/v1/namespaces/default/jobs": {"spec": {"template": TEMPLATE, "completions": 2, "podFailurePolicy": {"rules": []}}},
    "/apis/batch/v1/namespaces/default/cronjobs": {"spec": {"schedule": "x", "jobTemplate": {"spec": {"template": TEMPLATE}}}},
    "/apis/apps/v1/namespaces/default/deployments": {"spec": {"replicas": 1, "selector": SELECTOR, "template": TEMPLATE}},
    "/apis/policy/v1/namespaces/default/poddisruptionbudgets": {"spec": {"minAvailable": 1, "selector": SELECTOR}},
    "/apis/scheduling.k8s.io/v1/priorityclasses": {"value": 5, "globalDefault": True, "preemptionPolicy": "Never"},
    "/apis/kueue.x-k8s.io/v1beta2/clusterqueues": {
        "spec": {
            "cohortName": "c", "namespaceSelector": SELECTOR, "resourceGroups": [GROUP], "fairSharing": {"weight": 1},
            "preemption": {"borrowWithinCohort": {"policy": "Never"}}, "flavorFungibility": {"whenCanBorrow": "MayStopSearch"},
            "admissionChecksStrategy": {"admissionChecks": [{"name": "a", "onFlavors": ["f"]}]},
        }
    },
    "/apis/kueue.x-k8s.io/v1beta1/clusterqueues": {"spec": {"cohort": "c", "admissionChecks": ["a"], "resourceGroups": [GROUP]}},
    "/apis/kueue.x-k8s.io/v1beta2/cohorts": {"spec": {"parentName": "p", "resourceGroups": [GROUP]}},
    "/apis/kueue.x-k8s.io/v1beta2/resourceflavors": {"spec": {"nodeLabels": {"a": "b"}, "nodeTaints": [{"key": "a", "effect": "NoSchedule"}]}},
    "/apis/kueue.x-k8s.io/v1beta2/topologies": {"spec": {"levels": [{"nodeLabel": "a"}]}},
    "/apis/kueue.x-k8s.io/v1beta1/namespaces/default/workloads": {
        "spec": {"podSets": [{"name": "main", "count": 1, "template": TEMPLATE}], "priorityClassName": "x", "priorityClassSource": ""}
    },
    "/apis/kubeai.org/v1/namespaces/default/models": {"spec": {"url": "hf://a", "engine": "VLLM", "features": [], "minReplicas": 1}},
    "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups": {"spec": {"disruptionMode": "Pod", "schedulingPolicy": {"gang": {"minCount": 1}}}},
    "/apis/events.k8s.io/v1/namespaces/default/events": {"regarding": {"kind": "Pod", "name": "x"}, "series": {"count": 1}},
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": {
        "spec": {"group": "a.b", "scope": "Cluster", "names": {"kind": "X", "plural": "xs"}, "versions": [{"name": "v1", "served": True, "storage": True}]}
    },
}  # fmt: skip

odd_values: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        3.5,
        2**40,
        "",
        "x",
        "-1",
        "Bad Name!",
        [],
        {},
        [None],
        [{}],
        {"": None},
        {"a": {"b": [1]}},
    ]
)


@st.composite
def spoiled(draw: st.DrawFn, obj: dict[str, Any]) -> dict[str, Any]:
    """The object with one to three places overwritten by something odd."""
    content = copy.deepcopy(obj)
    for _ in range(draw(st.integers(1, 3))):
        place: Any = content
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys))
            inner = place[key]
            if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 3)) == 0:
                place[key] = copy.deepcopy(draw(odd_values))
                break
            place = inner
    return content


@pytest.mark.parametrize("path", OBJECTS)
def test_no_object_breaks_the_server(path: str) -> None:
    whole = {"metadata": METADATA, **OBJECTS[path]}
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))

        @settings(
            max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None
        )
        @given(spoiled(whole), st.sampled_from(["", "Strict", "Ignore"]))
        def run(content: dict[str, Any], validation: str) -> None:
            code, _ = server.call(
                "POST", path, content, query=f"dryRun=All&fieldValidation={validation}".encode()
            )
            assert code < 500, content
            code, _ = server.call(
                "PATCH", f"{path}/base", content, "application/merge-patch+json", b"dryRun=All"
            )
            assert code < 500, content
            apply = {
                "apiVersion": "/".join(path.split("/")[2:4]) if "/apis/" in path else "v1",
                "kind": "X",
            } | content
            code, _ = server.call(
                "PATCH",
                f"{path}/x",
                apply,
                "application/apply-patch+yaml",
                b"fieldManager=m&dryRun=All",
            )
            assert code < 500, content

        try:
            base = {"metadata": {"name": "base"}, **OBJECTS[path]}
            server.call("POST", path, base)
            run()
        finally:
            server.stop()
