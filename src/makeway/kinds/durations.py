"""Durations as people write them: `90s`, `10m`, `1h30m`, `2d`."""

from __future__ import annotations

import re

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def read_duration(text: str) -> float:
    """Seconds. ValueError when it is not a duration."""
    text = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not re.fullmatch(f"(?:{_PART.pattern})+", text):
        raise ValueError(text)
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
