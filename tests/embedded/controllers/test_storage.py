"""Claims and volumes: who gets which, who waits for what, and what goes when."""

from __future__ import annotations

from typing import Any

from makeway.client.resource import (
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    Object,
)
from makeway.embedded.controllers import run_controllers, statefulsets
from makeway.embedded.controllers.plan import Create, Patch, Plan, Tell
from makeway.embedded.controllers.storage import Storage, reconcile_claim, reconcile_volume
from makeway.embedded.objects import name_of
from tests.embedded.conftest import Cluster
from tests.embedded.controllers.builders import pod

LATE = {
    "metadata": {"name": "late"},
    "provisioner": "x/y",
    "volumeBindingMode": "WaitForFirstConsumer",
}


def claim(
    size: str = "5Gi", *, phase: str = "Pending", meta: Object | None = None, **spec: Any
) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "a", "uid": "uid-data", **(meta or {})},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
            **spec,
        },
        "status": {"phase": phase},
    }


def volume(
    name: str, size: str, *, phase: str = "Available", meta: Object | None = None, **spec: Any
) -> Object:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", **(meta or {})},
        "spec": {
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
            "capacity": {"storage": size},
            **spec,
        },
        "status": {"phase": phase},
    }


def look(
    one: Object,
    *volumes: Object,
    storage_class: Object | None = None,
    in_use: bool = False,
) -> Plan:
    return reconcile_claim(one, Storage(list(volumes), storage_class, in_use))


def bound_to(plan: Plan) -> str:
    named = [a.body.get("spec", {}).get("volumeName") for a in plan.actions if isinstance(a, Patch)]
    return next((name for name in named if name), "")


def told(plan: Plan) -> list[str]:
    return [a.reason for a in plan.actions if isinstance(a, Tell)]


def test_a_claim_takes_the_smallest_volume_that_fits() -> None:
    volumes = [volume("big", "50Gi"), volume("small", "1Gi"), volume("right", "5Gi")]
    plan = look(claim(), *volumes)
    assert bound_to(plan) == "right"
    first = plan.actions[0]
    assert isinstance(first, Patch)
    assert name_of(first.obj) == "right", "the volume is taken before the claim believes to have it"
    assert first.body["spec"]["claimRef"]["uid"] == "uid-data"


def test_only_a_volume_with_all_that_is_asked_for_will_do() -> None:
    assert not bound_to(look(claim(), volume("v", "4Gi")))
    assert not bound_to(look(claim(accessModes=["ReadWriteMany"]), volume("v", "5Gi")))
    assert not bound_to(look(claim(storageClassName="fast"), volume("v", "5Gi")))
    assert not bound_to(look(claim(volumeMode="Block"), volume("v", "5Gi")))
    picky = claim(selector={"matchLabels": {"disk": "ssd"}})
    assert not bound_to(look(picky, volume("v", "5Gi")))
    assert bound_to(look(picky, volume("v", "5Gi", meta={"labels": {"disk": "ssd"}}))) == "v"


def test_a_volume_that_is_kept_for_somebody_is_theirs() -> None:
    others = {"namespace": "a", "name": "other"}
    assert not bound_to(look(claim(), volume("v", "5Gi", claimRef=others)))
    ours = {"namespace": "a", "name": "data"}
    assert bound_to(look(claim(), volume("free", "5Gi"), volume("v", "9Gi", claimRef=ours))) == "v"
    before = {**ours, "uid": "of-an-earlier-claim-of-this-name"}
    assert not bound_to(look(claim(), volume("v", "5Gi", claimRef=before)))


def test_who_waits_is_told_for_what() -> None:
    assert told(look(claim())) == ["FailedBinding"]
    assert told(look(claim(storageClassName="gone"))) == ["ProvisioningFailed"]
    late = claim(storageClassName="late")
    assert told(look(late, storage_class=LATE)) == ["WaitForFirstConsumer"]
    chosen = claim(
        storageClassName="late",
        meta={"annotations": {"volume.kubernetes.io/selected-node": "one"}},
    )
    assert told(look(chosen, storage_class=LATE)) == ["ExternalProvisioning"]


def test_who_waits_for_a_node_gets_only_what_a_scheduler_gives_it() -> None:
    late = claim(storageClassName="late")
    free = volume("v", "5Gi", storageClassName="late")
    assert not bound_to(look(late, free, storage_class=LATE))
    given = {"namespace": "a", "name": "data", "uid": "uid-data"}
    free["spec"]["claimRef"] = given
    assert bound_to(look(late, free, storage_class=LATE)) == "v"


def test_what_a_pod_uses_is_kept_until_it_is_gone() -> None:
    going = claim(
        meta={"deletionTimestamp": "now", "finalizers": ["kubernetes.io/pvc-protection", "mine"]}
    )
    assert not look(going, in_use=True).actions
    (patch,) = look(going).actions
    assert isinstance(patch, Patch)
    assert patch.body == {"metadata": {"finalizers": ["mine"]}}


def phase_of(plan: Plan) -> str:
    return "".join(a.body["status"]["phase"] for a in plan.actions if isinstance(a, Patch))


def test_a_volume_follows_its_claim() -> None:
    reference = {"namespace": "a", "name": "data", "uid": "uid-data"}
    taken = volume("v", "5Gi", claimRef=reference)
    assert phase_of(reconcile_volume(taken, claim())) == "Bound"
    assert phase_of(reconcile_volume(taken, None)) == "Released"
    another = claim(meta={"uid": "another"})
    assert phase_of(reconcile_volume(taken, another)) == "Released"
    assert not reconcile_volume(volume("v", "5Gi"), None).actions


def test_a_claim_whose_volume_is_gone_says_so() -> None:
    assert told(look(claim(phase="Bound", volumeName="v"))) == ["ClaimLost"]
    assert not look(claim(phase="Bound", volumeName="v"), volume("v", "5Gi")).actions


# Stateful sets


def stateful(replicas: int, **policy: str) -> Object:
    template = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "a", "uid": "uid-db"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {}, "spec": {"containers": [{"name": "c"}]}},
            "volumeClaimTemplates": [template],
            "persistentVolumeClaimRetentionPolicy": policy,
        },
    }


def test_claims_are_made_before_their_pods_and_found_again() -> None:
    plan = statefulsets.reconcile(stateful(1), [], lambda name: None)
    made = [a.obj for a in plan.actions if isinstance(a, Create)]
    assert [(each["kind"], name_of(each)) for each in made] == [
        ("PersistentVolumeClaim", "data-db-0"),
        ("Pod", "db-0"),
    ]
    assert made[0]["metadata"]["labels"] == {"app": "db"}
    assert not made[0]["metadata"]["ownerReferences"]
    again = statefulsets.reconcile(stateful(1), [], lambda name: claim(meta={"name": name}))
    assert [a.obj["kind"] for a in again.actions if isinstance(a, Create)] == ["Pod"]


def owner_after(set_: Object, pods: list[Object], *owners: Object) -> list[list[str]]:
    """Whom each claim that changes hands belongs to afterwards."""

    def find(name: str) -> Object:
        return claim(meta={"name": name, "ownerReferences": list(owners)})

    plan = statefulsets.reconcile(set_, pods, find)
    return [
        [f"{each['kind']} {each['name']}" for each in a.body["metadata"]["ownerReferences"] or []]
        for a in plan.actions
        if isinstance(a, Patch) and "metadata" in a.body
    ]


def test_claims_go_with_whom_the_set_says() -> None:
    pods = [pod("db-0", ready=True), pod("db-1", ready=True)]
    assert owner_after(stateful(2), pods) == []
    assert owner_after(stateful(2, whenDeleted="Delete"), pods) == [["StatefulSet db"]] * 2
    assert owner_after(stateful(1, whenScaled="Delete"), pods) == [["Pod db-1"]]
    ours = {"kind": "StatefulSet", "name": "db", "uid": "uid-db"}
    theirs = {"kind": "Backup", "name": "b", "uid": "uid-b"}
    assert owner_after(stateful(1), [pods[0]], ours, theirs) == [["Backup b"]]


# All of it together


async def test_a_claim_gets_a_volume_and_leaves_with_its_namespace(cluster: Cluster) -> None:
    cluster.start(run_controllers(cluster.client))
    await cluster.client.create(NAMESPACES, {"metadata": {"name": "a"}})
    shared = volume("shared", "5Gi", hostPath={"path": "/tmp"})
    del shared["metadata"]["uid"], shared["status"]
    await cluster.client.create(PERSISTENT_VOLUMES, shared)
    asked = claim(meta={"uid": None})
    del asked["metadata"]["uid"], asked["status"]
    await cluster.client.create(PERSISTENT_VOLUME_CLAIMS, asked)
    await cluster.until(
        PERSISTENT_VOLUME_CLAIMS, "data", lambda it: it["status"]["phase"] == "Bound", "a"
    )
    await cluster.client.delete(NAMESPACES, "a")
    await cluster.until(
        PERSISTENT_VOLUMES, "shared", lambda it: it["status"]["phase"] == "Released", ""
    )
    await cluster.until_gone(NAMESPACES, "a", "")
