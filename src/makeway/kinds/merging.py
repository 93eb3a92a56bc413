"""The smallest merge patch (RFC 7386) from one object to another: only what differs, lists whole, what is gone as null."""

from __future__ import annotations

from makeway.kinds.metadata import Json, Object


def merge_patch(old: Json, new: Json) -> Object:
    patch: Object = {key: None for key in old if key not in new and old[key] is not None}
    for key, value in new.items():
        before = old.get(key)
        if before == value:
            continue
        both = isinstance(before, dict) and isinstance(value, dict)
        patch[key] = merge_patch(before or {}, value) if both else value
    return patch
