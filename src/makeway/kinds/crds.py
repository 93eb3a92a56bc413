"""From a served kind to a CustomResourceDefinition, for clusters that do not know the kind yet.

The same schemas and defaults that the embedded API serves, in the form that a real API server asks for: references
resolved, one schema per version. No conversion webhook has to be alive, so all versions of a kind share one schema that
accepts either version's field names, and objects are stored as they were written; `kinds` reads both spellings.
Rules beyond structure are CEL, with the messages that the embedded API gives.
"""

from __future__ import annotations

import copy
import re
from typing import Any, Final

from makeway.kinds.serving.columns import Column
from makeway.kinds.serving.kind import Kind, Version
from makeway.kinds.serving.registry import build
from makeway.kinds.serving.schemas import (
    INT_OR_STRING,
    PREFIX,
    QUANTITY,
    Schema,
    definitions,
)

Object = dict[str, Any]

OURS: Final = (
    "kueue.x-k8s.io",
    "scheduling.sigs.k8s.io",
    "scheduling.x-k8s.io",
    "kubeai.org",
    "makeway.dev",
)

_KEPT: Final = frozenset(
    [
        "type",
        "format",
        "properties",
        "items",
        "additionalProperties",
        "required",
        "enum",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "description",
        "nullable",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
        "x-kubernetes-preserve-unknown-fields",
    ]
)
# Objects in which optional parts are present, so that their own defaults show.
_SAMPLES: Final[dict[str, Object]] = {
    "ResourceFlavor": {},
    "ClusterQueue": {"spec": {"fairSharing": {}}},
    "Workload": {"spec": {"podSets": [{}]}},
    "Model": {"spec": {}},
}
# Objects keep the spelling they were written with; columns show whichever is there.
_EITHER_SPELLING: Final = dict.fromkeys(
    (".spec.cohort", ".spec.cohortName"), ".spec['cohortName','cohort']"
)
POD_TEMPLATE: Final = "io.k8s.api.core.v1.PodTemplateSpec"
_IMMUTABLE: Final = "field is immutable"

# By kind: where the rule stands, the rule, and what is said when it does not hold.
_RULES: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "ClusterQueue": (
        (
            "spec",
            "has(self.cohortName) || has(self.cohort) || !has(self.resourceGroups) ||"
            " self.resourceGroups.all(g, g.flavors.all(f, f.resources.all(r, !has(r.borrowingLimit))))",
            "borrowingLimit must be nil when cohort is empty",
        ),
        (
            "spec.preemption",
            "!(self.reclaimWithinCohort == 'Never' && has(self.borrowWithinCohort) &&"
            " self.borrowWithinCohort.policy != 'Never')",
            "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never",
        ),
        (
            "spec.flavorFungibility",
            "!has(self.preference) || (self.whenCanBorrow == 'TryNextFlavor' &&"
            " self.whenCanPreempt == 'TryNextFlavor')",
            "preference can only be set when both whenCanBorrow and whenCanPreempt are TryNextFlavor",
        ),
        (
            "spec.resourceGroups[]",
            "self.flavors.all(f, size(f.resources) == size(self.coveredResources))",
            "flavors must have the same number of resources as the coveredResources",
        ),
    ),
    "Cohort": (
        (
            "spec.resourceGroups[]",
            "self.flavors.all(f, size(f.resources) == size(self.coveredResources))",
            "flavors must have the same number of resources as the coveredResources",
        ),
    ),
    "LocalQueue": (("spec.clusterQueue", "self == oldSelf", _IMMUTABLE),),
    "ResourceFlavor": (
        (
            "spec",
            "!has(self.topologyName) || has(self.nodeLabels)",
            "at least one nodeLabel is required when topology is set",
        ),
        (
            "spec",
            "!has(oldSelf.topologyName) || (has(self.topologyName) && self.topologyName == oldSelf.topologyName)",
            "topologyName is immutable when topologyName is set",
        ),
        (
            "spec.nodeTaints",
            "self.all(t, t.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])",
            "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'",
        ),
        (
            "spec.tolerations",
            "self.all(t, (has(t.key) && t.key != '') || (has(t.operator) && t.operator == 'Exists'))",
            "operator must be Exists when 'key' is empty, which means 'match all values and all keys'",
        ),
        (
            "spec.tolerations",
            "self.all(t, !has(t.tolerationSeconds) || (has(t.effect) && t.effect == 'NoExecute'))",
            "effect must be 'NoExecute' when 'tolerationSeconds' is set",
        ),
        (
            "spec.tolerations",
            "self.all(t, !has(t.operator) || t.operator in ['Equal', 'Exists'])",
            "supported toleration values: 'Equal'(default), 'Exists'",
        ),
        (
            "spec.tolerations",
            "self.all(t, !has(t.operator) || t.operator != 'Exists' || !has(t.value))",
            "a value must be empty when 'operator' is 'Exists'",
        ),
        (
            "spec.tolerations",
            "self.all(t, !has(t.effect) || t.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])",
            "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'",
        ),
    ),
    "AdmissionCheck": (("spec.controllerName", "self == oldSelf", _IMMUTABLE),),
    "Topology": (
        (
            "spec.levels",
            "self.all(level, self.exists_one(other, other.nodeLabel == level.nodeLabel))",
            "must be unique",
        ),
        (
            "spec.levels",
            "self.all(level, level.nodeLabel != 'kubernetes.io/hostname'"
            " || self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname')",
            "the kubernetes.io/hostname label can only be used at the lowest level of topology",
        ),
    ),
    "WorkloadPriorityClass": (),
    "Workload": (
        (
            "",
            "!(has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists(c,"
            " c.type == 'QuotaReserved' && c.status == 'True')) || !has(oldSelf.spec.queueName) ||"
            " (has(self.spec.queueName) && self.spec.queueName == oldSelf.spec.queueName)",
            "queueName is immutable while workload quota reserved",
        ),
    ),
    "Model": (
        (
            "spec.url",
            'self.startsWith("hf://") || self.startsWith("pvc://") || self.startsWith("ollama://") ||'
            ' self.startsWith("s3://") || self.startsWith("gs://") || self.startsWith("oss://")',
            'url must start with "hf://", "pvc://", "ollama://", "s3://", "gs://", or "oss://" and not be empty.',
        ),
        (
            "spec",
            "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas should be less than or equal to maxReplicas.",
        ),
        (
            "spec",
            "!has(self.adapters) || self.engine == 'VLLM'",
            "adapters only supported with VLLM engine.",
        ),
        ("", "size(self.metadata.name) <= 40", "name must not exceed 40 characters."),
    ),
}

# Where a rule says which words there are, and in its own words.
_NO_ENUM: Final[dict[str, tuple[str, ...]]] = {"ResourceFlavor": ("spec.nodeTaints[].effect",)}


def custom_resource_definitions() -> list[Object]:
    """One definition per kind that Kubernetes itself does not bring, by name."""
    kinds = [kind for kind in build() if kind.group in OURS]
    return sorted(
        (_definition(kind) for kind in kinds), key=lambda crd: str(crd["metadata"]["name"])
    )


def spec_fields(version: Version) -> frozenset[str]:
    """What this version knows of a spec; its definition carries what the other versions know, too."""
    schema = _structural(definitions().get(version.schema), own=True)
    return frozenset(schema["properties"].get("spec", {}).get("properties", {}))


def _definition(kind: Kind) -> Object:
    names: Object = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.singular or kind.kind.lower(),
    }
    if kind.short_names:
        names["shortNames"] = list(kind.short_names)
    if kind.categories:
        names["categories"] = list(kind.categories)
    metadata: Object = {"name": kind.resource, "labels": {"app.kubernetes.io/part-of": "makeway"}}
    if kind.group.endswith(".k8s.io"):
        # Groups under k8s.io are reserved; the API server asks for a word about it.
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, for compatibility"}
    schema = _schema(kind)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": kind.group,
            "names": names,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "conversion": {"strategy": "None"},
            "versions": [_version(kind, version, schema) for version in kind.versions],
        },
    }


def _version(kind: Kind, version: Version, schema: Schema) -> Object:
    said: Object = {
        "name": version.name,
        "served": True,
        "storage": version is kind.storage,
        "schema": {"openAPIV3Schema": schema},
    }
    if version.deprecation:
        said |= {"deprecated": True, "deprecationWarning": version.deprecation}
    columns = [_column(column) for column in version.columns[1:]]
    if columns:
        said["additionalPrinterColumns"] = columns
    subresources = _subresources(kind)
    if subresources:
        said["subresources"] = subresources
    if kind.fields:
        said["selectableFields"] = [
            {"jsonPath": "." + ".".join(path)} for path in kind.fields.values()
        ]
    return said


def _subresources(kind: Kind) -> Object:
    found: Object = {"status": {}} if kind.status else {}
    if kind.scale is not None:
        found["scale"] = {
            "specReplicasPath": "." + ".".join(kind.scale.spec),
            "statusReplicasPath": "." + ".".join(kind.scale.status),
        }
    return found


def _column(column: Column) -> Object:
    path, kind = _EITHER_SPELLING.get(column.description, column.description), column.type
    condition = re.fullmatch(r"status of the condition (\w+)", path)
    if condition:
        path = f'.status.conditions[?(@.type=="{condition[1]}")].status'
    elif column.name == "Age":
        path, kind = ".metadata.creationTimestamp", "date"
    said: Object = {"name": column.name, "type": kind, "jsonPath": path}
    return said | {"priority": 1} if column.wide else said


# ---- schemas ---------------------------------------------------------------------------------------


def _schema(kind: Kind) -> Schema:
    """What every version accepts: each version's fields, under one roof."""
    merged: Schema = {}
    for version in kind.versions:
        merged = _either(merged, _structural(definitions().get(version.schema), own=True))
    merged["properties"]["metadata"] = {"type": "object"}
    _put_defaults(merged, kind)
    for path in _NO_ENUM.get(kind.kind, ()):
        _at(merged, path).pop("enum", None)
    for path, rule, message in _RULES.get(kind.kind, ()):
        _at(merged, path).setdefault("x-kubernetes-validations", []).append(
            {"rule": rule, "message": message}
        )
    return merged


def _either(one: Schema, other: Schema) -> Schema:
    """A schema that accepts what one of the two accepts, as far as field names and words go."""
    if not one or not other:
        return one or other
    merged = {**one, **other}
    if "properties" in one and "properties" in other:
        names = [
            *one["properties"],
            *(n for n in other["properties"] if n not in one["properties"]),
        ]
        merged["properties"] = {
            name: _either(one["properties"].get(name, {}), other["properties"].get(name, {}))
            for name in names
        }
        required = [name for name in one.get("required", ()) if name in other.get("required", ())]
        merged.pop("required", None)
        if required:
            merged["required"] = required
    if "items" in one and "items" in other:
        merged["items"] = _either(one["items"], other["items"])
    if "enum" in one and "enum" in other:
        merged["enum"] = [
            *one["enum"],
            *(word for word in other["enum"] if word not in one["enum"]),
        ]
    return merged


def _structural(schema: Schema, *, own: bool) -> Schema:
    """The schema without references. Kubernetes' own types lose their descriptions and merge keys, which would only
    make the definition long."""
    reference = _reference(schema)
    if reference:
        return _referred(reference, schema, own=own)
    kept = {key: value for key, value in schema.items() if key in _KEPT}
    if not own or not kept.get("description"):
        kept.pop("description", None)
    if not own:
        for key in ("x-kubernetes-list-type", "x-kubernetes-list-map-keys"):
            kept.pop(key, None)
    if "properties" in kept:
        kept["properties"] = {
            name: _structural(inner, own=own) for name, inner in kept["properties"].items()
        }
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            kept[key] = _structural(kept[key], own=own)
    if "x-kubernetes-list-map-keys" in kept:
        # What a list is keyed by has to be there.
        item = kept["items"]
        keys = [k for k in kept["x-kubernetes-list-map-keys"] if k not in item.get("required", ())]
        item["required"] = [*item.get("required", ()), *keys]
    return kept


def _reference(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(PREFIX)
    wrapped = schema.get("allOf") or []
    return str(wrapped[0].get("$ref", "")).removeprefix(PREFIX) if len(wrapped) == 1 else ""


def _referred(reference: str, schema: Schema, *, own: bool) -> Schema:
    if reference == QUANTITY:
        found: Schema = {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
            "x-kubernetes-int-or-string": True,
        }
    elif reference == INT_OR_STRING:
        found = {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
        }
    elif reference == POD_TEMPLATE:
        # Not spelled out: a cluster newer than we are has fields that would be cut off.
        found = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    else:
        # A condition's own rules matter in a status of ours; other types of Kubernetes are only carried.
        found = _structural(definitions().get(reference), own=False)
    if own and schema.get("description"):
        found["description"] = schema["description"]
    return found


# ---- defaults --------------------------------------------------------------------------------------


def _put_defaults(schema: Schema, kind: Kind) -> None:
    """The defaults of the kind's rules, seen by giving them an object without any."""
    before = copy.deepcopy(
        _SAMPLES.get(kind.kind, {"spec": {}} if "spec" in schema["properties"] else {})
    )
    after = copy.deepcopy(before)
    kind.rules.default(after)
    _note_defaults(schema, before, after)


def _note_defaults(schema: Schema, before: Any, after: Any) -> None:
    if isinstance(after, list):
        for index, item in enumerate(after):
            _note_defaults(schema["items"], before[index], item)
        return
    for name, value in after.items():
        inner = schema["properties"].get(name)
        if inner is None:
            continue
        if isinstance(value, dict | list):
            if name not in before:
                inner["default"] = {}
            _note_defaults(inner, before.get(name, {}), value)
        elif name not in before:
            inner["default"] = value
            if name in schema.get("required", ()):
                schema["required"].remove(name)
    if not schema.get("required", True):
        del schema["required"]


def _at(schema: Schema, path: str) -> Schema:
    """The schema at a dotted path; `[]` goes into a list's items."""
    for step in filter(None, path.split(".")):
        schema = schema["properties"][step.removesuffix("[]")]
        if step.endswith("[]"):
            schema = schema["items"]
    return schema
