"""PersistentVolumeClaims and the volumes they get, as Kubernetes binds them.

A claim takes the smallest free volume that has all it asks for. Where there is none, whoever provisions its class makes one (on one
machine that is the local node). Where the class waits for its first consumer, a scheduler chooses the node, and the volume there if one
fits. A volume whose
claim is gone is released. What pods still use is kept until they are gone.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from makeway.client.resource import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    Object,
    Resource,
)
from makeway.embedded.controllers.plan import Action, Create, Patch, Plan, Tell, plan
from makeway.embedded.objects import (
    deleted,
    name_of,
    namespace_of,
    owned_by,
    phase,
    status_of,
    uid_of,
)
from makeway.kinds.serving.storage import CLAIM_IN_USE, VOLUME_IN_USE
from makeway.kinds.volumes import (
    BOUND_BY_CONTROLLER,
    NO_PROVISIONER,
    PROVISIONER,
    SELECTED_NODE,
    WAITS_FOR_POD,
    capacity,
    give,
    given_to,
    serves,
    storage_class,
)

BOUND = "pv.kubernetes.io/bind-completed"
NO_VOLUME = "no persistent volumes available for this claim and no storage class is set"
WAITING = "waiting for first consumer to be created before binding"


class Storage(msgspec.Struct, frozen=True):
    """What else is there when a claim is looked at."""

    volumes: list[Object]
    storage_class: Object | None
    in_use: bool  # by pods that have not ended


def reconcile_claim(claim: Object, storage: Storage) -> Plan:
    if deleted(claim):
        return plan(_let_go(PERSISTENT_VOLUME_CLAIMS, claim, CLAIM_IN_USE, not storage.in_use))
    if phase(claim) == "Bound":
        lost = not any(name_of(v) == claim["spec"].get("volumeName") for v in storage.volumes)
        return plan(_say_lost(claim) if lost else [])
    if phase(claim) == "Lost":
        return Plan()
    volume = _chosen(claim, storage)
    return _bind(claim, volume) if volume is not None else plan(_wait(claim, storage))


def reconcile_volume(volume: Object, claim: Object | None) -> Plan:
    """`claim` is the one that its reference names, if it is still there."""
    if deleted(volume):
        return plan(_let_go(PERSISTENT_VOLUMES, volume, VOLUME_IN_USE, phase(volume) != "Bound"))
    reference = volume["spec"].get("claimRef") or {}
    if not reference.get("uid"):
        wanted = "Available"  # free, or kept for a claim that has not come yet
    elif claim is None or uid_of(claim) != reference["uid"]:
        wanted = "Released"
    else:
        wanted = "Bound"
    if status_of(volume).get("phase") == wanted:
        return Plan()
    return plan([Patch(PERSISTENT_VOLUMES, volume, {"status": {"phase": wanted}}, "status")])


def claims_for(pod: Object, known: Iterable[str]) -> list[Action]:
    """Claims of volumes that are made for one pod and go with it."""
    if deleted(pod) or phase(pod) in ("Succeeded", "Failed"):
        return []
    return [
        Create(PERSISTENT_VOLUME_CLAIMS, claim)
        for volume in pod["spec"].get("volumes") or []
        if volume.get("ephemeral") and name_of(claim := _ephemeral(pod, volume)) not in set(known)
    ]


def _ephemeral(pod: Object, volume: Object) -> Object:
    template = volume["ephemeral"].get("volumeClaimTemplate") or {}
    return made_claim(
        template,
        f"{name_of(pod)}-{volume['name']}",
        namespace_of(pod),
        owners=owned_by(pod, "v1", "Pod"),
    )


def made_claim(
    template: Object,
    name: str,
    namespace: str,
    *,
    labels: Object | None = None,
    owners: list[Object] | None = None,
) -> Object:
    metadata = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {**(metadata.get("labels") or {}), **(labels or {})},
            "annotations": dict(metadata.get("annotations") or {}),
            "ownerReferences": owners or [],
        },
        "spec": template.get("spec") or {},
    }


def _let_go(resource: Resource, obj: Object, finalizer: str, unused: bool) -> list[Action]:
    held = obj["metadata"].get("finalizers") or []
    if not unused or finalizer not in held:
        return []
    kept = [each for each in held if each != finalizer]
    return [Patch(resource, obj, {"metadata": {"finalizers": kept or None}})]


def _say_lost(claim: Object) -> list[Action]:
    said = f'Bound claim has lost its PersistentVolume. Data on the volume is lost! Its volume "{claim["spec"]["volumeName"]}" is gone'
    return [
        Patch(PERSISTENT_VOLUME_CLAIMS, claim, {"status": {"phase": "Lost"}}, "status"),
        Tell(claim, "ClaimLost", said, warning=True),
    ]


# Which volume


def _chosen(claim: Object, storage: Storage) -> Object | None:
    """The volume that is kept for this claim; else the smallest that fits, unless a scheduler is to choose."""
    fitting = [volume for volume in storage.volumes if serves(volume, claim)]
    given = [volume for volume in fitting if given_to(volume, claim)]
    if given or _waits(storage):
        return next(iter(given), None)
    same = [v for v in fitting if storage_class(v) == storage_class(claim)]
    return min(same, key=lambda volume: (capacity(volume), name_of(volume)), default=None)


# Binding, and waiting


def _bind(claim: Object, volume: Object) -> Plan:
    """The volume is taken first: a claim that believes to have one that another took would be worse than one that waits."""
    taken = give(volume, claim)
    status = {
        "phase": "Bound",
        "accessModes": volume["spec"].get("accessModes") or [],
        "capacity": volume["spec"].get("capacity") or {},
    }
    named = claim["spec"].get("volumeName") == name_of(volume)
    body = {
        "metadata": {"annotations": {BOUND: "yes", BOUND_BY_CONTROLLER: "yes"}},
        "spec": {"volumeName": name_of(volume)},
    }
    return plan(
        [Patch(PERSISTENT_VOLUMES, volume, taken)] if taken else [],
        [Patch(PERSISTENT_VOLUMES, volume, {"status": {"phase": "Bound"}}, "status")],
        [] if named else [Patch(PERSISTENT_VOLUME_CLAIMS, claim, body)],
        [Patch(PERSISTENT_VOLUME_CLAIMS, claim, {"status": status}, "status")],
    )


def _waits(storage: Storage) -> bool:
    return (storage.storage_class or {}).get("volumeBindingMode") == WAITS_FOR_POD


def _wait(claim: Object, storage: Storage) -> list[Action]:
    """Say for what; ask the class's provisioner where it is its turn."""
    named = claim["spec"].get("storageClassName")
    if claim["spec"].get("volumeName"):
        return []
    if not named:
        return [Tell(claim, "FailedBinding", NO_VOLUME)]
    found = storage.storage_class
    if found is None:
        said = f'storageclass.storage.k8s.io "{named}" not found'
        return [Tell(claim, "ProvisioningFailed", said, warning=True)]
    annotations = claim["metadata"].get("annotations") or {}
    if _waits(storage) and not annotations.get(SELECTED_NODE):
        return [Tell(claim, "WaitForFirstConsumer", WAITING)]
    provisioner = str(found.get("provisioner"))
    if provisioner == NO_PROVISIONER:
        return [Tell(claim, "FailedBinding", NO_VOLUME)]
    if annotations.get(PROVISIONER) == provisioner:
        return []
    said = (
        f"Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system administrator."
        " If volume creation is delayed, please verify that the provisioner is running and correctly registered."
    )
    body = {"metadata": {"annotations": {PROVISIONER: provisioner}}}
    return [
        Patch(PERSISTENT_VOLUME_CLAIMS, claim, body),
        Tell(claim, "ExternalProvisioning", said),
    ]
