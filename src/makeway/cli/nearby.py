"""Did you mean …? The nearest of the names that exist, for whoever mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(said: str, names: Iterable[str]) -> str | None:
    """One typing error, a forgotten ending or a part of the name is near; anything else is not."""
    known = sorted(set(names))
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(said.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return lowered[close[0]]
    parts = [name for name in known if len(said) > 2 and said.lower() in name.lower()]
    return parts[0] if len(parts) == 1 else None


def did_you_mean(said: str, names: Iterable[str]) -> str:
    found = nearest(said, names)
    return f'Did you mean "{found}"?' if found else ""
