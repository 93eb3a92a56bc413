"""Objects from the watch, without what nobody reads.

The API server says with every object which program wrote which of its fields (`managedFields`), which is often half of
it. Of the kinds that come by the thousand it is left out when they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypedDict, cast

import msgspec

from makeway.kinds.frameworks import JOB_KINDS
from makeway.kinds.gated import GATED_KINDS
from makeway.kinds.metadata import Object


class Metadata(TypedDict, total=False):
    name: str
    generateName: str
    namespace: str
    uid: str
    resourceVersion: str
    generation: int
    creationTimestamp: str | None
    deletionTimestamp: str | None
    deletionGracePeriodSeconds: int | None
    labels: dict[str, str] | None
    annotations: dict[str, str] | None
    ownerReferences: list[dict[str, Any]] | None
    finalizers: list[str] | None


class Lean(TypedDict, total=False):
    """Any object that has a spec and a status, and nothing beside them."""

    apiVersion: str
    kind: str
    metadata: Metadata
    spec: dict[str, Any] | None
    status: dict[str, Any] | None


MANY: Final = frozenset({"Node", "Pod", "Preemption", "Workload", *JOB_KINDS, *GATED_KINDS})
_decode: Final = msgspec.json.Decoder(Lean).decode


def decoder_of(kind: str) -> Callable[[bytes], Object] | None:
    """None: read it whole."""
    return cast("Callable[[bytes], Object]", _decode) if kind in MANY else None
