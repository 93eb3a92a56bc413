"""What pods ask for, read once: a pod changes its status many times, and hardly ever what it needs.

Pods of one template share one shape, so that comparing them costs a look.
"""

from __future__ import annotations

from typing import Final

from makeway.kinds.metadata import Json, labels, spec, uid
from makeway.kinds.pod import pod_shape
from makeway.model.workload import PodShape

MOST_SHAPES: Final = 100_000

Asked = tuple[dict[str, object], dict[str, str]]


class Shapes:
    def __init__(self) -> None:
        self._read: dict[str, tuple[Asked, PodShape]] = {}  # by the pod's uid
        self._shared: dict[PodShape, PodShape] = {}

    def of(self, one: Json) -> PodShape:
        asked = ({k: v for k, v in spec(one).items() if k != "nodeName"}, labels(one))
        known = self._read.get(uid(one))
        if known is not None and known[0] == asked:
            return known[1]
        shape = self._share(pod_shape(one))
        if uid(one):
            self._read[uid(one)] = (asked, shape)
        return shape

    def forget(self, one: Json) -> None:
        self._read.pop(uid(one), None)

    def _share(self, shape: PodShape) -> PodShape:
        if len(self._shared) > MOST_SHAPES:
            self._shared.clear()  # costs a second reading
        return self._shared.setdefault(shape, shape)
