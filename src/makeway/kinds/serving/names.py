"""Names, labels and annotations: the syntax that the API server asks for, and its sentences."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from makeway.kinds.serving.refusal import Cause, Obj, invalid_value

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or"
    " '.', and must"
    " start and end with an alphanumeric character (e.g. 'example.com', regex used for"
    " validation is"
    r" '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and"
    " must start and"
    " end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for"
    " validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end"
    " with an"
    " alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for"
    " validation is"
    " '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or"
    " '.', and must"
    " start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or"
    " '12345', regex used for"
    " validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def subdomain_problems(text: str) -> list[str]:
    problems = [f"must be no more than {253} bytes"] if len(text) > 253 else []
    return problems if _SUBDOMAIN.fullmatch(text) else [*problems, SUBDOMAIN_RULE]


def label_problems(text: str) -> list[str]:
    problems = [f"must be no more than {63} bytes"] if len(text) > 63 else []
    return problems if _LABEL.fullmatch(text) else [*problems, LABEL_RULE]


def qualified_name_problems(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    problems: list[str] = []
    if slash:
        problems += [f"prefix part {problem}" for problem in subdomain_problems(prefix)]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 bytes")
    if not _QUALIFIED_NAME.fullmatch(name):
        problems.append(QUALIFIED_RULE)
    return problems


def label_value_problems(text: str) -> list[str]:
    if len(text) > 63:
        return ["must be no more than 63 bytes"]
    return [] if _LABEL_VALUE.fullmatch(text) else [VALUE_RULE]


def labels_causes(labels: Any, field: str) -> list[Cause]:
    causes: list[Cause] = []
    for key, value in (labels or {}).items():
        causes += [invalid_value(field, key, problem) for problem in qualified_name_problems(key)]
        causes += [
            invalid_value(field, value, problem) for problem in label_value_problems(str(value))
        ]
    return causes


NameCheck = Callable[[str], list[str]]


def metadata_causes(obj: Obj, check: NameCheck) -> list[Cause]:
    metadata = obj["metadata"]
    causes: list[Cause] = []
    name = metadata.get("name", "")
    if not name:
        causes.append(
            Cause(
                "metadata.name",
                "Required value",
                "name or generateName is required",
                "FieldValueRequired",
            )
        )
    else:
        causes += [invalid_value("metadata.name", name, problem) for problem in check(name)]
    causes += labels_causes(metadata.get("labels"), "metadata.labels")
    for key in metadata.get("annotations") or {}:
        problems = qualified_name_problems(key.lower())
        causes += [invalid_value("metadata.annotations", key, problem) for problem in problems]
    return causes
