"""kueue.x-k8s.io LocalQueue."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from makeway.control.clock import timestamp as written
from makeway.errors import InvalidObject, UserError
from makeway.kinds.fields import (
    Json,
    is_terminating,
    name_of,
    namespace_of,
    one_of,
    spec_of,
    status_of,
    timestamp,
    title_of,
    weight,
)
from makeway.model.queue import LocalQueue, QueueName
from makeway.model.resources import MAX_AMOUNT, format_number, number_of

USAGE = "status.fairSharing.admissionFairSharingStatus"


def read(obj: Json) -> LocalQueue:
    spec = spec_of(obj)
    stop = spec.get("stopPolicy") or "None"
    sample = (status_of(obj).get("fairSharing") or {}).get("admissionFairSharingStatus") or {}
    return LocalQueue(
        namespace=namespace_of(obj),
        name=name_of(obj),
        queue=QueueName(str(spec.get("clusterQueue") or "")),
        stop=one_of(obj, "spec.stopPolicy", stop, ("None", "Hold", "HoldAndDrain")),
        weight=weight(obj),
        terminating=is_terminating(obj),
        consumed=tuple(
            (str(name), _consumed(obj, str(name), quantity))
            for name, quantity in sorted((sample.get("consumedResources") or {}).items())
        ),
        sampled_at=timestamp(sample.get("lastUpdate")),
    )


def _consumed(obj: Json, resource: str, quantity: Any) -> float:
    try:
        return max(0.0, number_of(quantity))
    except UserError as error:
        field = f"{USAGE}.consumedResources[{resource}]"
        raise InvalidObject(error.what, obj=title_of(obj), field=field, hint=error.hint) from error


def usage_status(
    consumed: Iterable[tuple[str, float]], *, sampled_at: float, weighted: float
) -> dict[str, Any]:
    """`status.fairSharing`, in both versions."""
    return {
        # As Kueue rounds shares: up, and endless ones to the largest number.
        "weightedShare": math.ceil(weighted) if weighted < MAX_AMOUNT else MAX_AMOUNT,
        "admissionFairSharingStatus": {
            "consumedResources": {name: format_number(amount) for name, amount in consumed},
            "lastUpdate": written(sampled_at),
        },
    }
