"""kueue.x-k8s.io LocalQueue."""

from __future__ import annotations

from makeway.kinds.fields import (
    Json,
    is_terminating,
    name_of,
    namespace_of,
    one_of,
    spec_of,
    weight,
)
from makeway.model.queue import LocalQueue, QueueName


def read(obj: Json) -> LocalQueue:
    spec = spec_of(obj)
    stop = spec.get("stopPolicy") or "None"
    return LocalQueue(
        namespace=namespace_of(obj),
        name=name_of(obj),
        queue=QueueName(str(spec.get("clusterQueue") or "")),
        stop=one_of(obj, "spec.stopPolicy", stop, ("None", "Hold", "HoldAndDrain")),
        weight=weight(obj),
        terminating=is_terminating(obj),
    )
