"""kueue.x-k8s.io Topology."""

from __future__ import annotations

from makeway.errors import InvalidObject
from makeway.kinds.fields import Json, name_of, spec_of, title_of
from makeway.model.node import Topology

HOSTNAME = "kubernetes.io/hostname"


def read(obj: Json) -> Topology:
    levels = tuple(str(level.get("nodeLabel", "")) for level in spec_of(obj).get("levels") or ())
    if len(set(levels)) != len(levels):
        raise InvalidObject(
            "levels must be unique.",
            obj=title_of(obj),
            field="spec.levels",
            hint="List each node label once, from the widest to the narrowest.",
        )
    if HOSTNAME in levels[:-1]:
        raise InvalidObject(
            f"the {HOSTNAME} label can only be used at the lowest level of topology.",
            obj=title_of(obj),
            field=f"spec.levels[{levels.index(HOSTNAME)}]",
            hint="Move it to the end of the list.",
        )
    return Topology(name=name_of(obj), levels=levels)
