"""v1 Namespace."""

from __future__ import annotations

from makeway.kinds.fields import Json, labels_of, name_of
from makeway.model.event import Namespace


def read(obj: Json) -> Namespace:
    # The API server sets this label on every namespace; selectors rely on it.
    labels = {"kubernetes.io/metadata.name": name_of(obj), **labels_of(obj)}
    return Namespace(name=name_of(obj), labels=labels)
