"""Events as users know them: events.k8s.io/v1, in the name of the component that would have told them.

An event of the same words about the same object soon after is counted on the first one (a series), not told anew.
"""

from __future__ import annotations

import socket
from typing import Final

import msgspec

from makeway.control.clock import micro_timestamp
from makeway.kinds.metadata import Object
from makeway.kube.actions import ADMISSION, Tell

__all__ = [
    "ADMISSION",
    "JOB_CONTROLLER",
    "POD_CONTROLLER",
    "WORKLOAD_CONTROLLER",
    "Scribe",
    "series",
    "shortened",
]

WORKLOAD_CONTROLLER: Final = "kueue-workload-controller"
JOB_CONTROLLER: Final = "batch/job-kueue-controller"
POD_CONTROLLER: Final = "pod-kueue-controller"
MAX_NOTE: Final = 1024
SERIES_ENDS_AFTER_S: Final = 360.0
REMEMBERED: Final = 4096


class Told(msgspec.Struct):
    """An event that was written, so that its repetition can be counted."""

    namespace: str
    name: str
    count: int
    last_at: float


class Scribe:
    """Turns what is to be told into event objects, and repetitions into series."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, ...], Told] = {}
        self._host = socket.gethostname()
        self._number = 0

    def write(self, tell: Tell, now: float) -> tuple[Object | None, Told | None]:
        """A new event object, or the series that it continues, or neither when it was told already."""
        same = _sameness(tell)
        known = self._told.pop(same, None)
        if known is not None and now - known.last_at < SERIES_ENDS_AFTER_S:
            self._remember(same, known)
            if tell.once:
                return None, None
            known.count += 1
            known.last_at = now
            return None, known
        event = self._event(tell, now)
        told = Told(event["metadata"]["namespace"], event["metadata"]["name"], 1, now)
        self._remember(same, told)
        return event, told

    def _remember(self, same: tuple[str, ...], told: Told) -> None:
        self._told[same] = told
        if len(self._told) > REMEMBERED:
            del self._told[next(iter(self._told))]

    def _event(self, tell: Tell, now: float) -> Object:
        self._number += 1
        event: Object = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "namespace": tell.about.get("namespace") or "default",
                "name": f"{tell.about['name'][:200]}.{int(now * 1e6):x}{self._number & 0xFFF:03x}",
            },
            "eventTime": micro_timestamp(now),
            "reportingController": tell.component,
            "reportingInstance": f"{tell.component}-{self._host}"[:128],
            "action": tell.action or tell.reason,
            "reason": tell.reason,
            "type": tell.type,
            "regarding": tell.about,
            "note": shortened(tell.note),
        }
        if tell.related is not None:
            event["related"] = tell.related
        return event


def series(told: Told) -> Object:
    """The patch that counts a repetition."""
    last = micro_timestamp(told.last_at)
    return {"series": {"count": told.count, "lastObservedTime": last}}


def shortened(note: str) -> str:
    """Events carry 1024 bytes at most."""
    if len(note.encode()) <= MAX_NOTE:
        return note
    return note.encode()[: MAX_NOTE - 4].decode(errors="ignore") + " ..."


def _sameness(tell: Tell) -> tuple[str, ...]:
    # The same words about a later version of the object are news, except where a lasting state is told.
    version = "" if tell.once else str(tell.about.get("resourceVersion", ""))
    about = (str(tell.about.get("uid", "")), tell.about["name"], version)
    return (*about, tell.component, tell.reason, tell.note)
