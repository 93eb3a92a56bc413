"""Quantities as text: parse, compare and write them in the one form that the API server answers
with.

`1000m` is `1`, `0.5` is `500m`, `2048Mi` is `2Gi`: the suffix family of the input is kept, the
largest suffix without a fraction is used.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Any

PATTERN = re.compile(
    r"^([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(m|u|n|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]+)?$"
)
REGEX_SHOWN = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
BAD_QUANTITY = f"quantities must match the regular expression '{REGEX_SHOWN}'"

# As on a real server, what is larger is cut off; what is far smaller than a billionth is not told apart.
LARGEST = Decimal(2**63 - 1)
_FURTHEST = Decimal(60)  # exponent that is still looked at

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


class NotAQuantityError(ValueError):
    pass


@lru_cache(maxsize=4096)
def parse(text: str) -> Decimal:
    match = PATTERN.match(text)
    if not match:
        raise NotAQuantityError(BAD_QUANTITY)
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _BINARY:
        value = number * (Decimal(1024) ** _BINARY[suffix])
    elif suffix in _DECIMAL:
        value = number.scaleb(_DECIMAL[suffix])
    else:
        value = number.scaleb(int(max(-_FURTHEST, min(Decimal(suffix[1:]), _FURTHEST))))
    return max(-LARGEST, min(value, LARGEST))


def canonical(value: Any) -> str:
    """The text that the API server would answer with."""
    return _canonical(value if isinstance(value, str) else _number_text(value))


def _number_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotAQuantityError(BAD_QUANTITY)
    return format(Decimal(str(value)), "f")


@lru_cache(maxsize=4096)
def _canonical(text: str) -> str:
    match = PATTERN.match(text)
    if not match:
        raise NotAQuantityError(BAD_QUANTITY)
    suffix = match[2] or ""
    # Finer than a billionth does not exist; it is rounded up, away from zero.
    value = _rounded_up(parse(text))
    if suffix in _BINARY:
        return _binary_text(value)
    if suffix[:1] in ("e", "E") and suffix not in _DECIMAL:
        return _exponent_text(value)
    return _decimal_text(value)


def _rounded_up(value: Decimal) -> Decimal:
    nano = Decimal(1).scaleb(-9)
    if value == value.quantize(nano):
        return value
    return (
        -((-value).quantize(nano, ROUND_CEILING))
        if value < 0
        else value.quantize(nano, ROUND_CEILING)
    )


def _decimal_text(value: Decimal) -> str:
    if value == 0:
        return "0"
    for suffix in ("E", "P", "T", "G", "M", "k", "", "m", "u", "n"):
        scaled = value.scaleb(-_DECIMAL[suffix])
        if scaled == scaled.to_integral_value():
            return f"{int(scaled)}{suffix}"
    return f"{int(value.scaleb(9))}n"


def _exponent_text(value: Decimal) -> str:
    if value == 0:
        return "0"
    for exponent in (18, 15, 12, 9, 6, 3, 0, -3, -6, -9):
        scaled = value.scaleb(-exponent)
        if scaled == scaled.to_integral_value():
            return f"{int(scaled)}e{exponent}" if exponent else str(int(scaled))
    return str(value)


def _binary_text(value: Decimal) -> str:
    # Below 1024 (or with a fraction) the binary family has no suffix of its own.
    if value != value.to_integral_value() or abs(value) < 1024:
        return _decimal_text(value) if value != value.to_integral_value() else str(int(value))
    whole = int(value)
    for suffix, power in sorted(_BINARY.items(), key=lambda item: -item[1]):
        unit = 1024**power
        if whole % unit == 0:
            return f"{whole // unit}{suffix}"
    return str(whole)


def canonical_map(values: dict[str, Any]) -> None:
    """Rewrite a map of resource amounts in place."""
    for name, value in values.items():
        if not isinstance(value, str) or value != _known(value):
            values[name] = canonical(value)


@lru_cache(maxsize=4096)
def _known(text: str) -> str:
    return _canonical(text)
