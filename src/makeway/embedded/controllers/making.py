"""Pods from templates: what all controllers that make pods by name have in common, and how many are a share of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from makeway.client.resource import Object
from makeway.embedded.objects import namespace_of, owned_by


def share_of(said: int | str, all_: int, *, up: bool = True) -> int:
    """A number of pods, or a percentage of all of them."""
    if not isinstance(said, str):
        return said
    parts = int(said.removesuffix("%")) * all_
    return -(-parts // 100) if up else parts // 100


def named_pod(
    owner: Object,
    name: str,
    template: Object,
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Object:
    """A pod of this name, with labels and variables of its own on top of its template's."""
    metadata = template.get("metadata") or {}
    spec = copy.deepcopy(template.get("spec") or {})
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        _tell(container, env or {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace_of(owner),
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": {**(metadata.get("annotations") or {}), **(annotations or {})},
            "finalizers": list(metadata.get("finalizers") or []),
            "ownerReferences": owned_by(owner, owner["apiVersion"], owner["kind"]),
        },
        "spec": spec,
    }


def _tell(container: Object, env: Mapping[str, str]) -> None:
    """Variables that the template sets itself stay as it says."""
    given = container.get("env") or []
    known = {variable["name"] for variable in given}
    added = [{"name": key, "value": value} for key, value in env.items() if key not in known]
    if added:
        container["env"] = [*added, *given]
