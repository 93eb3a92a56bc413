"""Conditions: the lines `type, status, reason, message` that tell an object's story in its status."""

from __future__ import annotations

from typing import Any

from makeway.control.clock import timestamp
from makeway.kinds.metadata import Json, Object, metadata, seconds, status

MAX_MESSAGE = 32_768  # what the schema of a Workload condition allows


def conditions(obj: Json) -> list[Object]:
    return status(obj).get("conditions") or []


def find(obj: Json, kind: str) -> Object | None:
    # Asked more often than anything else: a plain loop costs half of a generator.
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind:
            found: Object = condition
            return found
    return None


def is_true(obj: Json, kind: str) -> bool:
    return (find(obj, kind) or {}).get("status") == "True"


def is_false(obj: Json, kind: str) -> bool:
    return (find(obj, kind) or {}).get("status") == "False"


def since(obj: Json, kind: str) -> float | None:
    """When this condition last changed its status."""
    return seconds((find(obj, kind) or {}).get("lastTransitionTime"))


def reason(obj: Json, kind: str) -> str:
    return str((find(obj, kind) or {}).get("reason") or "")


def outcome(obj: Json, *ends: tuple[str, str]) -> tuple[str, str] | None:
    """The reason and the message of the first of these conditions that is true; `ends` are types with a reason for each."""
    for kind, why in ends:
        if is_true(obj, kind):
            return why, message(obj, kind)
    return None


def message(obj: Json, kind: str) -> str:
    return str((find(obj, kind) or {}).get("message") or "")


class Conditions:
    """A working copy of an object's conditions, to be changed step by step and written once."""

    def __init__(self, obj: Json, now: float) -> None:
        self._before = conditions(obj)
        self._now = timestamp(now)
        self._generation = metadata(obj).get("generation")
        self.items: list[Object] = [dict(c) for c in self._before]

    def get(self, kind: str) -> Object | None:
        return next((c for c in self.items if c["type"] == kind), None)

    def is_true(self, kind: str) -> bool:
        return (self.get(kind) or {}).get("status") == "True"

    def set(self, kind: str, value: bool, reason: str, message: str) -> bool:
        """True when something changed. The transition time moves only with the status, as in the API's own rules."""
        wanted = "True" if value else "False"
        message = message[:MAX_MESSAGE]
        known = self.get(kind)
        if known is None:
            known = {"type": kind, "status": "", "lastTransitionTime": self._now}
            self.items.append(known)
        if (known["status"], known.get("reason"), known.get("message")) == (
            wanted,
            reason,
            message,
        ):
            return False
        if known["status"] != wanted:
            known["lastTransitionTime"] = self._now
        known |= {"status": wanted, "reason": reason, "message": message}
        if self._generation is not None:
            known["observedGeneration"] = self._generation
        return True

    def remove(self, kind: str) -> None:
        self.items = [c for c in self.items if c["type"] != kind]

    @property
    def changed(self) -> bool:
        return self.items != self._before

    def patch(self) -> dict[str, Any]:
        """`{"conditions": [...]}` when something changed, else nothing."""
        return {"conditions": self.items} if self.changed else {}
