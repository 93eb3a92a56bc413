"""What namespaces, runtimes and claims add to a pod."""

from __future__ import annotations

from typing import Any

from makeway.kinds import limits, volumes
from makeway.model.workload import PodShape

Object = dict[str, Any]


def ranges(**item: Any) -> list[Object]:
    return [{"spec": {"limits": [{"type": "Container", **item}]}}]


def containers(**resources: Any) -> Object:
    return {"containers": [{"name": "app", "resources": resources}]}


def test_missing_requests_come_from_the_namespace() -> None:
    found = limits.summarize(ranges(default={"cpu": "2"}, defaultRequest={"cpu": "1"}))
    (container,) = limits.limited(containers(), found)["containers"]
    assert container["resources"] == {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}


def test_an_own_limit_is_the_request_before_any_default_is() -> None:
    found = limits.summarize(ranges(defaultRequest={"cpu": "1"}))
    (container,) = limits.limited(containers(limits={"cpu": "4"}), found)["containers"]
    assert container["resources"]["requests"] == {"cpu": "4"}


def test_of_several_ranges_the_tightest_counts() -> None:
    found = limits.summarize(
        ranges(max={"cpu": "4"}) + ranges(max={"cpu": "2500m"}, min={"cpu": "1"})
    )
    assert (found.most, found.least) == ({"cpu": "2500m"}, {"cpu": "1"})


def test_the_runtime_class_adds_its_overhead_once() -> None:
    runtime = {"overhead": {"podFixed": {"cpu": "250m"}}}
    assert limits.limited(containers(), limits.Limits(), runtime)["overhead"] == {"cpu": "250m"}
    own = {**containers(), "overhead": {"cpu": "1"}}
    assert limits.limited(own, limits.Limits(), runtime)["overhead"] == {"cpu": "1"}


def test_what_the_api_would_refuse() -> None:
    most = limits.Limits(most={"cpu": "2"}, least={"cpu": "1"})
    assert limits.trouble(containers(requests={"cpu": "3"}), most, "p").endswith(
        'p.containers[0]: Invalid value: ["cpu"]: requests must not be above the limitRange max'
    )
    assert limits.trouble(containers(requests={"cpu": "500m"}), most, "p").endswith(
        "below the limitRange min"
    )
    over = containers(requests={"cpu": "2"}, limits={"cpu": "1500m"})
    assert limits.trouble(over, most, "p").startswith(
        "resources validation failed: p.containers[0]"
    )
    assert limits.trouble(containers(requests={"cpu": "2"}), most, "p") == ""


def claims(pod: Object, *objects: tuple[str, str, Object]) -> PodShape:
    known = {(kind, key): obj for kind, key, obj in objects}
    return volumes.with_volumes(PodShape(namespace="team"), pod, lambda k, n: known.get((k, n)))


POD = {
    "metadata": {"name": "a", "namespace": "team"},
    "spec": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]},
}


def test_a_bound_volume_says_where_the_pod_can_be() -> None:
    terms = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
        ]
    }
    shape = claims(
        POD,
        (
            "PersistentVolumeClaim",
            "team/data",
            {"spec": {"volumeName": "v"}, "status": {"phase": "Bound"}},
        ),
        ("PersistentVolume", "v", {"spec": {"nodeAffinity": {"required": terms}}}),
    )
    ((term,),) = shape.volume_terms
    assert term.matches("n", {"zone": "a"})
    assert not term.matches("n", {"zone": "b"})


def test_a_claim_of_its_own_is_named_after_the_pod() -> None:
    made_for_it = {
        "metadata": POD["metadata"],
        "spec": {"volumes": [{"name": "tmp", "ephemeral": {}}]},
    }
    assert list(
        volumes.claim_names(
            {**made_for_it, "spec": {"volumes": [{"name": "tmp", "ephemeral": {"x": 1}}]}}
        )
    ) == ["a-tmp"]


def test_unbound_claims_block_unless_they_wait_for_the_pod() -> None:
    pending = {"spec": {"storageClassName": "sc"}, "status": {"phase": "Pending"}}
    claim = ("PersistentVolumeClaim", "team/data", pending)
    assert claims(POD, claim).blocked == "pod has unbound immediate PersistentVolumeClaims"
    late = ("StorageClass", "sc", {"volumeBindingMode": "WaitForFirstConsumer"})
    assert claims(POD, claim, late).blocked == ""
