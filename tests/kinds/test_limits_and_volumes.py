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
    return volumes.with_volumes(PodShape(namespace="team"), pod, storage(known))


def storage(known: dict[tuple[str, str], Object]) -> volumes.Storage:
    def of_class(name: str) -> list[Object]:
        return [
            obj
            for (kind, _), obj in known.items()
            if kind == "PersistentVolume" and volumes.storage_class(obj) == name
        ]

    return volumes.Storage(lambda kind, key: known.get((kind, key)), of_class)


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
    asks = {"volumes": [{"name": "tmp", "ephemeral": {"x": 1}}]}
    assert volumes.claim_names({"metadata": POD["metadata"], "spec": asks}) == ["a-tmp"]
    assert volumes.claim_names({"spec": asks}) == []  # a template: whose it will be is open


def test_unbound_claims_block_unless_they_wait_for_the_pod() -> None:
    pending = {"spec": {"storageClassName": "sc"}, "status": {"phase": "Pending"}}
    claim = ("PersistentVolumeClaim", "team/data", pending)
    assert claims(POD, claim).blocked == "pod has unbound immediate PersistentVolumeClaims"
    late = ("StorageClass", "sc", {"volumeBindingMode": "WaitForFirstConsumer"})
    assert claims(POD, claim, late).blocked == ""


def local_class(**more: Any) -> tuple[str, str, Object]:
    made = {"provisioner": volumes.NO_PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer"}
    return ("StorageClass", "local", made | more)


def asked(name: str = "data", size: str = "1Gi", **more: Any) -> tuple[str, str, Object]:
    wants = {"storageClassName": "local", "resources": {"requests": {"storage": size}}, **more}
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    return (
        "PersistentVolumeClaim",
        f"team/{name}",
        {"metadata": meta, "spec": wants, "status": {"phase": "Pending"}},
    )


def disk(
    name: str, host: str, size: str = "1Gi", phase: str = "Available", **more: Any
) -> tuple[str, str, Object]:
    here = {"matchExpressions": [{"key": "host", "operator": "In", "values": [host]}]}
    has = {
        "storageClassName": "local",
        "capacity": {"storage": size},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
        **more,
    }
    return (
        "PersistentVolume",
        name,
        {"metadata": {"name": name}, "spec": has, "status": {"phase": phase}},
    )


def hosts(shape: PodShape) -> list[str]:
    """Of the hosts a, b and c, those that the volumes allow."""
    return [
        host
        for host in "abc"
        if all(
            any(term.matches(host, {"host": host}) for term in terms)
            for terms in shape.late_volume_terms
        )
    ]


def test_a_claim_that_waits_goes_where_a_local_volume_matches_it() -> None:
    small, taken = disk("v2", "b", "1M"), disk("v3", "c", phase="Bound", claimRef={"name": "x"})
    shape = claims(POD, asked(), local_class(), disk("v1", "a", "2Gi"), small, taken)
    assert (hosts(shape), shape.blocked) == (["a"], "")


def test_without_a_volume_that_matches_no_node_will_do() -> None:
    assert hosts(claims(POD, asked(), local_class())) == []
    block = disk("v1", "a", volumeMode="Block")
    shared = disk("v2", "b", accessModes=["ReadWriteMany"])
    wants = asked(accessModes=["ReadWriteOnce"])
    assert hosts(claims(POD, wants, local_class(), block, shared)) == []


def test_who_was_given_a_volume_already_goes_to_it() -> None:
    kept = {"namespace": "team", "name": "data", "uid": "uid-data"}
    shape = claims(POD, asked(), local_class(), disk("v1", "a"), disk("v2", "b", claimRef=kept))
    assert hosts(shape) == ["b"]


def test_a_class_that_makes_volumes_makes_them_where_it_may() -> None:
    anywhere = local_class(provisioner="example.com/makes")
    assert hosts(claims(POD, asked(), anywhere, disk("v1", "a"))) == ["a", "b", "c"]
    expressions = [{"key": "host", "values": ["b", "c"]}]
    some = local_class(
        provisioner="example.com/makes", allowedTopologies=[{"matchLabelExpressions": expressions}]
    )
    assert hosts(claims(POD, asked(), some)) == ["b", "c"]
    assert hosts(claims(POD, asked(), some, disk("v1", "a"))) == ["a", "b", "c"]


TWO_CLAIMS = {
    "metadata": POD["metadata"],
    "spec": {
        "volumes": [{"name": n, "persistentVolumeClaim": {"claimName": n}} for n in ("data", "log")]
    },
}


def test_two_claims_need_two_volumes_on_one_host() -> None:
    both = (asked("data"), asked("log", "5Gi"), local_class())
    one_each = (disk("v1", "a", "9Gi"), disk("v2", "b", "9Gi"))
    assert hosts(claims(TWO_CLAIMS, *both, *one_each)) == []
    assert hosts(claims(TWO_CLAIMS, *both, *one_each, disk("v3", "b", "2Gi"))) == ["b"]


def test_on_the_chosen_node_each_claim_gets_the_smallest_volume_that_leaves_one_for_the_other() -> (
    None
):
    objects = (
        asked("log"),
        asked("data", "5Gi"),
        local_class(),
        disk("v1", "a", "9Gi"),
        disk("v2", "a", "2Gi"),
        disk("v3", "b", "1Gi"),
    )
    known = {(kind, key): obj for kind, key, obj in objects}
    shelf = storage(known)
    late = volumes.late_claims(TWO_CLAIMS, shelf)
    node = {"metadata": {"name": "a", "labels": {"host": "a"}}}
    served = volumes.served_on(node, late, shelf)
    assert served is not None
    found = {claim["metadata"]["name"]: v["metadata"]["name"] for claim, v in served if v}
    assert found == {"log": "v2", "data": "v1"}
    elsewhere = {"metadata": {"name": "b", "labels": {"host": "b"}}}
    assert volumes.served_on(elsewhere, late, shelf) is None


def test_a_volume_is_given_once() -> None:
    _, _, claim = asked()
    _, _, volume = disk("v1", "a")
    body = volumes.give(volume, claim)
    assert body is not None
    assert body["spec"]["claimRef"]["uid"] == "uid-data"
    given = {**volume, "spec": {**volume["spec"], **body["spec"]}}
    assert volumes.give(given, claim) is None
