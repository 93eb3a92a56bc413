"""Values of CEL in Python's own types, and what can be done with any of them.

int, float, str, bytes, bool, None, list and dict are what they look like; a time is a `datetime`, a duration a `timedelta`. `bool` is no
number here, although it is one in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from makeway.kinds.serving.cel.parsing import LARGEST, LARGEST_UINT, SMALLEST, UInt

LONGEST: Final = timedelta(microseconds=LARGEST // 1000)  # a duration counts nanoseconds


class CelError(Exception):
    """The expression has no value for these inputs."""


class Optional:
    """A value that may be missing."""

    __slots__ = ("there", "value")

    def __init__(self, value: Any = None, *, there: bool = True) -> None:
        self.value = value
        self.there = there


NOTHING: Final = Optional(there=False)


class AnyOrder(list[Any]):
    """A list that is a set, or a map by keys of its items: the order does not count."""


class Kind(str):
    """A type as a value, such as `int`."""

    __slots__ = ()


_KINDS: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (UInt, "uint"),
    (int, "int"),
    (float, "double"),
    (Kind, "type"),
    (str, "string"),
    (bytes, "bytes"),
    (list, "list"),
    (dict, "map"),
    (datetime, "google.protobuf.Timestamp"),
    (timedelta, "google.protobuf.Duration"),
    (Optional, "optional_type"),
    (type(None), "null_type"),
)


def kind_of(value: Any) -> Kind:
    for python, name in _KINDS:
        if isinstance(value, python):
            return Kind(name)
    return Kind(type(value).__name__)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def no_overload(name: str) -> CelError:
    return CelError(f"no such overload: {name}")


def equal(one: Any, other: Any) -> bool:
    if is_number(one) and is_number(other):
        return bool(one == other)
    if isinstance(one, list) and isinstance(other, list):
        return _equal_lists(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(v, other[k]) for k, v in one.items())
    if isinstance(one, Optional) and isinstance(other, Optional):
        return one.there == other.there and equal(one.value, other.value)
    if kind_of(one) != kind_of(other):
        return False
    return bool(one == other)


def _equal_lists(one: list[Any], other: list[Any]) -> bool:
    if len(one) != len(other):
        return False
    if isinstance(one, AnyOrder):
        return all(contains(other, item) for item in one)
    return all(equal(a, b) for a, b in zip(one, other, strict=True))


def contains(items: Any, wanted: Any) -> bool:
    return any(equal(item, wanted) for item in items)


def compared(one: Any, other: Any) -> tuple[Any, Any]:
    """Both, if one of them can be the smaller."""
    comparable = (is_number(one) and is_number(other)) or (
        kind_of(one) == kind_of(other)
        and isinstance(one, bool | str | bytes | datetime | timedelta)
    )
    if not comparable:
        raise no_overload("_<_")
    return one, other


def whole(number: int, like: Any) -> int:
    """Within its 64 bits."""
    if isinstance(like, UInt):
        if not 0 <= number <= LARGEST_UINT:
            raise CelError("unsigned integer overflow")
        return UInt(number)
    if not SMALLEST <= number <= LARGEST:
        raise CelError("integer overflow")
    return number


def span(found: timedelta) -> timedelta:
    if abs(found) > LONGEST:
        raise CelError("integer overflow")
    return found


def moved(time: datetime, by: timedelta) -> datetime:
    try:
        return time + by
    except OverflowError:
        raise CelError("timestamp overflow") from None


def select(holder: Any, field: str) -> Any:
    """A field; names that CEL cannot spell are escaped."""
    if isinstance(holder, Optional):
        return optional_select(holder, field)
    if not isinstance(holder, Mapping):
        raise no_overload(field)
    if field in holder:
        return holder[field]
    known = unescaped(field)
    if known not in holder:
        raise CelError(f"no such key: {known}")
    return holder[known]


def optional_select(holder: Any, field: Any) -> Optional:
    if isinstance(holder, Optional):
        if not holder.there:
            return NOTHING
        holder = holder.value
    try:
        value = index(holder, field) if not isinstance(field, str) else select(holder, field)
    except CelError:
        return NOTHING
    return value if isinstance(value, Optional) else Optional(value)


def index(holder: Any, at: Any) -> Any:
    if isinstance(holder, Optional):
        return optional_select(holder, at)
    if isinstance(holder, list):
        if isinstance(at, float) and at.is_integer():
            at = int(at)
        if not isinstance(at, int) or isinstance(at, bool):
            raise no_overload("_[_]")
        if not 0 <= at < len(holder):
            raise CelError(f"index out of bounds: {at}")
        return holder[at]
    if isinstance(holder, Mapping):
        if isinstance(at, list | dict) or at not in holder:
            raise CelError(f"no such key: {at}")
        return holder[at]
    raise no_overload("_[_]")


_ESCAPED: Final = {
    "__underscores__": "__",
    "__dot__": ".",
    "__dash__": "-",
    "__slash__": "/",
}


def unescaped(field: str) -> str:
    if "__" not in field:
        return field
    if field.startswith("__") and field.endswith("__") and field not in _ESCAPED:
        return field[2:-2]  # a word that means something in CEL
    for escaped, plain in _ESCAPED.items():
        field = field.replace(escaped, plain)
    return field
