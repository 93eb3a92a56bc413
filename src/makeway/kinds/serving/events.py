"""Events: one store for both groups."""

from __future__ import annotations

from makeway.kinds.serving.kind import Rules
from makeway.kinds.serving.refusal import Obj


class EventRules(Rules):
    def default(self, obj: Obj) -> None:
        obj.setdefault("type", "Normal")
        # kubectl shows these as null when the writer used `eventTime`, as the recordings do.
        obj.setdefault("firstTimestamp", None)
        obj.setdefault("lastTimestamp", None)
        obj.setdefault("source", {})
        obj.setdefault("eventTime", None)
        obj.setdefault("reportingComponent", "")
        obj.setdefault("reportingInstance", "")
