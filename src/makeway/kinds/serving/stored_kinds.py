"""Kinds that are kept as they are written, so that manifests apply unchanged and Go clients find what they list; nothing here acts on them.

A row says so to whoever creates one (`note`), where a user could expect that something happens.
"""

from __future__ import annotations

from typing import NamedTuple

from makeway.kinds.serving import printers
from makeway.kinds.serving.columns import NAME_AND_AGE, Column
from makeway.kinds.serving.kind import Kind, Rules, Scale, Version
from makeway.kinds.serving.storage import StorageClassRules

_RIGHTS = "there is one user here, who may do everything: roles and bindings are kept, not asked"
_NETWORK = "there is no network of pods here: this is kept, and nothing acts on it"


class _Row(NamedTuple):
    group: str
    kind: str
    plural: str
    definition: str = ""  # empty: any fields
    short_names: tuple[str, ...] = ()
    namespaced: bool = True
    columns: tuple[Column, ...] = NAME_AND_AGE
    status: bool = False
    generation: bool = False
    note: str = ""
    version: str = "v1"
    singular: str = ""
    categories: tuple[str, ...] = ()
    scale: Scale | None = None
    rules: Rules = Rules()


_CORE = "io.k8s.api.core.v1"
_RBAC = "io.k8s.api.rbac.v1"
_NET = "io.k8s.api.networking.v1"
_STORAGE = "io.k8s.api.storage.v1"
_LEASE = "io.k8s.api.coordination.v1.Lease"
_RUNTIME = "io.k8s.api.node.v1.RuntimeClass"
_SCALER = "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler"

# fmt: off
_ROWS = (
    _Row("", "Endpoints", "endpoints", f"{_CORE}.Endpoints", ("ep",), columns=printers.ENDPOINTS, singular="endpoints"),
    _Row("", "ReplicationController", "replicationcontrollers", f"{_CORE}.ReplicationController", ("rc",),
         status=True, generation=True, categories=("all",), scale=Scale(),
         note="ReplicationControllers are kept but not run here: write a Deployment"),
    _Row("", "ResourceQuota", "resourcequotas", f"{_CORE}.ResourceQuota", ("quota",),
         columns=printers.RESOURCE_QUOTA, status=True,
         note="quotas of this kind are kept but not enforced here: write a ClusterQueue"),
    _Row("apps", "ControllerRevision", "controllerrevisions", "io.k8s.api.apps.v1.ControllerRevision"),
    _Row("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", _SCALER, ("hpa",),
         status=True, version="v2", categories=("all",),
         note="autoscalers are kept, and nothing scales by them here"),
    _Row("coordination.k8s.io", "Lease", "leases", _LEASE, columns=printers.LEASE),
    _Row("networking.k8s.io", "Ingress", "ingresses", f"{_NET}.Ingress", ("ing",), status=True, generation=True, note=_NETWORK),
    _Row("networking.k8s.io", "IngressClass", "ingressclasses", f"{_NET}.IngressClass", namespaced=False, generation=True),
    _Row("networking.k8s.io", "NetworkPolicy", "networkpolicies", f"{_NET}.NetworkPolicy", ("netpol",), generation=True, note=_NETWORK),
    _Row("node.k8s.io", "RuntimeClass", "runtimeclasses", _RUNTIME, namespaced=False, columns=printers.RUNTIME_CLASS),
    _Row("rbac.authorization.k8s.io", "ClusterRole", "clusterroles", f"{_RBAC}.ClusterRole", namespaced=False, note=_RIGHTS),
    _Row("rbac.authorization.k8s.io", "ClusterRoleBinding", "clusterrolebindings", f"{_RBAC}.ClusterRoleBinding", namespaced=False, note=_RIGHTS),
    _Row("rbac.authorization.k8s.io", "Role", "roles", f"{_RBAC}.Role", note=_RIGHTS),
    _Row("rbac.authorization.k8s.io", "RoleBinding", "rolebindings", f"{_RBAC}.RoleBinding", note=_RIGHTS),
    # kube-scheduler does not start before it has listed these; nobody here hands out devices.
    _Row("resource.k8s.io", "DeviceClass", "deviceclasses", namespaced=False, generation=True),
    _Row("resource.k8s.io", "ResourceClaim", "resourceclaims", status=True, generation=True),
    _Row("resource.k8s.io", "ResourceClaimTemplate", "resourceclaimtemplates", generation=True),
    _Row("resource.k8s.io", "ResourceSlice", "resourceslices", namespaced=False, generation=True),
    _Row("storage.k8s.io", "CSIDriver", "csidrivers", f"{_STORAGE}.CSIDriver", namespaced=False),
    _Row("storage.k8s.io", "CSINode", "csinodes", f"{_STORAGE}.CSINode", namespaced=False, columns=printers.CSI_NODE),
    _Row("storage.k8s.io", "CSIStorageCapacity", "csistoragecapacities", f"{_STORAGE}.CSIStorageCapacity"),
    _Row("storage.k8s.io", "StorageClass", "storageclasses", f"{_STORAGE}.StorageClass", ("sc",), namespaced=False, columns=printers.STORAGE_CLASS, rules=StorageClassRules()),
    _Row("storage.k8s.io", "VolumeAttachment", "volumeattachments", f"{_STORAGE}.VolumeAttachment", namespaced=False, status=True),
)
# fmt: on


def kinds() -> tuple[Kind, ...]:
    return tuple(_kind(row) for row in _ROWS)


def _kind(row: _Row) -> Kind:
    return Kind(
        row.group,
        row.kind,
        row.plural,
        (Version(row.version, row.definition, row.columns),),
        namespaced=row.namespaced,
        short_names=row.short_names,
        categories=row.categories,
        singular=row.singular,
        status=row.status,
        scale=row.scale,
        generation=row.generation,
        note=row.note,
        rules=row.rules,
    )
