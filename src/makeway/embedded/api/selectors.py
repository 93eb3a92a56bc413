"""Label and field selectors: parsed once, then asked of every object or change."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from makeway.embedded.store import Entry
from makeway.kinds.serving.kind import Kind
from makeway.kinds.serving.names import label_value_problems, qualified_name_problems
from makeway.kinds.serving.refusal import Refusal, bad_request

Match = Callable[[Entry], bool]
_Labels = dict[str, str]
_Term = Callable[[_Labels], bool]

_SET_TERM = re.compile(
    r"^\s*(!?)\s*([^\s!=,()<>]+)\s*(?:(notin|in)\s*\(([^()]*)\)|(==|!=|=|<|>)\s*([^\s=,()<>!]*))?\s*$"
)


def everything(entry: Entry) -> bool:
    return True


# ---- labels --------------------------------------------------------------------------------------


def parse_labels(text: str) -> Callable[[_Labels], bool] | None:
    """A predicate over labels, or None when everything matches."""
    terms = [_label_term(part) for part in _split(text)]
    if not terms:
        return None
    if len(terms) == 1:
        return terms[0]
    return lambda labels: all(term(labels) for term in terms)


def _split(text: str) -> list[str]:
    """At the commas that are not inside parentheses."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


def _label_term(text: str) -> _Term:
    found = _SET_TERM.match(text)
    if not found:
        raise bad_request(
            f"unable to parse requirement: found '{_after_key(text)}', expected: in, notin, =, ==,"
            f" !=, gt, lt"
        )
    negated, key, membership, listed, operator, value = found.groups()
    _check_key(key)
    if negated:
        return lambda labels: key not in labels
    if membership:
        values = {item.strip() for item in listed.split(",")}
        for item in values:
            _check_value(item)
        if membership == "in":
            return lambda labels: key in labels and labels[key] in values
        return lambda labels: labels.get(key) not in values if key in labels else True
    if operator is None:
        return lambda labels: key in labels
    if operator in ("<", ">"):
        return _numeric(key, operator, value)
    _check_value(value)
    if operator == "!=":
        return lambda labels: labels.get(key) != value
    return lambda labels: labels.get(key) == value


def _after_key(text: str) -> str:
    """The word where an operator was expected."""
    words = re.findall(r"[^\s!=,()<>]+|[!=,()<>]+", text)
    return words[1] if len(words) > 1 else text.strip()


def _numeric(key: str, operator: str, value: str) -> _Term:
    if not re.fullmatch(r"-?[0-9]+", value):
        raise bad_request(f"for 'Gt', 'Lt' operators, the value must be an integer, got {value!r}")
    bound = int(value)

    def term(labels: _Labels) -> bool:
        text = labels.get(key, "")
        if not re.fullmatch(r"-?[0-9]+", text):
            return False
        return int(text) > bound if operator == ">" else int(text) < bound

    return term


def _check_key(key: str) -> None:
    problems = qualified_name_problems(key)
    if problems:
        raise bad_request(
            f'unable to parse requirement: <nil>: Invalid value: "{key}": {"; ".join(problems)}'
        )


def _check_value(value: str) -> None:
    problems = label_value_problems(value)
    if problems:
        raise bad_request(
            f'unable to parse requirement: values[0]: Invalid value: "{value}":'
            f" {'; '.join(problems)}"
        )


# ---- fields --------------------------------------------------------------------------------------


def _field_terms(text: str) -> list[tuple[str, bool, str]]:
    terms = []
    for part in re.split(r"(?<!\\),", text):
        if not part.strip():
            continue
        found = re.match(r"^\s*([^=!]+?)\s*(==|!=|=)(.*)$", part, re.DOTALL)
        if not found:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        value = re.sub(r"\\([\\,=])", r"\1", found[3].strip())
        terms.append((found[1], found[2] != "!=", value))
    return terms


def _text_at(obj: Any, path: tuple[str, ...]) -> str:
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    if obj is None:
        return ""
    if isinstance(obj, bool):
        return "true" if obj else "false"
    return str(obj)


class Selection:
    """Which entries of a kind a request is about: namespace, labels and fields together."""

    __slots__ = ("_asked", "_fields", "_kind", "_labels", "name", "namespace", "plain")

    def __init__(self, kind: Kind, namespace: str, labels: str, fields: str) -> None:
        self._kind = kind
        self._asked = (labels, fields)
        self.namespace = namespace
        self.name = ""
        self._labels = parse_labels(labels) if labels else None
        self._fields: list[tuple[tuple[str, ...], bool, str]] = []
        for field, equal, value in _field_terms(fields) if fields else []:
            self._add_field(field, value, equal=equal)
        self.plain = self._labels is None and not self._fields and not self.name

    def _add_field(self, field: str, value: str, *, equal: bool) -> None:
        if field == "metadata.name" and equal:
            self.name = value
            return
        if field == "metadata.namespace" and equal and not self.namespace:
            self.namespace = value
            return
        known = {
            "metadata.name": ("metadata", "name"),
            "metadata.namespace": ("metadata", "namespace"),
        } | self._kind.fields
        path = known.get(field)
        if path is None:
            raise Refusal(400, "BadRequest", f"field label not supported: {field}")
        # An absent boolean is false.
        if path[-1] == "unschedulable" and value == "false":
            equal, value = not equal, "true"
        self._fields.append((path, equal, value))

    @property
    def key(self) -> tuple[str, str, tuple[str, str]]:
        """Equal keys select the same objects."""
        return (self.namespace, self.name, self._asked)

    def __call__(self, entry: Entry) -> bool:
        if self.plain:
            return not self.namespace or entry.namespace == self.namespace
        if self.namespace and entry.namespace != self.namespace:
            return False
        if self.name and entry.name != self.name:
            return False
        if self._labels is not None and not self._labels(entry.labels or {}):
            return False
        if not self._fields:
            return True
        texts = self._texts(entry)
        return all((texts[path] == value) is equal for path, equal, value in self._fields)

    def _texts(self, entry: Entry) -> dict[tuple[str, ...], str]:
        """Read from the object once for all watchers, since every change is asked of each of them."""
        known = entry.fields
        if known is None or any(path not in known for path, _, _ in self._fields):
            obj = entry.decode()
            wanted = {*self._kind.fields.values(), *(path for path, _, _ in self._fields)}
            known = entry.fields = (known or {}) | {path: _text_at(obj, path) for path in wanted}
        return known
