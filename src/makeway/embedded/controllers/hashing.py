"""Short names for pod templates: the same content gives the same name."""

from __future__ import annotations

from typing import Any

import msgspec

# No vowels and nothing that looks like something else: a hash never spells a word.
SAFE = "bcdfghjklmnpqrstvwxz2456789"


def short_hash(content: Any) -> str:
    """FNV-1a (32 bit) of the canonical JSON, in safe characters."""
    value = 0x811C9DC5
    for byte in msgspec.json.encode(content, order="deterministic"):
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return "".join(SAFE[int(digit) % len(SAFE)] for digit in str(value))
