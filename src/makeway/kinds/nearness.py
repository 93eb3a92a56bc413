"""How near to each other the pods of a pod set must be: Kueue's annotations on the template, as a `topologyRequest`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from makeway.kinds.metadata import Json, Object, integer

KUEUE: Final = "kueue.x-k8s.io/"
REQUIRED: Final = KUEUE + "podset-required-topology"
PREFERRED: Final = KUEUE + "podset-preferred-topology"
UNCONSTRAINED: Final = KUEUE + "podset-unconstrained-topology"
GROUP: Final = KUEUE + "podset-group-name"
SLICE: Final = KUEUE + "podset-slice-required-topology"
SLICE_SIZE: Final = KUEUE + "podset-slice-size"

_TEXTS: Final = {
    REQUIRED: "required",
    PREFERRED: "preferred",
    GROUP: "podSetGroupName",
    SLICE: "podSetSliceRequiredTopology",
}


def topology_request(annotations: Mapping[str, str], numbered: Json) -> Object:
    """`numbered`: what the kind itself says about the numbers of its pods."""
    request: Object = dict(numbered)
    for annotation, field in _TEXTS.items():
        if annotations.get(annotation):
            request[field] = annotations[annotation]
    if annotations.get(UNCONSTRAINED) == "true":
        request["unconstrained"] = True
    size = integer(annotations.get(SLICE_SIZE, ""))
    if size is not None:
        request["podSetSliceSize"] = size
    return request
