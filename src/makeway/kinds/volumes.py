"""Where a pod's volumes let it run: claims that do not exist, are not bound, or are bound to certain nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from makeway.kinds.labels import read_node_terms
from makeway.kinds.metadata import Json, metadata, name, namespace, spec, status
from makeway.model.selectors import NodeTerm
from makeway.model.workload import PodShape

Find = Callable[[str, str], Json | None]  # kind, key
WAITS_FOR_POD = "WaitForFirstConsumer"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
PROVISIONER = "volume.kubernetes.io/storage-provisioner"  # who is asked to make a claim's volume
UNBOUND = "pod has unbound immediate PersistentVolumeClaims"


def claim_names(pod: Json) -> Iterator[str]:
    """The claims a pod uses: named ones, and those made for it alone."""
    yield from claims_by_volume(pod).values()


def claims_by_volume(pod: Json) -> dict[str, str]:
    """Which claim each of a pod's volumes is, where it is one."""
    found: dict[str, str] = {}
    for volume in spec(pod).get("volumes") or []:
        if volume.get("persistentVolumeClaim"):
            found[str(volume.get("name"))] = str(
                volume["persistentVolumeClaim"].get("claimName") or ""
            )
        elif volume.get("ephemeral"):
            found[str(volume.get("name"))] = f"{name(pod)}-{volume.get('name')}"
    return found


def with_volumes(shape: PodShape, pod: Json, find: Find) -> PodShape:
    """The shape with what its claims add to it."""
    terms: list[tuple[NodeTerm, ...]] = []
    for claim_name in claim_names(pod):
        claim = find("PersistentVolumeClaim", f"{shape.namespace}/{claim_name}")
        if claim is None or metadata(claim).get("deletionTimestamp"):
            return msgspec.structs.replace(
                shape, blocked=f'persistentvolumeclaim "{claim_name}" not found'
            )
        if status(claim).get("phase") == "Bound":
            terms += _places(claim, find)
        elif not _binds_late(claim, find):
            return msgspec.structs.replace(shape, blocked=UNBOUND)
    return msgspec.structs.replace(shape, volume_terms=tuple(terms)) if terms else shape


def late_claims(pod: Json, find: Find) -> Iterator[Json]:
    """Claims that wait for a node to be chosen."""
    for claim_name in claim_names(pod):
        claim = find("PersistentVolumeClaim", f"{namespace(pod)}/{claim_name}")
        if claim is not None and status(claim).get("phase") != "Bound" and _binds_late(claim, find):
            yield claim


def _places(claim: Json, find: Find) -> list[tuple[NodeTerm, ...]]:
    """The nodes that its volume can be reached from."""
    volume = find("PersistentVolume", str(spec(claim).get("volumeName") or "")) or {}
    required = (spec(volume).get("nodeAffinity") or {}).get("required")
    found = read_node_terms(required)
    return [found] if found else []


def _binds_late(claim: Json, find: Find) -> bool:
    storage = find("StorageClass", str(spec(claim).get("storageClassName") or "")) or {}
    return storage.get("volumeBindingMode") == WAITS_FOR_POD
