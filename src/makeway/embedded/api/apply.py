"""Server-side apply: merge what somebody declares, drop what they no longer declare, refuse to
overrule others.
"""

from __future__ import annotations

import copy
from typing import Any

from makeway.embedded.api import ownership
from makeway.embedded.api.bodies import check_fields, to_storage, without_nulls
from makeway.embedded.api.http import Request
from makeway.embedded.api.objects import Objects
from makeway.embedded.api.ownership import MISSING, Paths
from makeway.embedded.api.target import Target
from makeway.embedded.store import Entry
from makeway.kinds.serving.kind import Context, Kind
from makeway.kinds.serving.refusal import Obj, Refusal, bad_request, conflict
from makeway.kinds.serving.schemas import Definitions, Schema, definitions


def server_side_apply(
    objects: Objects, request: Request, target: Target, applied: Any, context: Context
) -> tuple[Entry, bool]:
    """The resulting state, and whether the object is new."""
    manager = request.query.get("fieldManager", "")
    if not manager:
        raise Refusal(
            422,
            "Invalid",
            'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required'
            " for apply patch",
        )
    applied = _read(request, target, applied)
    kind = target.kind
    entry = objects.store.get(kind.store_key, target.namespace, target.name)
    if entry is None:
        if target.subresource:
            objects.existing(kind, target.namespace, target.name)
        return _create(objects, request, target, applied, manager, context), True
    merged = _merged(entry, applied, target, manager, force=request.flag("force"), now=context.now)
    changed = objects.replace(
        kind, entry, merged, context, subresource=target.subresource, dry_run=request.dry_run
    )
    return changed, False


def _read(request: Request, target: Target, applied: Any) -> Obj:
    kind, version = target.kind, target.version
    if not isinstance(applied, dict):
        raise bad_request("error decoding YAML: expected an object")
    if not applied.get("apiVersion") or not applied.get("kind"):
        raise bad_request(
            "invalid object type: apiVersion and kind must be set in the applied object"
        )
    if applied["apiVersion"] != kind.api_version(version.name) or applied["kind"] != kind.kind:
        raise bad_request(f"invalid object type: {applied['apiVersion']}, Kind={applied['kind']}")
    metadata = applied.get("metadata")
    if isinstance(metadata, dict) and metadata.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    check_fields(request, applied, kind, version)
    obj: Obj = to_storage(without_nulls(applied), version)
    name = obj["metadata"].setdefault("name", target.name)
    if name != target.name:
        raise bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        )
    if kind.status and target.subresource != "status":
        obj.pop("status", None)
    if target.subresource == "status":
        obj = {"metadata": {"name": name}, **({"status": obj["status"]} if "status" in obj else {})}
    return obj


def _create(
    objects: Objects, request: Request, target: Target, applied: Obj, manager: str, context: Context
) -> Entry:
    kind = target.kind
    if applied["metadata"].get("uid"):
        why = "uid mismatch: the provided object specified uid and no existing object was found"
        raise conflict(kind.plural, kind.group, target.name, why)
    known = definitions()
    paths = ownership.paths_of(applied, known.get(kind.storage.schema), known)
    managed = [
        ownership.manager_entry(
            manager, "Apply", kind.api_version(kind.storage.name), paths, context.now
        )
    ]
    return objects.create(
        kind, target.namespace, applied, context, dry_run=request.dry_run, managed=managed
    )


def _merged(
    entry: Entry, applied: Obj, target: Target, manager: str, *, force: bool, now: float
) -> Obj:
    kind = target.kind
    known = definitions()
    schema = known.get(kind.storage.schema)
    live = entry.decode()
    entries = live["metadata"].get("managedFields") or _first_entry(kind, live, schema, known, now)
    declared = ownership.paths_of(applied, schema, known)
    before: Paths = set()
    others: list[tuple[Obj, Paths]] = []
    for known_entry in entries:
        paths = ownership.from_fields(known_entry.get("fieldsV1"))
        if ownership.is_entry(known_entry, manager, "Apply", target.subresource):
            before = paths
        else:
            others.append((known_entry, paths))
    overruled = _overruled(live, applied, declared, others)
    if any(overruled) and not force:
        raise _conflicts(others, overruled)
    result: Obj = merge_values(live, applied, schema, known)
    _drop_undeclared(result, before - declared, [paths for _, paths in others])
    if applied["metadata"].get("resourceVersion"):
        result["metadata"]["resourceVersion"] = applied["metadata"]["resourceVersion"]
    result["metadata"]["managedFields"] = [
        *_kept_entries(others, overruled),
        ownership.manager_entry(
            manager, "Apply", kind.api_version(kind.storage.name), declared, now, target.subresource
        ),
    ]
    return result


def _first_entry(
    kind: Kind, live: Obj, schema: Schema, known: Definitions, now: float
) -> list[Obj]:
    """Who owned what before: what `kubectl apply` wrote down is its own, the rest is nobody's in particular.

    kubectl hands the fields of the first over to whoever applies server-side, and only those.
    """
    content = {key: value for key, value in live.items() if key != "status"}
    paths = ownership.paths_of(content, schema, known)
    applied = ownership.last_applied(live, schema, known) & paths
    version = kind.api_version(kind.storage.name)
    return [
        ownership.manager_entry(manager, "Update", version, owned, now)
        for manager, owned in (
            (ownership.CLIENT_SIDE_APPLY, applied),
            (ownership.BEFORE_FIRST_APPLY, paths - applied),
        )
        if owned
    ]


def _overruled(
    live: Obj, applied: Obj, declared: Paths, others: list[tuple[Obj, Paths]]
) -> list[Paths]:
    """For each other manager, its fields that this apply would change."""
    return [
        {
            path
            for path in paths & declared
            # A list item's own entry only says that it exists; its fields are compared one by one.
            if not path[-1].startswith("k:") and _differs(live, applied, path)
        }
        for _, paths in others
    ]


def _differs(live: Obj, applied: Obj, path: ownership.Path) -> bool:
    mine, theirs = ownership.value_at(applied, path), ownership.value_at(live, path)
    return theirs is not MISSING and mine != theirs


def _shown_manager(entry: Obj) -> str:
    """Who applied is known by name alone; who updated, by the version it wrote in too."""
    who = f'"{entry.get("manager")}"'
    if entry.get("subresource"):
        who += f' with subresource "{entry["subresource"]}"'
    return who if entry.get("operation") == "Apply" else f"{who} using {entry.get('apiVersion')}"


def _conflicts(others: list[tuple[Obj, Paths]], overruled: list[Paths]) -> Refusal:
    causes: list[Obj] = []
    parts: list[str] = []
    for (entry, _), paths in zip(others, overruled, strict=True):
        if not paths:
            continue
        who = _shown_manager(entry)
        fields = [ownership.shown(path) for path in sorted(paths)]
        causes += [
            {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": f}
            for f in fields
        ]
        if len(fields) == 1:
            parts.append(f"conflict with {who}: {fields[0]}")
        else:
            parts.append(f"conflicts with {who}:\n" + "\n".join(f"- {field}" for field in fields))
    word = "conflict" if len(causes) == 1 else "conflicts"
    message = f"Apply failed with {len(causes)} {word}: " + "\n".join(parts)
    return Refusal(409, "Conflict", message, details={"causes": causes})


def _kept_entries(others: list[tuple[Obj, Paths]], overruled: list[Paths]) -> list[Obj]:
    kept: list[Obj] = []
    for (entry, paths), lost in zip(others, overruled, strict=True):
        if not lost:
            kept.append(entry)
        elif paths - lost:
            kept.append(entry | {"fieldsV1": ownership.to_fields(paths - lost)})
    return kept


def _drop_undeclared(result: Obj, dropped: Paths, others: list[Paths]) -> None:
    """Remove what this manager declared before and nobody else owns. An item of a list goes whole,
    or stays with its key; what is empty then goes, too.
    """
    for path in sorted(dropped, key=len):
        depth = len(path)
        owned = any(other[:depth] == path for paths in others for other in paths)
        if not owned and not ownership.is_key(path):
            ownership.remove_at(result, path)
            ownership.remove_empty(result, path[:-1])


def merge_values(live: Any, applied: Any, schema: Schema, known: Definitions) -> Any:
    """The live value with everything that is declared put over it."""
    if isinstance(applied, dict) and isinstance(live, dict) and not _atomic(schema, known):
        result = dict(live)
        for key, value in applied.items():
            inner = known.property(schema, key)
            result[key] = (
                merge_values(live[key], value, inner, known)
                if key in live
                else copy.deepcopy(value)
            )
        return result
    if isinstance(applied, list) and isinstance(live, list):
        kind = ownership.list_type(schema, known)
        if kind == "map":
            return _merge_items(live, applied, schema, known)
        if kind == "set":
            return [*live, *(item for item in applied if item not in live)]
    return copy.deepcopy(applied)


def _atomic(schema: Schema, known: Definitions) -> bool:
    return "atomic" in (
        schema.get("x-kubernetes-map-type"),
        known.resolve(schema).get("x-kubernetes-map-type"),
    )


def _merge_items(
    live: list[Any], applied: list[Any], schema: Schema, known: Definitions
) -> list[Any]:
    keys, items = ownership.list_keys(schema, known), known.items(schema)
    mine = {ownership.item_step(item, keys): item for item in applied}
    result = []
    for item in live:
        step = ownership.item_step(item, keys)
        result.append(merge_values(item, mine.pop(step), items, known) if step in mine else item)
    return [*result, *copy.deepcopy(list(mine.values()))]
