"""Volumes, claims on them, and the classes they come from."""

from __future__ import annotations

from makeway.kinds.serving import quantity
from makeway.kinds.serving.columns import at
from makeway.kinds.serving.kind import Context, Rules
from makeway.kinds.serving.limitranges import check_claim
from makeway.kinds.serving.names import metadata_causes, subdomain_problems
from makeway.kinds.serving.refusal import Cause, Obj, forbidden_field, required

CLASSES = "storageclasses.storage.k8s.io"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# Kept until nobody uses them any more: whoever binds volumes takes these away.
CLAIM_IN_USE = "kubernetes.io/pvc-protection"
VOLUME_IN_USE = "kubernetes.io/pv-protection"

_NO_MODE = "at least 1 access mode is required"


class StorageClassRules(Rules):
    def default(self, obj: Obj) -> None:
        obj.setdefault("reclaimPolicy", "Delete")
        obj.setdefault("volumeBindingMode", "Immediate")

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, subdomain_problems)
        return causes if obj.get("provisioner") else [*causes, required("provisioner")]


class VolumeRules(Rules):
    def default(self, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
        spec.setdefault("volumeMode", "Filesystem")
        if isinstance(spec.get("capacity"), dict):
            quantity.canonical_map(spec["capacity"])

    def create(self, obj: Obj, context: Context) -> None:
        _protect(obj, VOLUME_IN_USE)

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, subdomain_problems)
        if not at(obj, "spec", "accessModes"):
            causes.append(required("spec.accessModes"))
        if not at(obj, "spec", "capacity"):
            causes.append(required("spec.capacity"))
        return causes

    def initial_status(self, obj: Obj) -> Obj | None:
        return {"phase": "Available"}


class ClaimRules(Rules):
    def default(self, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("volumeMode", "Filesystem")
        requests = (spec.get("resources") or {}).get("requests")
        if isinstance(requests, dict):
            quantity.canonical_map(requests)

    def create(self, obj: Obj, context: Context) -> None:
        _protect(obj, CLAIM_IN_USE)
        check_claim(obj, context.lookup.list("limitranges", obj["metadata"].get("namespace", "")))
        if obj["spec"].get("storageClassName") is None:
            chosen = _default_class(context)
            if chosen:
                obj["spec"]["storageClassName"] = chosen

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, subdomain_problems)
        if not at(obj, "spec", "accessModes"):
            causes.append(required("spec.accessModes", _NO_MODE))
        if not at(obj, "spec", "resources", "requests", "storage"):
            causes.append(required("spec.resources[storage]"))
        return causes

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        volume = old["spec"].get("volumeName")
        moved = volume and volume != new["spec"].get("volumeName")
        if _fixed(new["spec"]) == _fixed(old["spec"]) and not moved:
            return []
        why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
        return [forbidden_field("spec", why)]

    def initial_status(self, obj: Obj) -> Obj | None:
        return {"phase": "Pending"}


def _fixed(spec: Obj) -> Obj:
    return {key: value for key, value in spec.items() if key not in ("resources", "volumeName")}


def _default_class(context: Context) -> str:
    """The youngest, where several say that they are it."""
    marked = [
        each
        for each in context.lookup.list(CLASSES)
        if (each["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    ]
    marked.sort(
        key=lambda each: (each["metadata"].get("creationTimestamp"), each["metadata"]["name"])
    )
    return str(marked[-1]["metadata"]["name"]) if marked else ""


def _protect(obj: Obj, finalizer: str) -> None:
    held = obj["metadata"].setdefault("finalizers", [])
    if finalizer not in held:
        held.append(finalizer)
