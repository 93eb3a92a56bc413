"""The functions of CEL, and those that Kubernetes adds: texts, lists, regular expressions, quantities, URLs, addresses, sets, optionals.

`METHODS` take what stands before the dot as their first argument. A wrong type raises TypeError, which becomes "no such overload"; a
wrong value raises ValueError with what is said about it.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, parse_qs, urlsplit
from zoneinfo import ZoneInfo

from makeway.kinds.serving import quantity as quantities
from makeway.kinds.serving.cel.parsing import UInt
from makeway.kinds.serving.cel.values import (
    LONGEST,
    NOTHING,
    CelError,
    Kind,
    Optional,
    compared,
    contains,
    equal,
    is_number,
    kind_of,
    moved,
    span,
    whole,
)

Function = Callable[..., Any]


def _text(value: Any) -> str:
    if not isinstance(value, str) or isinstance(value, Kind):
        raise TypeError
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


# Conversions


def _size(value: Any) -> int:
    if not isinstance(value, str | bytes | list | dict):
        raise TypeError
    return len(value)


def _to_int(value: Any) -> int:
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    if isinstance(value, str) and not re.fullmatch(r"[+-]?\d+", value):
        raise ValueError("type conversion error from 'string' to 'int'")
    if isinstance(value, float) and not math.isfinite(value):
        raise CelError("integer overflow")
    return whole(int(value), 0)


def _to_uint(value: Any) -> int:
    return whole(int(value) if isinstance(value, float) else _to_int(value), UInt(0))


def _to_double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    return float(value)


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, datetime):
        return re.sub(r"(\.\d+?)0+(?=[+-])", r"\1", value.isoformat()).replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return f"{_plain_text(Decimal(repr(value.total_seconds())))}s"
    if isinstance(value, float):
        return _double_text(value)
    if isinstance(value, int | str):
        return str(value)
    raise TypeError


def _double_text(value: float) -> str:
    """The shortest that is read as this number, with an exponent where it is far from one, as Go writes it."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    number = Decimal(repr(value))
    exponent = number.adjusted()
    if -4 <= exponent < 6:
        return _plain_text(number)
    return f"{_plain_text(number.scaleb(-exponent))}e{exponent:+03d}"


def _plain_text(number: Decimal) -> str:
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if _text(value) in ("1", "t", "true", "TRUE", "True"):
        return True
    if value in ("0", "f", "false", "FALSE", "False"):
        return False
    raise ValueError(f"type conversion error from 'string' to 'bool': {value}")


def timestamp(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return moved(_EPOCH, span(timedelta(seconds=value)))
    if not _TIME.fullmatch(_text(value)):
        raise ValueError(f"parsing time {value!r}: it is not as RFC 3339 has it")
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value))


_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    text = _text(value)
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    parts = re.findall(r"(\d+\.?\d*|\.\d+)(h|ms|us|µs|ns|m|s)", unsigned)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    read = unsigned == "".join(number + unit for number, unit in parts) or unsigned == "0"
    if not unsigned or not read or seconds > LONGEST.total_seconds():
        raise ValueError(f'time: invalid duration "{text}"')
    return timedelta(seconds=-seconds if text.startswith("-") else seconds)


# Times


def _zone(name: str) -> tzinfo:
    offset = re.fullmatch(r"([+-]?)(\d\d):(\d\d)", name)
    if not offset:
        return ZoneInfo(name)
    amount = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
    return timezone(-amount if offset[1] == "-" else amount)


def _time_part(of_time: Callable[[datetime], int], of_duration: float = 0.0) -> Function:
    """Of a time in a zone, or all of a duration in a unit."""

    def part(value: Any, zone: str = "UTC") -> int:
        if isinstance(value, timedelta) and of_duration:
            return int(value.total_seconds() / of_duration)
        if not isinstance(value, datetime):
            raise TypeError
        return of_time(value.astimezone(_zone(zone)))

    return part


# Texts


def _index_of(value: Any, wanted: Any, start: int = 0) -> int:
    if isinstance(value, list):
        found = [at for at, item in enumerate(value) if equal(item, wanted)]
        return found[0] if found else -1
    return _text(value).find(_text(wanted), _within(start, value))


def _last_index_of(value: Any, wanted: Any, end: int | None = None) -> int:
    if isinstance(value, list):
        found = [at for at, item in enumerate(value) if equal(item, wanted)]
        return found[-1] if found else -1
    last = None if end is None else _within(end, value) + len(wanted)
    return _text(value).rfind(_text(wanted), 0, last)


def _within(at: int, value: str) -> int:
    if not 0 <= at <= len(value):
        raise CelError(f"index out of range: {at}")
    return at


def _char_at(value: Any, at: Any) -> str:
    return _text(value)[_within(_int(at), value) : at + 1]


def _substring(value: Any, start: Any, end: Any = None) -> str:
    last = len(_text(value)) if end is None else _within(_int(end), value)
    if _within(_int(start), value) > last:
        raise CelError(f"invalid substring range. start: {start}, end: {last}")
    return str(value[start:last])


def _replace(value: Any, old: Any, new: Any, most: Any = -1) -> str:
    return _text(value).replace(_text(old), _text(new), _int(most))


def _split(value: Any, by: Any, most: Any = -1) -> list[str]:
    if _int(most) == 0:
        return []
    text, sign = _text(value), _text(by)
    if not sign:
        parts = list(text)
        return (
            parts
            if most < 0 or most >= len(parts)
            else [*parts[: most - 1], "".join(parts[most - 1 :])]
        )
    return text.split(sign, most - 1 if most > 0 else -1)


def _join(value: Any, by: Any = "") -> str:
    return _text(by).join(_text(item) for item in _items(value))


_ASCII_LOWER: Final = {c: c + 32 for c in range(ord("A"), ord("Z") + 1)}
_ASCII_UPPER: Final = {c + 32: c for c in _ASCII_LOWER}
_SPECIAL: Final = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\", '"': '\\"'}  # fmt: skip


def _quote(value: Any) -> str:
    return '"' + "".join(_SPECIAL.get(char, char) for char in _text(value)) + '"'


def _format(value: Any, arguments: Any) -> str:
    given = iter(_items(arguments))

    def write(match: re.Match[str]) -> str:
        precision, verb = match[1], match[2]
        if verb == "%":
            return "%"
        try:
            return _written(next(given), verb, precision)
        except StopIteration:
            raise CelError("index out of range") from None

    return re.sub(r"%(?:\.(\d+))?([sdfexXob%])", write, _text(value))


def _written(value: Any, verb: str, precision: str | None) -> str:
    if verb == "s":
        return _shown(value)
    if int(precision or 0) > _FINEST:
        raise CelError(f"a precision of {precision} is too much")
    if verb == "e":  # whatever precision it names
        return _scientific(f"{float(value):.6e}")
    if verb == "f":
        return f"{float(value):,.{precision or 6}f}"
    if verb in "xX" and isinstance(value, str | bytes):
        found = (value.encode() if isinstance(value, str) else value).hex()
        return found.upper() if verb == "X" else found
    if isinstance(value, bool) and verb == "b":
        return str(int(value))
    return format(_int(value), verb)


_FINEST: Final = 10_000  # digits behind the point
_RAISED: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "+")


def _scientific(text: str) -> str:
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}×10{exponent.translate(_RAISED)}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_shown_inside(item) for item in value) + "]"
    if isinstance(value, dict):
        pairs = sorted((_shown_inside(key), _shown_inside(item)) for key, item in value.items())
        return "{" + ", ".join(f"{key}:{item}" for key, item in pairs) + "}"
    return "null" if value is None else str(value) if isinstance(value, Kind) else _to_string(value)


def _shown_inside(value: Any) -> str:
    """In a list or a map it stands as it would be written in a rule."""
    match value:
        case Kind():
            return str(value)
        case str():
            return _quote(value)
        case bytes():
            return f"b{_quote(value.decode())}"
        case float():
            return f"{value:.6f}"
        case timedelta():
            return f'duration("{_shown(value)}")'
        case datetime():
            return f'timestamp("{_shown(value)}")'
    return _shown(value)


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"error parsing regexp: {error}: `{text}`") from None


def _find_all(value: Any, pattern: Any, most: Any = -1) -> list[str]:
    found = [match[0] for match in _pattern(_text(pattern)).finditer(_text(value))]
    return found if _int(most) < 0 else found[:most]


def _find(value: Any, pattern: Any) -> str:
    match = _pattern(_text(pattern)).search(_text(value))
    return match[0] if match else ""


# Lists


def _is_sorted(value: Any) -> bool:
    items = _items(value)
    return all(not _less(b, a) for a, b in pairwise(items))


def _less(one: Any, other: Any) -> bool:
    first, second = compared(one, other)
    return bool(first < second)


def _sum(value: Any) -> Any:
    items = _items(value)
    if not items:
        return 0
    if isinstance(items[0], timedelta):
        return sum(items, timedelta())
    if not all(is_number(item) for item in items):
        raise TypeError
    total = sum(items)
    return total if isinstance(total, float) else whole(total, items[0])


def _extreme(choose: Callable[[Any], Any]) -> Function:
    def found(value: Any) -> Any:
        items = _items(value)
        if not items:
            raise CelError("min/max called on empty list")
        _is_sorted(items)  # or they cannot be compared
        return choose(items)

    return found


def _distinct(value: Any) -> list[Any]:
    found: list[Any] = []
    for item in _items(value):
        if not contains(found, item):
            found.append(item)
    return found


def _flatten(value: Any, depth: Any = 1) -> list[Any]:
    found: list[Any] = []
    for item in _items(value):
        found += _flatten(item, depth - 1) if isinstance(item, list) and _int(depth) > 0 else [item]
    return found


def _slice(value: Any, start: Any, end: Any) -> list[Any]:
    items = _items(value)
    if not 0 <= _int(start) <= _int(end) <= len(items):
        raise CelError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]


# Quantities


class Quantity(NamedTuple):
    amount: Decimal


def _quantity(value: Any) -> Quantity:
    text = _text(value)
    if text and text.isalpha():
        text = f"0{text}"  # a suffix alone is none of them, to a real server
    try:
        return Quantity(quantities.parse(text))
    except quantities.NotAQuantityError as error:
        raise CelError(str(error)) from None


def _is(make: Function) -> Callable[[Any], bool]:
    def asks(value: Any) -> bool:
        try:
            make(_text(value))
        except (ValueError, CelError, OverflowError):
            return False
        return True

    return asks


def _amount(value: Any) -> Decimal:
    if isinstance(value, Quantity):
        return value.amount
    return Decimal(_int(value))


def _as_integer(value: Quantity) -> int:
    if value.amount != int(value.amount):
        raise CelError("cannot convert value to integer")
    return whole(int(value.amount), 0)


# Addresses


def _ip(value: Any) -> Any:
    if isinstance(value, ipaddress.IPv4Network | ipaddress.IPv6Network | _Cidr):
        return value.ip if isinstance(value, _Cidr) else value.network_address
    text = _text(value)
    if "%" in text:
        raise ValueError(f"IP Address {text!r} with zone value is not allowed")
    found = ipaddress.ip_address(text)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        raise ValueError(f"IPv4-mapped IPv6 address {text!r} is not allowed")
    return found


class _Cidr(NamedTuple):
    ip: Any
    network: Any


def _cidr(value: Any) -> _Cidr:
    if "/" not in _text(value):
        raise ValueError(f"network address parse error during conversion from string: {value!r}")
    found = ipaddress.ip_interface(value)
    return _Cidr(found.ip, found.network)


def _contains_ip(value: _Cidr, address: Any) -> bool:
    one = _ip(address) if isinstance(address, str) else address
    return bool(one.version == value.network.version and one in value.network)


def _contains_cidr(value: _Cidr, other: Any) -> bool:
    one = _cidr(other) if isinstance(other, str) else other
    same = one.network.version == value.network.version
    return bool(same and one.network.subnet_of(value.network))


# URLs


def _url(value: Any) -> SplitResult:
    text = _text(value)
    found = urlsplit(text)
    if not (found.scheme or text.startswith("/")) or " " in text:
        raise ValueError(f'URL parse error during conversion from string: parse "{text}"')
    return found


def _host(url: SplitResult) -> str:
    return url.netloc.rpartition("@")[2]


def _port(url: SplitResult) -> str:
    return str(url.port) if url.port is not None else ""


# Optionals


def _optional(value: Any) -> Optional:
    if not isinstance(value, Optional):
        raise TypeError
    return value


def _held(value: Any) -> Any:
    if not _optional(value).there:
        raise CelError("optional.none() dereference")
    return value.value


def _of_non_zero(value: Any) -> Optional:
    zero = (
        value in (None, False, 0, 0.0, "", b"", timedelta())
        if not isinstance(value, list | dict)
        else not value
    )
    return NOTHING if zero else Optional(value)


GLOBAL: Final[dict[str, Function]] = {
    "size": _size,
    "int": _to_int,
    "uint": _to_uint,
    "double": _to_double,
    "string": _to_string,
    "bool": _to_bool,
    "bytes": lambda value: value if isinstance(value, bytes) else _text(value).encode(),
    "dyn": lambda value: value,
    "type": kind_of,
    "timestamp": timestamp,
    "duration": duration,
    "matches": lambda value, pattern: _pattern(_text(pattern)).search(_text(value)) is not None,
    "quantity": _quantity,
    "isQuantity": _is(_quantity),
    "url": _url,
    "isURL": _is(_url),
    "ip": _ip,
    "isIP": _is(_ip),
    "ip.isCanonical": lambda value: str(_ip(value)) == value,
    "cidr": _cidr,
    "isCIDR": _is(_cidr),
    "sets.contains": lambda one, other: all(contains(_items(one), item) for item in _items(other)),
    "sets.equivalent": lambda one, other: (
        all(contains(_items(one), item) for item in _items(other))
        and all(contains(other, item) for item in one)
    ),
    "sets.intersects": lambda one, other: any(contains(_items(one), i) for i in _items(other)),
    "strings.quote": _quote,
    "math.greatest": lambda *values: max(*values) if len(values) > 1 else max(_items(values[0])),
    "math.least": lambda *values: min(*values) if len(values) > 1 else min(_items(values[0])),
    "optional.of": Optional,
    "optional.none": lambda: NOTHING,
    "optional.ofNonZeroValue": _of_non_zero,
}
METHODS: Final[dict[str, Function]] = {
    "size": _size,
    "contains": lambda value, part: _text(part) in _text(value),
    "startsWith": lambda value, part: _text(value).startswith(_text(part)),
    "endsWith": lambda value, part: _text(value).endswith(_text(part)),
    "matches": GLOBAL["matches"],
    "charAt": _char_at,
    "indexOf": _index_of,
    "lastIndexOf": _last_index_of,
    "lowerAscii": lambda value: _text(value).translate(_ASCII_LOWER),
    "upperAscii": lambda value: _text(value).translate(_ASCII_UPPER),
    "replace": _replace,
    "split": _split,
    "join": _join,
    "substring": _substring,
    "trim": lambda value: _text(value).strip(),
    "format": _format,
    "find": _find,
    "findAll": _find_all,
    "isSorted": _is_sorted,
    "sum": _sum,
    "min": _extreme(min),
    "max": _extreme(max),
    "distinct": _distinct,
    "flatten": _flatten,
    "slice": _slice,
    "sort": lambda value: sorted(_items(value)),
    "reverse": lambda value: value[::-1],
    "getFullYear": _time_part(lambda at: at.year),
    "getMonth": _time_part(lambda at: at.month - 1),
    "getDate": _time_part(lambda at: at.day),
    "getDayOfMonth": _time_part(lambda at: at.day - 1),
    "getDayOfWeek": _time_part(lambda at: at.isoweekday() % 7),
    "getDayOfYear": _time_part(lambda at: at.timetuple().tm_yday - 1),
    "getHours": _time_part(lambda at: at.hour, 3600.0),
    "getMinutes": _time_part(lambda at: at.minute, 60.0),
    "getSeconds": _time_part(lambda at: at.second, 1.0),
    "getMilliseconds": _time_part(lambda at: at.microsecond // 1000, 1e-3),
    "isGreaterThan": lambda one, other: one.amount > other.amount,
    "isLessThan": lambda one, other: one.amount < other.amount,
    "compareTo": lambda one, other: (one.amount > other.amount) - (one.amount < other.amount),
    "add": lambda one, other: Quantity(one.amount + _amount(other)),
    "sub": lambda one, other: Quantity(one.amount - _amount(other)),
    "sign": lambda one: (one.amount > 0) - (one.amount < 0),
    "isInteger": lambda one: one.amount == int(one.amount) and abs(one.amount) < quantities.LARGEST,
    "asInteger": _as_integer,
    "asApproximateFloat": lambda one: float(one.amount),
    "family": lambda address: address.version,
    "isUnspecified": lambda address: address.is_unspecified,
    "isLoopback": lambda address: address.is_loopback,
    "isLinkLocalMulticast": lambda a: (
        a in ipaddress.ip_network("224.0.0.0/24" if a.version == 4 else "ff02::/16")
    ),
    "isLinkLocalUnicast": lambda address: address.is_link_local,
    "isGlobalUnicast": lambda a: (
        not (a.is_unspecified or a.is_loopback or a.is_multicast or a.is_link_local)
    ),
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "ip": lambda value: value.ip,
    "masked": lambda value: _Cidr(value.network.network_address, value.network),
    "prefixLength": lambda value: value.network.prefixlen,
    "getScheme": lambda url: url.scheme,
    "getHost": _host,
    "getHostname": lambda url: url.hostname or "",
    "getPort": _port,
    "getEscapedPath": lambda url: url.path,
    "getQuery": lambda url: parse_qs(url.query, keep_blank_values=True),
    "hasValue": lambda value: _optional(value).there,
    "value": _held,
    "or": lambda one, other: one if _optional(one).there else _optional(other),
    "orValue": lambda one, other: one.value if _optional(one).there else other,
}
