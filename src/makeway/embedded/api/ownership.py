"""Who manages which fields: sets of field paths, as `metadata.managedFields` writes them
(FieldsV1).

A path is a tuple of steps in FieldsV1's own words: `f:name` for a field, `k:{"name":"x"}` for the
list item with that key, `v:"x"` for a value in a set. Plain sets of such tuples make the arithmetic
readable; the nested form is only made for the wire.

Nobody's fields are tracked until an object is applied server-side for the first time: what
`kubectl apply` had noted as its own is then booked under its name, everything else under
`before-first-apply`. Most objects are never applied that way and cost nothing.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from makeway.control.clock import timestamp
from makeway.kinds.serving.kind import Kind
from makeway.kinds.serving.refusal import Obj
from makeway.kinds.serving.schemas import Definitions, Schema, definitions

Path = tuple[str, ...]
Paths = set[Path]

BEFORE_FIRST_APPLY = "before-first-apply"
CLIENT_SIDE_APPLY = "kubectl-client-side-apply"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_IDENTITY = [
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "generation",
    "resourceVersion",
    "managedFields",
    "selfLink",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
]


# ---- FieldsV1 ------------------------------------------------------------------------------------


def from_fields(fields: Any) -> Paths:
    found: Paths = set()
    _collect_fields(fields if isinstance(fields, dict) else {}, (), found)
    return found


def _collect_fields(node: Obj, path: Path, found: Paths) -> None:
    if path and (not node or "." in node):
        found.add(path)
    for step, inner in node.items():
        if step != ".":
            _collect_fields(inner if isinstance(inner, dict) else {}, (*path, step), found)


def to_fields(paths: Paths) -> Obj:
    root: Obj = {}
    for path in sorted(paths):
        node = root
        for step in path[:-1]:
            # A parent that was a leaf so far is a member itself: that is what "." says.
            node = node.setdefault(step, {})
        node.setdefault(path[-1], {})
    for path in paths:
        node = root
        for step in path:
            node = node[step]
        if node:
            node["."] = {}
    return root


# ---- which fields an object sets -----------------------------------------------------------------


def paths_of(obj: Obj, schema: Schema, known: Definitions) -> Paths:
    """Every field of an object that somebody could own."""
    found: Paths = set()
    for key, value in obj.items():
        if key in ("apiVersion", "kind"):
            continue
        if key == "metadata":
            value = {name: inner for name, inner in value.items() if name not in _IDENTITY}
            if not value:
                continue
        _collect(value, known.property(schema, key), (f"f:{key}",), found, known)
    return found


def last_applied(live: Obj, schema: Schema, known: Definitions) -> Paths:
    """The fields that `kubectl apply` wrote down as its own, and that note itself."""
    note = (live["metadata"].get("annotations") or {}).get(_LAST_APPLIED)
    if not note:
        return set()
    found: Paths = {("f:metadata", "f:annotations", f"f:{_LAST_APPLIED}")}
    with contextlib.suppress(msgspec.MsgspecError):
        applied = msgspec.json.decode(note, type=dict[str, Any])
        if isinstance(applied.get("metadata"), dict):
            found |= paths_of(applied, schema, known)
    return found


def _collect(value: Any, schema: Schema, path: Path, found: Paths, known: Definitions) -> None:
    if isinstance(value, dict) and value and not _atomic_map(schema, known):
        for key, inner in value.items():
            _collect(inner, known.property(schema, key), (*path, f"f:{key}"), found, known)
    elif isinstance(value, list) and value and list_type(schema, known) == "map":
        keys = list_keys(schema, known)
        items = known.items(schema)
        for item in value:
            step = (*path, item_step(item, keys))
            found.add(step)
            if isinstance(item, dict):
                for key, inner in item.items():
                    _collect(inner, known.property(items, key), (*step, f"f:{key}"), found, known)
    elif isinstance(value, list) and value and list_type(schema, known) == "set":
        found.update((*path, value_step(item)) for item in value)
    else:
        found.add(path)


def _atomic_map(schema: Schema, known: Definitions) -> bool:
    if schema.get("x-kubernetes-map-type") == "atomic":
        return True
    return known.resolve(schema).get("x-kubernetes-map-type") == "atomic"


def list_type(schema: Schema, known: Definitions) -> str:
    return str(
        schema.get("x-kubernetes-list-type")
        or known.resolve(schema).get("x-kubernetes-list-type")
        or "atomic"
    )


def list_keys(schema: Schema, known: Definitions) -> list[str]:
    found: list[str] = (
        schema.get("x-kubernetes-list-map-keys")
        or known.resolve(schema).get("x-kubernetes-list-map-keys")
        or []
    )
    return found


_KEY_DEFAULTS = {"protocol": "TCP"}


def item_step(item: Any, keys: list[str]) -> str:
    values = {
        key: item.get(key, _KEY_DEFAULTS.get(key)) if isinstance(item, dict) else None
        for key in sorted(keys)
    }
    return "k:" + msgspec.json.encode(values).decode()


def value_step(value: Any) -> str:
    return "v:" + msgspec.json.encode(value).decode()


# ---- values at paths -----------------------------------------------------------------------------

MISSING: Any = object()


def value_at(obj: Any, path: Path) -> Any:
    for step in path:
        obj = _child(obj, step)
        if obj is MISSING:
            return MISSING
    return obj


def _child(obj: Any, step: str) -> Any:
    kind, name = step[:2], step[2:]
    if kind == "f:":
        return obj.get(name, MISSING) if isinstance(obj, dict) else MISSING
    if not isinstance(obj, list):
        return MISSING
    if kind == "k:":
        index = _index(obj, name)
        return obj[index] if index is not None else MISSING
    wanted = msgspec.json.decode(name)
    return wanted if wanted in obj else MISSING


def _index(items: list[Any], key_text: str) -> int | None:
    wanted: Obj = msgspec.json.decode(key_text)
    for index, item in enumerate(items):
        if isinstance(item, dict) and all(
            item.get(k, _KEY_DEFAULTS.get(k)) == v for k, v in wanted.items()
        ):
            return index
    return None


def remove_at(obj: Any, path: Path) -> None:
    parent = value_at(obj, path[:-1])
    kind, name = path[-1][:2], path[-1][2:]
    if parent is MISSING:
        return
    if kind == "f:" and isinstance(parent, dict):
        parent.pop(name, None)
    elif kind == "k:" and isinstance(parent, list):
        index = _index(parent, name)
        if index is not None:
            del parent[index]
    elif kind == "v:" and isinstance(parent, list):
        value = msgspec.json.decode(name)
        if value in parent:
            parent.remove(value)


def is_key(path: Path) -> bool:
    """Whether a path is a field by which its list knows the item."""
    if len(path) < 2 or not path[-2].startswith("k:"):
        return False
    return path[-1].removeprefix("f:") in msgspec.json.decode(path[-2][2:])


def remove_empty(obj: Any, path: Path) -> None:
    """Take away a list or map that holds nothing any more, and what holds nothing but that."""
    while len(path) > 1 and value_at(obj, path) in ({}, []):
        remove_at(obj, path)
        path = path[:-1]


def shown(path: Path) -> str:
    """A path as conflicts name it: `.spec.containers[name="a"].image`."""
    text = ""
    for step in path:
        kind, name = step[:2], step[2:]
        if kind == "f:":
            text += f".{name}"
        elif kind == "k:":
            keys: Obj = msgspec.json.decode(name)
            text += (
                "["
                + ",".join(
                    f"{key}={msgspec.json.encode(value).decode()}" for key, value in keys.items()
                )
                + "]"
            )
        else:
            text += f"[={name}]"
    return text


# ---- managers ------------------------------------------------------------------------------------


def manager_entry(
    name: str, operation: str, api_version: str, paths: Paths, now: float, subresource: str = ""
) -> Obj:
    entry: Obj = {
        "manager": name,
        "operation": operation,
        "apiVersion": api_version,
        "time": timestamp(now),
        "fieldsType": "FieldsV1",
        "fieldsV1": to_fields(paths),
    }
    if subresource:
        entry["subresource"] = subresource
    return entry


def is_entry(entry: Obj, name: str, operation: str, subresource: str) -> bool:
    return (
        entry.get("manager") == name
        and entry.get("operation") == operation
        and (entry.get("subresource") or "") == subresource
    )


def note_update(kind: Kind, old: Obj, new: Obj, manager: str, subresource: str, now: float) -> None:
    """Give changed fields to who changed them, on an object whose fields are tracked."""
    given = new["metadata"].get("managedFields")
    if given is not None and given != old["metadata"].get("managedFields"):
        # The writer rewrote the books itself, as kubectl does after its first server-side apply.
        return
    known = definitions()
    schema = known.get(kind.storage.schema)
    before, after = paths_of(old, schema, known), paths_of(new, schema, known)
    changed = {
        path
        for path in after
        if value_at(old, path) != value_at(new, path) and _is_leaf(path, after)
    }
    changed |= after - before
    removed = before - after
    if not changed and not removed:
        new["metadata"]["managedFields"] = old["metadata"]["managedFields"]
        return
    entries: list[Obj] = []
    mine: Paths = set(changed)
    for entry in old["metadata"]["managedFields"]:
        paths = from_fields(entry.get("fieldsV1"))
        if is_entry(entry, manager, "Update", subresource):
            mine |= paths - removed
            continue
        kept = paths - changed - removed
        if kept:
            entries.append(entry if kept == paths else entry | {"fieldsV1": to_fields(kept)})
    entries.append(
        manager_entry(
            manager, "Update", kind.api_version(kind.storage.name), mine, now, subresource
        )
    )
    new["metadata"]["managedFields"] = entries


def _is_leaf(path: Path, among: Paths) -> bool:
    """Items of keyed lists are in the set for their existence alone; their fields speak for
    themselves.
    """
    return not path[-1].startswith("k:")
