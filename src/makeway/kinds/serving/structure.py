"""Checks that a CustomResourceDefinition's schema makes: enumerations, required fields, patterns,
bounds.
"""

from __future__ import annotations

import re
from typing import Any

from makeway.kinds.serving.refusal import Cause, Obj, invalid_value, required, unsupported
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
    if isinstance(value, str):
        _check_text(schema, value, path, causes)
    elif isinstance(value, int) and not isinstance(value, bool):
        _check_number(schema, value, path, causes)
    elif isinstance(value, list):
        _check_list(schema, value, path, causes)
    elif isinstance(value, dict):
        needed = [name for name in schema.get("required") or [] if value.get(name) is None]
        causes.extend(required(f"{path}.{name}" if path else name) for name in needed)
        for name, inner in (schema.get("properties") or {}).items():
            if not (top and name in ("apiVersion", "kind", "metadata")):
                _walk(inner, value.get(name), f"{path}.{name}" if path else name, causes)


def _check_text(schema: Schema, value: str, path: str, causes: list[Cause]) -> None:
    if "enum" in schema and value not in schema["enum"]:
        causes.append(unsupported(path, value, schema["enum"]))
    if "pattern" in schema and not re.search(schema["pattern"], value):
        causes.append(
            invalid_value(path, value, f"{path} in body should match '{schema['pattern']}'")
        )
    if len(value) > schema.get("maxLength", len(value)):
        limit = schema["maxLength"]
        causes.append(
            Cause(path, "Too long", f"may not be more than {limit} bytes", "FieldValueTooLong")
        )


def _check_number(schema: Schema, value: int, path: str, causes: list[Cause]) -> None:
    if "minimum" in schema and value < schema["minimum"]:
        why = f"{path} in body should be greater than or equal to {schema['minimum']}"
        causes.append(invalid_value(path, value, why))


def _check_list(schema: Schema, value: list[Any], path: str, causes: list[Cause]) -> None:
    if len(value) > schema.get("maxItems", len(value)):
        why = f"must have at most {schema['maxItems']} items"
        causes.append(Cause(path, f"Too many: {len(value)}", why, "FieldValueTooMany"))
    if len(value) < schema.get("minItems", 0):
        why = f"{path} in body should have at least {schema['minItems']} items"
        causes.append(invalid_value(path, len(value), why))
    for index, item in enumerate(value):
        _walk(schema.get("items") or {}, item, f"{path}[{index}]", causes)
