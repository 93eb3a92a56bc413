"""Checks that a CustomResourceDefinition's schema makes: types, enumerations, required fields, patterns,
bounds, keys of lists.
"""

from __future__ import annotations

import re
from typing import Any

from makeway.kinds.serving.formats import FORMATS
from makeway.kinds.serving.refusal import (
    Cause,
    Obj,
    duplicate,
    invalid_value,
    json_type,
    required,
    unsupported,
    wrong_format,
    wrong_type,
)
from makeway.kinds.serving.schemas import Schema, definitions

NOT_CHECKED = Cause(
    "<nil>",
    "Invalid value: null",
    "some validation rules were not checked because the object was invalid; correct the"
    " existing errors to complete"
    " validation",
)
# After these the server does not go on to evaluate the definition's rules, and says so.
_BLOCKING = (
    "FieldValueNotSupported",
    "FieldValueRequired",
    "FieldValueTooLong",
    "FieldValueTooMany",
    "FieldValueTypeInvalid",
)


def structural_causes(definition: str, obj: Obj, *, has_rules: bool = True) -> list[Cause]:
    causes: list[Cause] = []
    _walk(definitions().get(definition), obj, "", causes, top=True)
    if has_rules and any(cause.reason in _BLOCKING for cause in causes):
        causes.append(NOT_CHECKED)
    return causes


def _walk(schema: Schema, value: Any, path: str, causes: list[Cause], *, top: bool = False) -> None:
    # Kubernetes' own definitions inside ours (pod templates, metadata) have their own checks
    # elsewhere.
    if "$ref" in schema or value is None:
        return
    wrong = _wrong_type(schema, value, path)
    if wrong is not None:
        causes.append(wrong)
        return
    if "enum" in schema and value not in schema["enum"]:
        causes.append(unsupported(path, value, schema["enum"]))
    if isinstance(value, str):
        _check_text(schema, value, path, causes)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(schema, value, path, causes)
    elif isinstance(value, list):
        _check_list(schema, value, path, causes)
    elif isinstance(value, dict):
        _check_fields(schema, value, path, causes, top=top)


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}


def _wrong_type(schema: Schema, value: Any, path: str) -> Cause | None:
    wanted = schema.get("type")
    if wanted not in _JSON_TYPES or schema.get("x-kubernetes-int-or-string"):
        return None
    given = json_type(value)
    right = isinstance(value, _JSON_TYPES[wanted]) and (given != "boolean" or wanted == "boolean")
    if right or (wanted == "integer" and given == "number" and value == int(value)):
        return None
    return wrong_type(path, value, wanted)


def _check_fields(schema: Schema, value: Obj, path: str, causes: list[Cause], *, top: bool) -> None:
    needed = [name for name in schema.get("required") or [] if value.get(name) is None]
    causes.extend(required(f"{path}.{name}" if path else name) for name in needed)
    count = len(value)
    if count > schema.get("maxProperties", count):
        why = f"must have at most {schema['maxProperties']} items"
        causes.append(Cause(path, f"Too many: {count}", why, "FieldValueTooMany"))
    if count < schema.get("minProperties", 0):
        why = f"{path} in body should have at least {schema['minProperties']} properties"
        causes.append(invalid_value(path, count, why))
    properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
    for name, inner in value.items():
        if top and name in ("apiVersion", "kind", "metadata"):
            continue
        known = properties.get(name) or (extra if isinstance(extra, dict) else None)
        if known is not None:
            _walk(known, inner, f"{path}.{name}" if path else name, causes)


def _check_text(schema: Schema, value: str, path: str, causes: list[Cause]) -> None:
    if "pattern" in schema and not re.search(schema["pattern"], value):
        causes.append(
            invalid_value(path, value, f"{path} in body should match '{schema['pattern']}'")
        )
    form = schema.get("format")
    if form in FORMATS and not FORMATS[form](value):
        causes.append(wrong_format(path, value, form))
    if len(value) > schema.get("maxLength", len(value)):
        limit = schema["maxLength"]
        causes.append(
            Cause(path, "Too long", f"may not be more than {limit} bytes", "FieldValueTooLong")
        )
    if len(value) < schema.get("minLength", 0):
        why = f"{path} in body should be at least {schema['minLength']} chars long"
        causes.append(invalid_value(path, value, why))


def _check_number(schema: Schema, value: float, path: str, causes: list[Cause]) -> None:
    low, high, step = (schema.get(bound) for bound in ("minimum", "maximum", "multipleOf"))
    problems = []
    if low is not None and (value < low or (value == low and schema.get("exclusiveMinimum"))):
        or_equal = "" if schema.get("exclusiveMinimum") else " or equal to"
        problems.append(f"should be greater than{or_equal} {low}")
    if high is not None and (value > high or (value == high and schema.get("exclusiveMaximum"))):
        or_equal = "" if schema.get("exclusiveMaximum") else " or equal to"
        problems.append(f"should be less than{or_equal} {high}")
    if step and value % step:
        problems.append(f"should be a multiple of {step}")
    causes.extend(invalid_value(path, value, f"{path} in body {problem}") for problem in problems)


def _check_list(schema: Schema, value: list[Any], path: str, causes: list[Cause]) -> None:
    if len(value) > schema.get("maxItems", len(value)):
        why = f"must have at most {schema['maxItems']} items"
        causes.append(Cause(path, f"Too many: {len(value)}", why, "FieldValueTooMany"))
    if len(value) < schema.get("minItems", 0):
        why = f"{path} in body should have at least {schema['minItems']} items"
        causes.append(invalid_value(path, len(value), why))
    for index, item in enumerate(value):
        _walk(schema.get("items") or {}, item, f"{path}[{index}]", causes)
    causes.extend(_duplicates(schema, value, path))


def _duplicates(schema: Schema, value: list[Any], path: str) -> list[Cause]:
    """Lists that are sets, or maps by the keys of their items, hold each once."""
    kind = schema.get("x-kubernetes-list-type")
    keys = schema.get("x-kubernetes-list-map-keys") or []
    if kind not in ("set", "map"):
        return []
    seen: list[Any] = []
    found = []
    for index, item in enumerate(value):
        mark = item
        if kind == "map":
            mark = {key: item.get(key) for key in keys} if isinstance(item, dict) else None
        if mark in seen:
            found.append(duplicate(f"{path}[{index}]", mark))
        seen.append(mark)
    return found
