"""Kinds that users bring: from a CustomResourceDefinition to a row of the registry.

Structure, defaults, enumerations, patterns and bounds of the definition's schema are honoured, and its printer
columns, and its rules in CEL. Versions are converted by name only. A definition of a kind that is built in is stored and otherwise ignored: the built-in
one serves it.
"""

from __future__ import annotations

import copy
import re
from functools import cached_property
from typing import Any

from makeway.control.clock import timestamp
from makeway.kinds.serving.cel.rules import Findings, Level, findings_of, read_rules, rule_causes
from makeway.kinds.serving.columns import AGE, NAME, NAME_AND_AGE, Cell, Column, since
from makeway.kinds.serving.kind import Context, Kind, Rules, Scale, Version
from makeway.kinds.serving.names import metadata_causes, subdomain_problems
from makeway.kinds.serving.refusal import Cause, Obj, invalid_value, required
from makeway.kinds.serving.schemas import OBJECT_META, PREFIX, Schema, definitions
from makeway.kinds.serving.structure import NOT_CHECKED, structural_causes


class DefinitionRules(Rules):
    """CustomResourceDefinitions themselves."""

    def default(self, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        names = spec.setdefault("names", {})
        kind = str(names.get("kind") or "")
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
        spec.setdefault("conversion", {"strategy": "None"})

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, subdomain_problems)
        spec = obj["spec"]
        expected = f"{spec['names'].get('plural')}.{spec.get('group')}"
        if obj["metadata"].get("name") != expected:
            why = 'must be spec.names.plural+"."+spec.group'
            causes.append(invalid_value("metadata.name", obj["metadata"].get("name"), why))
        for field in ("group", "versions", "scope"):
            if not spec.get(field):
                causes.append(required(f"spec.{field}"))
        for index, version in enumerate(spec.get("versions") or []):
            if not (version.get("schema") or {}).get("openAPIV3Schema"):
                causes.append(required(f"spec.versions[{index}].schema.openAPIV3Schema"))
        stored = [version for version in spec.get("versions") or [] if version.get("storage")]
        if len(stored) != 1:
            why = "must have exactly one version marked as storage version"
            causes.append(invalid_value("spec.versions", len(stored), why))
        return causes + [cause for found in _findings(obj) for cause in found.causes]

    def create(self, obj: Obj, context: Context) -> None:
        self._warn_of_rules(obj, context)
        obj["status"] = _accepted(obj, context.now)

    def update(self, new: Obj, old: Obj, context: Context) -> None:
        self._warn_of_rules(new, context)

    def _warn_of_rules(self, obj: Obj, context: Context) -> None:
        for found in _findings(obj):
            for each in found.unknown:
                why = f"this rule uses {each.function}, which is not known here, and is not asked"
                context.warnings.append(f"{each.path}: {why}: {each.rule}")

    def initial_status(self, obj: Obj) -> Obj | None:
        status: Obj | None = obj.get("status")
        return status


def _findings(definition: Obj) -> list[Findings]:
    """What its rules are like; a schema that all versions share is told of once."""
    versions = definition["spec"].get("versions") or []
    schemas = [(version.get("schema") or {}).get("openAPIV3Schema") or {} for version in versions]
    if all(schema == schemas[0] for schema in schemas):
        return [findings_of(schema, "spec.validation.openAPIV3Schema") for schema in schemas[:1]]
    return [
        findings_of(schema, f"spec.versions[{index}].schema.openAPIV3Schema")
        for index, schema in enumerate(schemas)
    ]


def _accepted(obj: Obj, now: float) -> Obj:
    def condition(kind: str, reason: str, message: str) -> Obj:
        return {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": timestamp(now),
        }

    return {
        "acceptedNames": obj["spec"]["names"],
        "storedVersions": [
            v["name"] for v in obj["spec"].get("versions") or [] if v.get("storage") and "name" in v
        ],
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition(
                "Established", "InitialNamesAccepted", "the initial names have been accepted"
            ),
        ],
    }


# ---- from a definition to a kind --------------------------------------------------------------------


class CustomRules(Rules):
    def __init__(self, definition: str) -> None:
        self._definition = definition

    @cached_property
    def _rules(self) -> Level | None:
        return read_rules(definitions().get(self._definition))

    def default(self, obj: Obj) -> None:
        _fill_defaults(definitions().get(self._definition), obj)

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, subdomain_problems)
        return causes + structural_causes(self._definition, obj, has_rules=self._rules is not None)

    def validate_whole(self, new: Obj, old: Obj | None) -> list[Cause]:
        causes = self.validate(new)
        if NOT_CHECKED in causes:
            return causes
        return causes + rule_causes(self._rules, new, old)

    def update_status(self, new: Obj, old: Obj, context: Context) -> list[Cause]:
        """What the status itself breaks; the rest was there before."""
        return [
            cause
            for cause in self.validate_whole(new, old)
            if cause.field.partition(".")[0].partition("[")[0] not in ("metadata", "spec")
        ]


def _fill_defaults(schema: Schema, value: Any) -> None:
    if isinstance(value, dict):
        for name, inner in (schema.get("properties") or {}).items():
            if name not in value and "default" in inner:
                value[name] = copy.deepcopy(inner["default"])
            if name in value and "$ref" not in inner:
                _fill_defaults(inner, value[name])
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            for item in value.values():
                _fill_defaults(extra, item)
    elif isinstance(value, list):
        for item in value:
            _fill_defaults(schema.get("items") or {}, item)


def kind_from(definition: Obj) -> Kind:
    spec = definition["spec"]
    names, group = spec["names"], spec["group"]
    served = [version for version in spec["versions"] if version.get("served", True)]
    # The stored version stands first: that is how a Kind tells it.
    served.sort(key=lambda version: not version.get("storage"))
    stored = next((v for v in spec["versions"] if v.get("storage")), served[0])
    subresources = stored.get("subresources") or {}
    scale = subresources.get("scale")
    return Kind(
        group,
        names["kind"],
        names["plural"],
        tuple(_version(group, names["kind"], version) for version in served),
        namespaced=spec.get("scope") != "Cluster",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        singular=names.get("singular") or "",
        status="status" in subresources,
        scale=_scale(scale) if scale else None,
        builtin=False,
        rules=CustomRules(_definition_name(group, names["kind"], stored["name"])),
    )


def _definition_name(group: str, kind: str, version: str) -> str:
    return ".".join([*reversed(group.split(".")), version, kind])


def _version(group: str, kind: str, version: Obj) -> Version:
    name = _definition_name(group, kind, version["name"])
    schema = copy.deepcopy((version.get("schema") or {}).get("openAPIV3Schema") or {})
    schema.setdefault("type", "object")
    properties = schema.setdefault("properties", {})
    properties["metadata"] = {"$ref": f"{PREFIX}{OBJECT_META}"}
    for field in ("apiVersion", "kind"):
        properties.setdefault(field, {"type": "string"})
    gvk = {"group": group, "version": version["name"], "kind": kind}
    schema["x-kubernetes-group-version-kind"] = [gvk]
    definitions().add(name, schema)
    columns = tuple(_column(column) for column in version.get("additionalPrinterColumns") or [])
    warning = version.get("deprecationWarning") or f"{group}/{version['name']} {kind} is deprecated"
    return Version(
        version["name"],
        name,
        (NAME, *columns) if columns else NAME_AND_AGE,
        deprecation=warning if version.get("deprecated") else "",
    )


def _scale(scale: Obj) -> Scale:
    def steps(field: str) -> tuple[str, ...]:
        return tuple(step for step in str(scale.get(field) or "").split(".") if step)

    return Scale(steps("specReplicasPath"), steps("statusReplicasPath"), steps("labelSelectorPath"))


# ---- printer columns --------------------------------------------------------------------------------

_STEP = re.compile(
    r"""\.?(?P<name>[A-Za-z0-9_-]+(?:\\\.[A-Za-z0-9_/-]+)*)   # .name, with dots escaped
    | \[\s*['"](?P<quoted>[^'"]+)['"]\s*\]                    # ['name']
    | \[(?P<index>-?\d+|\*)\]                                 # [0] or [*]
    | \[\?\(@\.(?P<key>[\w.-]+)\s*==\s*['"](?P<value>[^'"]*)['"]\)\]""",
    re.VERBOSE,
)


def find(obj: Any, path: str) -> list[Any]:
    """Values at a JSONPath of the kind that printer columns use."""
    found = [obj]
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if not step:
            return []
        found = [inner for value in found for inner in _follow(value, step)]
        at = step.end()
    return found


def _follow(value: Any, step: re.Match[str]) -> list[Any]:
    name = step["quoted"] or (step["name"] or "").replace("\\.", ".")
    if name:
        return [value[name]] if isinstance(value, dict) and value.get(name) is not None else []
    if not isinstance(value, list):
        return []
    if step["key"]:
        wanted = step["key"].split(".")
        return [item for item in value if _at(item, wanted) == step["value"]]
    if step["index"] == "*":
        return value
    index = int(step["index"])
    return [value[index]] if -len(value) <= index < len(value) else []


def _at(value: Any, steps: list[str]) -> Any:
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _column(column: Obj) -> Column:
    path, kind = column["jsonPath"].strip("{}"), column.get("type", "string")
    if path == ".metadata.creationTimestamp":
        return AGE._replace(name=column["name"])

    def cell(obj: Obj, now: float) -> Cell:
        values = find(obj, path)
        if not values:
            return None
        if kind == "date":
            return since(str(values[0]), now)
        if len(values) == 1 and isinstance(values[0], str | int | bool):
            return values[0]
        return ",".join(str(value) for value in values)

    return Column(
        column["name"],
        cell,
        kind,
        column.get("format", ""),
        wide=int(column.get("priority") or 0) > 0,
        description=column.get("description", ""),
    )
