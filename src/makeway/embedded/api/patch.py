"""Three kinds of patch: JSON patch, JSON merge patch, and Kubernetes' strategic merge patch.

Strategic merge differs from plain merge in lists: where the definition names a merge key, items
are merged by that key, and directives (`$patch`, `$setElementOrder/…`,
`$deleteFromPrimitiveList/…`, `$retainKeys`) say the rest.
"""

from __future__ import annotations

from typing import Any

from makeway.embedded.api.http import MAX_BODY, encode
from makeway.kinds.serving.refusal import Obj, Refusal, bad_request
from makeway.kinds.serving.schemas import Definitions, Schema, json_name

_ORDER = "$setElementOrder/"
_DELETE_PRIMITIVE = "$deleteFromPrimitiveList/"
_RETAIN = "$retainKeys"
_DIRECTIVE = "$patch"
MAX_OPERATIONS = 10_000  # as the API server has it


def json_patch(document: Obj, operations: Any) -> Obj:
    import jsonpatch

    if not isinstance(operations, list):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type"
            " jsonpatch.Patch"
        )
    if len(operations) > MAX_OPERATIONS:
        raise Refusal(
            413,
            "RequestEntityTooLarge",
            f"Request entity too large: The allowed maximum operations in a JSON patch is"
            f" {MAX_OPERATIONS}, got {len(operations)}",
        )
    try:
        result = _operate(document, operations)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise Refusal(
            422, "Invalid", "the server rejected our request due to an error in our request"
        ) from error
    if not isinstance(result, dict):
        raise bad_request("the patch left something that is not an object")
    return result


def _operate(document: Obj, operations: list[Any]) -> Any:
    """Each operation for itself, since copies of copies could grow without end."""
    import jsonpatch

    copied = 0
    for operation in operations:
        if isinstance(operation, dict) and operation.get("op") == "copy":
            source = jsonpatch.JsonPointer(str(operation.get("from") or "")).resolve(document)
            copied += len(encode(source))
            if copied > MAX_BODY:
                raise Refusal(
                    413,
                    "RequestEntityTooLarge",
                    f"Request entity too large: the patch copies more than {MAX_BODY} bytes",
                )
        document = jsonpatch.JsonPatch([operation]).apply(document)
    return document


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386. `target` is not changed."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def strategic_merge(target: Obj, patch: Any, schema: Schema, known: Definitions) -> Obj:
    """`target` is used up: whoever needs it afterwards gives a copy."""
    if not isinstance(patch, dict):
        raise bad_request(
            f"json: cannot unmarshal {json_name(patch)} into Go value of type map[string]interface {{}}"
        )
    merged: Obj = _merge_object(target, patch, schema, known)
    return merged


def _merge_object(target: Any, patch: Obj, schema: Schema, known: Definitions) -> Any:
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"unknown patch type: {directive}")
    result = target if isinstance(target, dict) else {}
    retained = patch.get(_RETAIN)
    if isinstance(retained, list):
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key in (_DIRECTIVE, _RETAIN) or key.startswith((_ORDER, _DELETE_PRIMITIVE)):
            continue
        inner = known.property(schema, key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = _merge_object(result.get(key), value, inner, known)
        elif isinstance(value, list):
            result[key] = _merge_list(result.get(key), value, inner, known)
        else:
            result[key] = value
    _remove_primitives(result, patch)
    _put_in_order(result, patch, schema, known)
    return result


def _merge_key(schema: Schema) -> str:
    if "merge" not in str(schema.get("x-kubernetes-patch-strategy", "")).split(","):
        return ""
    return str(schema.get("x-kubernetes-patch-merge-key", ""))


def _merge_list(target: Any, patch: list[Any], schema: Schema, known: Definitions) -> list[Any]:
    merges = "merge" in str(schema.get("x-kubernetes-patch-strategy", "")).split(",")
    current = target if isinstance(target, list) else []
    if not merges:
        return [item for item in patch if not _is_directive(item)]
    key = _merge_key(schema)
    if not key:
        return [*current, *(item for item in patch if item not in current)]
    if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in patch):
        return [_without_directive(item) for item in patch if not _only_directive(item)]
    result = list(current)
    for item in patch:
        _merge_item(result, item, key, known.items(schema), known)
    return result


def _merge_item(result: list[Any], item: Any, key: str, schema: Schema, known: Definitions) -> None:
    if not isinstance(item, dict) or key not in item:
        raise bad_request(f"map: {item} does not contain declared merge key: {key}")
    index = next(
        (
            i
            for i, mine in enumerate(result)
            if isinstance(mine, dict) and mine.get(key) == item[key]
        ),
        None,
    )
    if item.get(_DIRECTIVE) == "delete":
        if index is not None:
            del result[index]
    elif index is None:
        result.append(_merge_object({}, item, schema, known))
    else:
        result[index] = _merge_object(result[index], item, schema, known)


def _is_directive(item: Any) -> bool:
    return isinstance(item, dict) and _DIRECTIVE in item


def _only_directive(item: Any) -> bool:
    return isinstance(item, dict) and set(item) == {_DIRECTIVE}


def _without_directive(item: Any) -> Any:
    return {k: v for k, v in item.items() if k != _DIRECTIVE} if isinstance(item, dict) else item


def _remove_primitives(result: Obj, patch: Obj) -> None:
    for key, values in patch.items():
        if key.startswith(_DELETE_PRIMITIVE):
            field = key.removeprefix(_DELETE_PRIMITIVE)
            if isinstance(result.get(field), list):
                result[field] = [item for item in result[field] if item not in values]


def _put_in_order(result: Obj, patch: Obj, schema: Schema, known: Definitions) -> None:
    for key, order in patch.items():
        if not key.startswith(_ORDER):
            continue
        field = key.removeprefix(_ORDER)
        items = result.get(field)
        if not isinstance(items, list) or not isinstance(order, list):
            continue
        merge_key = _merge_key(known.property(schema, field))
        wanted = [
            entry.get(merge_key) if merge_key and isinstance(entry, dict) else entry
            for entry in order
        ]
        result[field] = _ordered(items, wanted, merge_key)


def _ordered(items: list[Any], wanted: list[Any], key: str) -> list[Any]:
    """Named items in the named order; others stay behind the item that they followed before."""
    rank = {_hashable(value): position for position, value in enumerate(wanted)}

    def identity(item: Any) -> Any:
        return _hashable(item.get(key) if key and isinstance(item, dict) else item)

    named = sorted(
        (item for item in items if identity(item) in rank), key=lambda item: rank[identity(item)]
    )
    result: list[Any] = list(named)
    previous: Any = None
    for item in items:
        if identity(item) not in rank:
            place = 0 if previous is None else _index_of(result, previous) + 1
            result.insert(place, item)
        previous = item
    return result


def _index_of(items: list[Any], wanted: Any) -> int:
    return next(index for index, item in enumerate(items) if item is wanted)


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int | bool | float | None) else repr(value)
