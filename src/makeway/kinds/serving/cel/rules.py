"""The rules of a definition (`x-kubernetes-validations`), asked of an object wherever the schema has them.

A rule that names `oldSelf` is about a change: it is asked only where there was a value before. What a change leaves as it was is not
asked again, so that objects which are older than a rule can still be changed elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from makeway.kinds.serving.cel.compiling import Program, UnknownFunctionError, compile_expression
from makeway.kinds.serving.cel.functions import duration, timestamp
from makeway.kinds.serving.cel.parsing import CelSyntaxError
from makeway.kinds.serving.cel.values import NOTHING, AnyOrder, CelError, Optional
from makeway.kinds.serving.refusal import (
    Cause,
    Obj,
    bare_invalid,
    forbidden_field,
    invalid_value,
    required,
    unsupported,
    wrong_type,
)
from makeway.kinds.serving.schemas import Schema

RULES: Final = "x-kubernetes-validations"
_VARIABLES: Final = ("self", "oldSelf")
_TEXTS: Final = ("rule", "message", "messageExpression", "reason", "fieldPath")
_REASONS: Final = (
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
)
_FIELD_PATH: Final = re.compile(r"(?:\.[A-Za-z_][\w-]*|\['[^']+'\])+")


class Rule(msgspec.Struct, frozen=True):
    program: Program
    said: str  # what is told when it does not hold
    message: Program | None
    reason: str
    field: str  # below the value, where the rule is about one of its fields
    optional_old: bool

    @property
    def about_change(self) -> bool:
        return "oldSelf" in self.program.names


class Level(msgspec.Struct, frozen=True):
    """The rules at one place of a schema, and the places below it that have some."""

    schema: Schema
    rules: tuple[Rule, ...]
    fields: dict[str, Level]
    items: Level | None
    values: Level | None


class Unknown(msgspec.Struct, frozen=True):
    """A rule that may be right, and uses what is not known here."""

    path: str
    rule: str
    function: str


class Findings(msgspec.Struct):
    """What is wrong with the rules of a schema, and which of them cannot be asked."""

    causes: list[Cause] = []
    unknown: list[Unknown] = []


def has_rules(schema: Any) -> bool:
    if isinstance(schema, dict):
        return RULES in schema or any(has_rules(value) for value in schema.values())
    return isinstance(schema, list) and any(has_rules(item) for item in schema)


def read_rules(schema: Schema) -> Level | None:
    """Those that can be asked; None if there are none."""
    return _level(schema, "", Findings())


def findings_of(schema: Schema, path: str) -> Findings:
    found = Findings()
    _level(schema, path, found)
    return found


def _level(schema: Any, path: str, found: Findings) -> Level | None:
    if not isinstance(schema, dict) or "$ref" in schema:
        return None
    rules = []
    for index, each in enumerate(_as(list, schema, RULES, path, found)):
        rule = _rule(each, f"{path}.{RULES}[{index}]", found)
        if rule is not None:
            rules.append(rule)
    below = {
        name: level
        for name, inner in _as(dict, schema, "properties", path, found).items()
        if (level := _level(inner, f"{path}.properties[{name}]", found)) is not None
    }
    items = _level(schema.get("items"), f"{path}.items", found)
    values = _level(schema.get("additionalProperties"), f"{path}.additionalProperties", found)
    if not (rules or below or items or values):
        return None
    return Level(schema, tuple(rules), below, items, values)


def _as(wanted: type, schema: Schema, field: str, path: str, found: Findings) -> Any:
    """A part of the schema, if it is what it has to be."""
    value = schema.get(field)
    if value is not None and not isinstance(value, wanted):
        kind = "array" if wanted is list else "object"
        found.causes.append(wrong_type(f"{path}.{field}", value, kind))
        return wanted()
    return value or wanted()


def _rule(each: Any, path: str, found: Findings) -> Rule | None:
    if not isinstance(each, dict):
        found.causes.append(wrong_type(path, each, "object"))
        return None
    texts = {name: each.get(name) or "" for name in _TEXTS}
    wrong = [name for name, value in texts.items() if not isinstance(value, str)]
    found.causes += [wrong_type(f"{path}.{name}", texts[name], "string") for name in wrong]
    if wrong:
        return None
    if not texts["rule"].strip():
        found.causes.append(required(f"{path}.rule", "rule is not specified"))
        return None
    if texts["reason"] and texts["reason"] not in _REASONS:
        found.causes.append(unsupported(f"{path}.reason", texts["reason"], _REASONS))
    if texts["fieldPath"] and not _FIELD_PATH.fullmatch(texts["fieldPath"]):
        found.causes.append(
            invalid_value(f"{path}.fieldPath", texts["fieldPath"], "must be a valid path")
        )
    return _compiled_rule(texts, path, found, optional_old=bool(each.get("optionalOldSelf")))


def _compiled_rule(
    texts: dict[str, str], path: str, found: Findings, *, optional_old: bool
) -> Rule | None:
    text = texts["rule"].strip()
    program = _compiled(text, f"{path}.rule", found)
    told = texts["messageExpression"]
    message = _compiled(told, f"{path}.messageExpression", found) if told else None
    if program is None:
        return None
    return Rule(
        program,
        texts["message"].strip() or f"failed rule: {text}",
        message,
        texts["reason"],
        texts["fieldPath"],
        optional_old,
    )


def _compiled(text: str, path: str, found: Findings) -> Program | None:
    try:
        return compile_expression(text, _VARIABLES)
    except CelSyntaxError as error:
        why = f"compilation failed: ERROR: {error}"
        found.causes.append(invalid_value(path, text, why))
    except UnknownFunctionError as error:
        found.unknown.append(Unknown(path, text, str(error)))
    return None


# Asking


class _Missing:
    """There was no value here before."""


_MISSING: Final = _Missing()


def rule_causes(level: Level | None, new: Obj, old: Obj | None) -> list[Cause]:
    if level is None:
        return []
    return list(_ask(level, new, _MISSING if old is None else old, ""))


def _ask(level: Level, new: Any, old: Any, path: str) -> Iterator[Cause]:
    if new is None:
        return
    if level.rules and (old is _MISSING or new != old or any(r.about_change for r in level.rules)):
        yield from _ask_here(level, new, old, path)
    if isinstance(new, dict):
        for name, value in new.items():
            below = level.fields.get(name) or level.values
            if below is not None:
                before = old.get(name, _MISSING) if isinstance(old, dict) else _MISSING
                yield from _ask(below, value, before, _below(level, path, name))
    elif isinstance(new, list) and level.items is not None:
        for index, value in enumerate(new):
            before = _counterpart(level.schema, value, old)
            yield from _ask(level.items, value, before, f"{path}[{index}]")


def _below(level: Level, path: str, name: str) -> str:
    if name not in level.fields:
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name


def _counterpart(schema: Schema, value: Any, old: Any) -> Any:
    """The item that this one was before: by its keys, in a list that is a map by keys."""
    keys = schema.get("x-kubernetes-list-map-keys") or []
    if not keys or not isinstance(old, list) or not isinstance(value, dict):
        return _MISSING
    same = (
        item
        for item in old
        if isinstance(item, dict) and all(item.get(key) == value.get(key) for key in keys)
    )
    return next(same, _MISSING)


def _ask_here(level: Level, new: Any, old: Any, path: str) -> Iterator[Cause]:
    now = typed(level.schema, new)
    before = old if old is _MISSING else typed(level.schema, old)
    for rule in level.rules:
        if rule.optional_old:
            given = {"self": now, "oldSelf": NOTHING if before is _MISSING else Optional(before)}
        elif rule.about_change:
            if before is _MISSING:
                continue
            given = {"self": now, "oldSelf": before}
        elif old is not _MISSING and new == old:
            continue
        else:
            given = {"self": now}
        cause = _broken(rule, given, path)
        if cause is not None:
            yield cause


def _broken(rule: Rule, given: dict[str, Any], path: str) -> Cause | None:
    try:
        if rule.program.evaluate(**given) is True:
            return None
    except CelError as error:
        return bare_invalid(
            path, f"{error} evaluating rule: {rule.said.removeprefix('failed rule: ')}"
        )
    where = f"{path}{rule.field}".lstrip(".")
    said = _said(rule, given)
    match rule.reason:
        case "FieldValueForbidden":
            return forbidden_field(where, said)
        case "FieldValueRequired":
            return required(where, said)
        case "FieldValueDuplicate":
            return Cause(where, "Duplicate value", said, "FieldValueDuplicate")
    return bare_invalid(where, said)


def _said(rule: Rule, given: dict[str, Any]) -> str:
    if rule.message is None:
        return rule.said
    try:
        told = rule.message.evaluate(**given)
    except CelError:
        return rule.said
    usable = isinstance(told, str) and told.strip() and "\n" not in told
    return told.strip() if usable else rule.said


# Values as their schema means them


def typed(schema: Any, value: Any) -> Any:
    """Times and durations instead of texts, numbers instead of whole ones, lists whose order does not count."""
    if not isinstance(schema, dict) or value is None:
        return value
    if isinstance(value, dict):
        fields, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        return {name: typed(fields.get(name) or extra, inner) for name, inner in value.items()}
    if isinstance(value, list):
        items = [typed(schema.get("items"), item) for item in value]
        unordered = schema.get("x-kubernetes-list-type") in ("set", "map")
        return AnyOrder(items) if unordered else items
    if isinstance(value, int) and schema.get("type") == "number" and not isinstance(value, bool):
        return float(value)
    return _formatted(schema.get("format"), value) if isinstance(value, str) else value


def _formatted(form: Any, value: str) -> Any:
    try:
        match form:
            case "date-time":
                return timestamp(value)
            case "duration":
                return duration(value)
            case "byte":
                return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        pass  # the schema's own check says so
    return value
