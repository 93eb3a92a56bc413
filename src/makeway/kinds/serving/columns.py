"""What `kubectl get` prints: columns of a kind, and how a cell is read from an object.

A column reads a path of the object (`path`), or asks a function for kinds whose cells are computed.
Ages are text made here, since kubectl prints what the server says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from makeway.control.clock import parse_timestamp
from makeway.kinds.serving.refusal import Obj

Cell = str | int | bool | None
CellOf = Callable[[Obj, float], Cell]


class Column(NamedTuple):
    name: str
    cell: CellOf
    type: str = "string"
    format: str = ""
    wide: bool = False
    description: str = ""


def human_duration(seconds: float) -> str:
    """A length of time as kubectl shows ages: coarser the longer it is."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 60 * 2:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 10:
        rest = whole % 60
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 60 * 3:
        return f"{minutes}m"
    hours = minutes // 60
    if hours < 8:
        rest = minutes % 60
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 24 * 8:
        rest = hours % 24
        return f"{hours // 24}d{rest}h" if rest else f"{hours // 24}d"
    if hours < 24 * 365 * 2:
        return f"{hours // 24}d"
    years = hours // (24 * 365)
    if hours < 24 * 365 * 8:
        rest = (hours // 24) % 365
        return f"{years}y{rest}d" if rest else f"{years}y"
    return f"{years}y"


def since(text: str | None, now: float) -> str:
    return human_duration(now - parse_timestamp(text)) if text else "<unknown>"


def at(obj: Any, *path: str | int) -> Any:
    """The value at a path, or None where the path ends early."""
    try:
        for step in path:
            obj = obj[step]
    except (KeyError, IndexError, TypeError):
        return None
    return obj


def path_column(name: str, path: str, type: str = "string", *, wide: bool = False) -> Column:  # noqa: A002
    steps = path.strip(".").split(".")
    return Column(name, lambda obj, _: _plain(at(obj, *steps)), type, wide=wide, description=path)


def condition_column(name: str, condition: str) -> Column:
    def status_of(obj: Obj, _: float) -> Cell:
        for item in at(obj, "status", "conditions") or []:
            if item.get("type") == condition:
                return _plain(item.get("status"))
        return None

    return Column(name, status_of, description=f"status of the condition {condition}")


def _plain(value: Any) -> Cell:
    if value is None or isinstance(value, str | int | bool):
        return value
    import msgspec

    return msgspec.json.encode(value).decode()


NAME = Column(
    "Name", lambda obj, _: obj["metadata"]["name"], format="name", description="Name of the object"
)
AGE = Column(
    "Age",
    lambda obj, now: since(at(obj, "metadata", "creationTimestamp"), now),
    description="Time since the object was created",
)
# For custom resources kubectl's server sends the creation time as a date and the age as text alike.
NAME_AND_AGE = (NAME, AGE)
