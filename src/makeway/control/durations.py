"""Lengths of time as people write them: `90s`, `1h30m`, `2d`."""

from __future__ import annotations

import re

_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}
_NUMBER = r"(?:\d+\.?\d*|\.\d+)"
_PART = re.compile(rf"({_NUMBER})(ns|us|µs|ms|s|m|h|d)")
_WHOLE = re.compile(rf"^(?:{_NUMBER}(?:ns|us|µs|ms|s|m|h|d))+$")


def duration(text: str | None) -> float | None:
    """In seconds; a plain number is seconds too. None for what is neither."""
    if not text:
        return None
    text = text.strip()
    if _WHOLE.match(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
