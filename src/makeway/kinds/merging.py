"""Merge patches (RFC 7386): the smallest from one object to another, and what an object is after one."""

from __future__ import annotations

from makeway.kinds.metadata import Json, Object


def merge_patch(old: Json, new: Json) -> Object:
    """Only what differs, lists whole, what is gone as null."""
    patch: Object = {key: None for key in old if key not in new and old[key] is not None}
    for key, value in new.items():
        before = old.get(key)
        if before == value:
            continue
        both = isinstance(before, dict) and isinstance(value, dict)
        patch[key] = merge_patch(before or {}, value) if both else value
    return patch


def merged(obj: Json, patch: Json) -> Object:
    found = {key: value for key, value in obj.items() if patch.get(key, value) is not None}
    for key, value in patch.items():
        if isinstance(value, dict):
            before = found.get(key)
            found[key] = merged(before if isinstance(before, dict) else {}, value)
        elif value is not None:
            found[key] = value
    return found
