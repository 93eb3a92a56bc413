"""Pod specs: what a pod asks for, and what decides where it may run."""

from __future__ import annotations

from typing import Any

import pytest

from makeway.errors import InvalidObject
from makeway.kinds.pods import read_shape, requests_of
from makeway.model.workload import HostPort

POD = {"kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}}


def container(**requests: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requests}}


def requests(**spec: Any) -> dict[str, int]:
    return requests_of(POD, spec)


def test_containers_add_up() -> None:
    assert requests(containers=[container(cpu="500m"), container(cpu="1", memory="1Ki")]) == {
        "cpu": 1500,
        "memory": 1024,
    }


def test_the_hungriest_init_container_counts_if_it_asks_for_more() -> None:
    init = [container(cpu="3"), container(memory="10")]
    assert requests(containers=[container(cpu="1", memory="20")], initContainers=init) == {
        "cpu": 3000,
        "memory": 20,
    }


def test_a_sidecar_runs_beside_everything_after_it() -> None:
    sidecar = {**container(cpu="1"), "restartPolicy": "Always"}
    assert requests(containers=[container(cpu="2")], initContainers=[sidecar])["cpu"] == 3000
    before = requests(containers=[container(cpu="2")], initContainers=[container(cpu="4"), sidecar])
    after = requests(containers=[container(cpu="2")], initContainers=[sidecar, container(cpu="4")])
    assert (before["cpu"], after["cpu"]) == (4000, 5000)


def test_overhead_comes_on_top_and_pod_level_requests_replace() -> None:
    spec = {
        "containers": [container(cpu="2", **{"nvidia.com/gpu": "1"})],
        "resources": {"requests": {"cpu": "3", "nvidia.com/gpu": "9"}},
        "overhead": {"cpu": "250m", "memory": "64"},
    }
    assert requests(**spec) == {"cpu": 3250, "nvidia.com/gpu": 1, "memory": 64}


def test_a_limit_without_a_request_is_the_request() -> None:
    limited = {
        "resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "4"}, "requests": {"cpu": "1"}}
    }
    assert requests(containers=[limited]) == {"nvidia.com/gpu": 8, "cpu": 1000}


def test_a_malformed_quantity_names_object_and_field() -> None:
    with pytest.raises(InvalidObject) as error:
        requests(containers=[container(cpu="eight")])
    assert "Pod ns/p: spec.containers[0].resources.requests[cpu]" in str(error.value)
    with pytest.raises(InvalidObject, match="greater than or equal to 0"):
        requests(containers=[container(cpu="-1")])


def shape(labels: dict[str, str] | None = None, **spec: Any) -> Any:
    return read_shape(POD, spec, path="spec", namespace="ns", labels=labels)


def test_host_ports_of_what_keeps_running() -> None:
    ports = [{"hostPort": 80}, {"containerPort": 81, "protocol": "UDP"}]
    spec: dict[str, Any] = {
        "containers": [{"ports": ports}],
        "initContainers": [{"ports": [{"hostPort": 90}]}],
    }
    assert shape(**spec).host_ports == (HostPort(port=80),)
    on_host = shape(hostNetwork=True, **spec).host_ports
    assert on_host == (HostPort(port=80), HostPort(port=81, protocol="UDP"))


def test_pod_terms_look_at_their_own_namespace_unless_told() -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}
    preferred = {"weight": 5, "podAffinityTerm": {**term, "namespaceSelector": {}}}
    found = shape(
        affinity={
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
            "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]},
        }
    )
    (anti,), (near,) = found.anti_affinity, found.affinity
    assert (anti.namespaces, anti.weight, anti.namespace_selector) == (("ns",), 0, None)
    assert (near.namespaces, near.weight) == ((), 5)
    assert near.namespace_selector.matches({"any": "thing"})


def test_spread_and_match_label_keys() -> None:
    item = {
        "topologyKey": "zone",
        "maxSkew": 2,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "a"}},
        "matchLabelKeys": ["hash"],
        "nodeTaintsPolicy": "Honor",
    }
    (spread,) = shape(labels={"app": "a", "hash": "1"}, topologySpreadConstraints=[item]).spread
    assert (spread.max_skew, spread.hard, spread.honor_taints, spread.honor_affinity) == (
        2,
        False,
        True,
        True,
    )
    assert spread.selector.matches({"app": "a", "hash": "1"})
    assert not spread.selector.matches({"app": "a", "hash": "2"})


def test_node_affinity_and_selectors() -> None:
    required = {
        "nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
        ]
    }
    found = shape(
        nodeSelector={"disk": "ssd"},
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        tolerations=[{"operator": "Exists"}],
    )
    assert found.node_selector == (("disk", "ssd"),)
    assert found.required_terms[0].matches("n1", {})
    assert not found.required_terms[0].matches("n2", {})
    assert found.tolerations[0].operator == "Exists"
    assert shape().required_terms is None
