"""kueue.x-k8s.io ResourceFlavor."""

from __future__ import annotations

from makeway.kinds.fields import Json, annotations_of, name_of, spec_of
from makeway.kinds.labels import read_taints, read_tolerations
from makeway.model.queue import Flavor, FlavorName

CAPACITY = "makeway.dev/capacity"


def read(obj: Json) -> Flavor:
    spec = spec_of(obj)
    return Flavor(
        name=FlavorName(name_of(obj)),
        node_labels={key: str(value) for key, value in (spec.get("nodeLabels") or {}).items()},
        node_taints=read_taints(spec.get("nodeTaints")),
        tolerations=read_tolerations(spec.get("tolerations")),
        topology=spec.get("topologyName") or None,
        elastic=annotations_of(obj).get(CAPACITY) == "elastic",
    )
