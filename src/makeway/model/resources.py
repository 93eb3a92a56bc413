"""Amounts as whole numbers, and the only resource arithmetic.

CPU is counted in millicores, everything else in base units (bytes, devices, pods); fractions round up.
Sums saturate at the limits of int64, so an absurd request stays absurd instead of wrapping around.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from makeway.errors import UserError

MAX_AMOUNT: Final = 2**63 - 1
MIN_AMOUNT: Final = -(2**63)
CPU: Final = "cpu"
PODS: Final = "pods"

Amounts = Mapping[str, int]  # resource name -> whole units
FrozenAmounts = tuple[tuple[str, int], ...]  # the same, sorted by name and hashable

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL_EXPONENT = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_QUANTITY = re.compile(
    r"^([+-]?)(\d+\.?\d*|\.\d+)(?:(Ki|Mi|Gi|Ti|Pi|Ei)|([eE][+-]?\d+)|([numkMGTPE]))?$"
)
# Go's resource.Quantity refuses with this sentence; users search for it.
_QUANTITY_RULE = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


def clamp(value: int) -> int:
    return max(MIN_AMOUNT, min(MAX_AMOUNT, value))


def add(left: int, right: int) -> int:
    """Saturating sum."""
    return clamp(left + right)


def multiply(amount: int, times: int) -> int:
    """Saturating product."""
    return clamp(amount * times)


def _scanned(text: str) -> tuple[str, int, int]:
    """Sign, whole number and the exponent of ten that it is to be taken by."""
    match = _QUANTITY.match(text)
    if match is None:
        raise UserError(
            _QUANTITY_RULE + f', got "{text}".', hint='Write for example "8" or "64Gi".'
        )
    sign, digits, binary, scientific, decimal = match.groups()
    whole, _, fraction = digits.partition(".")
    number = int((whole + fraction) or "0")
    exponent = -len(fraction)
    if binary:
        number *= _BINARY[binary]
    elif scientific:
        exponent += int(scientific[1:])
    else:
        exponent += _DECIMAL_EXPONENT[decimal or ""]
    return sign, number, exponent


@lru_cache(maxsize=65_536)
def parse_quantity(text: str, scale_exponent: int = 0) -> int:
    """`text` in units of 10**-scale_exponent, rounded away from zero: parse_quantity("1.5", 3) == 1500."""
    sign, number, exponent = _scanned(text)
    exponent += scale_exponent
    if exponent > 40:  # far beyond int64 already; avoid building astronomically large numbers
        value = 0 if number == 0 else MAX_AMOUNT
    elif exponent >= 0:
        value = number * 10**exponent
    else:
        value = -(-number // 10**-exponent)
    return clamp(-value if sign == "-" else value)


def amount_of(resource: str, quantity: str | float) -> int:
    """A quantity as the API writes it (text or number), in this resource's unit."""
    text = quantity if isinstance(quantity, str) else repr(quantity)
    return parse_quantity(text.strip() if text else "0", 3 if resource == CPU else 0)


def number_of(quantity: str | float) -> float:
    """In cores, bytes or devices, with its fraction: `1500m` is 1.5. For averages, which are no amounts."""
    sign, number, exponent = _scanned(str(quantity).strip() or "0")
    exponent = max(-40, min(40, exponent))  # far beyond what anybody means; see parse_quantity
    value = float(number * 10**exponent if exponent >= 0 else number / 10**-exponent)
    return -value if sign == "-" else value


def format_number(number: float) -> str:
    """The inverse, to the billionth where that is not absurdly long: `31999m`, `343u`, `4`."""
    if number >= MAX_AMOUNT / 10**9:
        return _decimal(min(round(number), MAX_AMOUNT))
    billionths = round(number * 10**9)
    for suffix in ("n", "u", "m"):
        if billionths % 1000:
            return f"{billionths}{suffix}"
        billionths //= 1000
    return _decimal(billionths)


def in_units(resource: str, amount: int) -> float:
    """Cores and not thousandths of them; all else is counted in its unit already."""
    return amount / 1000 if resource == CPU else float(amount)


def amounts_of(quantities: Mapping[str, str | float] | None) -> dict[str, int]:
    return {name: amount_of(name, quantity) for name, quantity in (quantities or {}).items()}


def format_amount(resource: str, amount: int) -> str:
    """As Kubernetes prints it: `1500m`, `2`, `64Gi`, `1G`."""
    if resource == CPU:
        return f"{amount}m" if amount % 1000 else _decimal(amount // 1000)
    if resource == "memory" or resource.startswith("hugepages-") or "storage" in resource:
        return _binary(amount)
    return _decimal(amount)


def _decimal(amount: int) -> str:
    for suffix, exponent in (("E", 18), ("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3)):
        if amount and amount % 10**exponent == 0:
            return f"{amount // 10**exponent}{suffix}"
    return str(amount)


def _binary(amount: int) -> str:
    for suffix, factor in reversed(_BINARY.items()):
        if amount and amount % factor == 0:
            return f"{amount // factor}{suffix}"
    return str(amount)


def total(parts: Iterable[Amounts]) -> dict[str, int]:
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = add(result.get(name, 0), amount)
    return result


def scaled(amounts: Amounts, times: int) -> dict[str, int]:
    return {name: multiply(amount, times) for name, amount in amounts.items()}


def largest(parts: Iterable[Amounts]) -> dict[str, int]:
    """The maximum of each resource by itself."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = max(result.get(name, amount), amount)
    return result


def frozen(amounts: Amounts) -> FrozenAmounts:
    return tuple(sorted(amounts.items()))


def is_accelerator(resource: str) -> bool:
    """Extended resources are devices; native and hugepages ones are not."""
    return "/" in resource and not resource.split("/", 1)[0].endswith("kubernetes.io")
