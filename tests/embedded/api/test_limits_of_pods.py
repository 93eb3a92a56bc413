"""LimitRanges and runtime classes: what pods are given and what is refused, as a real API server said it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.embedded.api.conftest import PODS, Api

Object = dict[str, Any]
RANGES = "/api/v1/namespaces/default/limitranges"
RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"
KATA = {
    "metadata": {"name": "kata"},
    "handler": "kata",
    "overhead": {"podFixed": {"cpu": "250m", "memory": "100Mi"}},
    "scheduling": {
        "nodeSelector": {"kata": "yes"},
        "tolerations": [{"key": "kata", "operator": "Exists"}],
    },
}
BOX = {"type": "Container", "max": {"cpu": 2, "memory": "2Gi"}, "min": {"cpu": "100m"}}
OF_PODS = {"type": "Pod", "max": {"cpu": 2}, "min": {"memory": "1Gi"}}
RATIO = {
    "type": "Container",
    "maxLimitRequestRatio": {"cpu": 2},
    "default": {"cpu": 1},
    "defaultRequest": {"cpu": "600m"},
}


def pod(count: int = 1, **resources: Object) -> Object:
    containers = [
        {"name": f"c{number}", "image": "x", "resources": resources} for number in range(count)
    ]
    return {"metadata": {"name": "p"}, "spec": {"containers": containers}}


async def limited(api: Api, item: Object) -> None:
    await api.create(RANGES, {"metadata": {"name": "box"}, "spec": {"limits": [item]}})


@pytest.mark.parametrize(
    ("item", "made", "why"),
    [
        (BOX, pod(limits={"cpu": "3"}), "maximum cpu usage per Container is 2, but limit is 3"),
        (
            BOX,
            pod(requests={"cpu": "50m"}, limits={"cpu": "1"}),
            "minimum cpu usage per Container is 100m, but request is 50m",
        ),
        (
            BOX,
            pod(2, limits={"cpu": "3", "memory": "3Gi"}),
            "[maximum cpu usage per Container is 2, but limit is 3,"
            " maximum memory usage per Container is 2Gi, but limit is 3Gi]",
        ),
        (
            OF_PODS,
            pod(2, limits={"cpu": "1500m", "memory": "1Gi"}),
            "maximum cpu usage per Pod is 2, but limit is 3",
        ),
        (
            OF_PODS,
            pod(requests={"cpu": "1"}),
            "[minimum memory usage per Pod is 1Gi.  No request is specified,"
            " maximum cpu usage per Pod is 2.  No limit is specified]",
        ),
        (
            RATIO,
            pod(requests={"cpu": "100m"}),
            "cpu max limit to request ratio per Container is 2, but provided ratio is 10.000000",
        ),
    ],
)
async def test_a_limit_range_refuses_what_is_beyond_it(
    api: Api, item: Object, made: Object, why: str
) -> None:
    await limited(api, item)
    code, status = await api.call("POST", PODS, made)
    assert (code, status["message"]) == (403, f'pods "p" is forbidden: {why}')


SIDECAR: Object = {
    "name": "s",
    "image": "x",
    "restartPolicy": "Always",
    "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
}
FIRST: Object = {"name": "i", "image": "x", "resources": {"limits": {"cpu": "1500m"}}}


@pytest.mark.parametrize(
    ("first", "peak"),
    [([SIDECAR], "2200m"), ([SIDECAR, FIRST], "2500m"), ([FIRST, SIDECAR], "2200m"), ([FIRST], "")],
)
async def test_a_sidecar_counts_beside_whatever_starts_after_it(
    api: Api, first: list[Object], peak: str
) -> None:
    await limited(api, OF_PODS)
    made = pod(limits={"cpu": "1200m", "memory": "1Gi"})
    made["spec"]["initContainers"] = first
    code, status = await api.call("POST", PODS, made)
    if not peak:
        assert code == 201
        return
    why = f"maximum cpu usage per Pod is 2, but limit is {peak}"
    assert (code, status["message"]) == (403, f'pods "p" is forbidden: {why}')


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ("500Mi", "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 500Mi"),
        ("5Gi", ""),
        ("20Gi", "maximum storage usage per PersistentVolumeClaim is 10Gi, but request is 20Gi"),
    ],
)
async def test_a_limit_range_bounds_claims(api: Api, size: str, why: str) -> None:
    bounds = {"min": {"storage": "1Gi"}, "max": {"storage": "10Gi"}}
    await limited(api, {"type": "PersistentVolumeClaim", **bounds})
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    code, status = await api.call("POST", claims, {"metadata": {"name": "x"}, "spec": spec})
    said = f'persistentvolumeclaims "x" is forbidden: {why}'
    assert (code, status.get("message")) == ((403, said) if why else (201, None))


async def test_a_limit_range_gives_what_is_left_open_and_says_so(api: Api) -> None:
    await limited(api, BOX)
    made = await api.create(PODS, pod(requests={"cpu": "1"}))
    assert made["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "1", "memory": "2Gi"},
        "limits": {"cpu": "2", "memory": "2Gi"},
    }
    assert made["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: memory request for container c0; cpu, memory limit for container c0"
    )


async def test_a_limit_range_that_contradicts_itself_is_refused(api: Api) -> None:
    item = {"type": "Container", "min": {"cpu": 3}, "max": {"cpu": 2}, "default": {"cpu": 4}}
    body = {"metadata": {"name": "bad"}, "spec": {"limits": [item]}}
    code, status = await api.call("POST", RANGES, body)
    assert (code, [cause["message"] for cause in status["details"]["causes"]]) == (
        422,
        [
            'Invalid value: "3": min value 3 is greater than max value 2',
            'Invalid value: "4": default request value 4 is greater than max value 2',
            'Invalid value: "2": default value 4 is greater than max value 2',
        ],
    )


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            {"overhead": {"cpu": "1"}},
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        ),
        ({"runtimeClassName": "nope"}, 'pod rejected: RuntimeClass "nope" not found'),
        (
            {"runtimeClassName": "kata", "overhead": {"cpu": "1"}},
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
        ),
        (
            {"runtimeClassName": "kata", "nodeSelector": {"kata": "no"}},
            "conflict: runtimeClass.scheduling.nodeSelector[kata] = yes;"
            " pod.spec.nodeSelector[kata] = no",
        ),
    ],
)
async def test_what_a_runtime_class_does_not_allow(api: Api, spec: Object, why: str) -> None:
    await api.create(RUNTIMES, KATA)
    made = pod()
    made["spec"] |= spec
    code, status = await api.call("POST", PODS, made)
    assert (code, status["message"]) == (403, f'pods "p" is forbidden: {why}')


async def test_a_runtime_class_brings_its_overhead_and_its_nodes(api: Api) -> None:
    await api.create(RUNTIMES, KATA)
    asked = pod()
    asked["spec"]["runtimeClassName"] = "kata"
    made = (await api.create(PODS, asked))["spec"]
    assert made["overhead"] == {"cpu": "250m", "memory": "100Mi"}
    assert made["nodeSelector"] == {"kata": "yes"}
    assert {"key": "kata", "operator": "Exists"} in made["tolerations"]
