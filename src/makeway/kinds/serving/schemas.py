"""Definitions of the served kinds: Kubernetes' own (a compressed extract) and ours, loaded on
first use.

Three questions are asked of them: what does OpenAPI publish, how are lists merged, and does an
object have only known fields of the right types. The last one is asked on every write, so it is
answered in C by a struct built from the definition; only an object that fails is walked in Python,
to say where and why.
"""

from __future__ import annotations

import lzma
from functools import cache
from importlib import resources
from typing import Annotated, Any

import msgspec

from makeway.kinds.serving.refusal import Obj

PREFIX = "#/components/schemas/"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

Schema = dict[str, Any]


class Definitions:
    """All definitions by name; `add` makes room for those of CustomResourceDefinitions."""

    def __init__(self) -> None:
        data = resources.files(__package__).joinpath("data")
        packed = data.joinpath("kubernetes.json.xz").read_bytes()
        self._by_name: dict[str, Schema] = msgspec.json.decode(lzma.decompress(packed))
        self._add_values(msgspec.json.decode(data.joinpath("enums.json").read_bytes()))
        from makeway.kinds.serving import job_schemas, own_schemas

        self._by_name.update(own_schemas.definitions())
        self._by_name.update(job_schemas.definitions())
        self._decoders: dict[str, msgspec.json.Decoder[Any]] = {}
        self._types: dict[str, Any] = {}

    def _add_values(self, by_definition: dict[str, dict[str, list[str]]]) -> None:
        """Which values fields may have, for whoever asks; the kinds' own rules refuse others."""
        for name, fields in by_definition.items():
            properties = self._by_name[name].get("properties") or {}
            for field, values in fields.items():
                if field in properties:
                    schema = properties[field]
                    (schema["items"] if schema.get("type") == "array" else schema)["enum"] = values

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> Schema:
        return self._by_name.get(name, {})

    def add(self, name: str, schema: Schema) -> None:
        self._by_name[name] = schema
        self._decoders.pop(name, None)
        self._types.pop(name, None)

    def resolve(self, schema: Schema) -> Schema:
        """The definition behind a reference, or the schema itself."""
        reference = schema.get("$ref")
        if reference is None:
            wrapped = schema.get("allOf")
            if wrapped and len(wrapped) == 1:
                return self.resolve(wrapped[0])
            return schema
        return self.get(reference.removeprefix(PREFIX))

    def closure(self, names: list[str]) -> dict[str, Schema]:
        found: dict[str, Schema] = {}
        waiting = [name for name in names if name in self._by_name]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = self._by_name[name]
                waiting.extend(_references(found[name]))
        return found

    # ---- known fields, right types ---------------------------------------------------------------

    def fits(self, name: str, text: bytes) -> bool:
        """Whether JSON text has only known fields of the right types (quick, says nothing about
        where).
        """
        decoder = self._decoders.get(name)
        if decoder is None:
            decoder = self._decoders[name] = msgspec.json.Decoder(self._type_of_definition(name))
        try:
            decoder.decode(text)
        except (msgspec.ValidationError, msgspec.DecodeError):
            return False
        return True

    def _type_of_definition(self, name: str) -> Any:
        known = self._types.get(name)
        if known is not None:
            return known
        schema = self.get(name)
        if "properties" not in schema:
            made = self._type(schema)
            self._types[name] = made
            return made
        # A recursive definition (JSONSchemaProps) meets itself: there any value passes, the walk
        # checks it.
        self._types[name] = Any
        fields = []
        renames = {}
        for index, (field, inner) in enumerate(schema["properties"].items()):
            attribute = f"f{index}"
            renames[attribute] = field
            fields.append((attribute, self._type(inner) | None, None))
        if name.count(".") and schema.get("x-kubernetes-group-version-kind"):
            for extra in ("apiVersion", "kind"):
                if extra not in schema["properties"]:
                    renames[f"x{extra}"] = extra
                    fields.append((f"x{extra}", str | None, None))
        made = msgspec.defstruct(
            "D" + str(len(self._types)),
            fields,
            rename=renames,
            forbid_unknown_fields=not schema.get("x-kubernetes-preserve-unknown-fields"),
        )
        self._types[name] = made
        return made

    def _type(self, schema: Schema) -> Any:
        reference = schema.get("$ref")
        if reference is None and len(schema.get("allOf") or []) == 1:
            reference = schema["allOf"][0].get("$ref")
        if reference is not None:
            name = reference.removeprefix(PREFIX)
            if name == QUANTITY:
                return str | int | float
            if name == INT_OR_STRING:
                return str | int
            return self._type_of_definition(name)
        kind = schema.get("type")
        if kind == "string":
            return str
        if kind == "boolean":
            return bool
        if kind == "integer":
            low, high = _integer_range(schema)
            return Annotated[int, msgspec.Meta(ge=low, le=high)]
        if kind == "number":
            return float
        if kind == "array":
            return list[self._type(schema.get("items") or {}) | None]  # type: ignore[misc]
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return dict[str, self._type(schema["additionalProperties"]) | None]  # type: ignore[misc]
        if kind == "object" and "properties" in schema:
            return self._inline(schema)
        return Any

    def _inline(self, schema: Schema) -> Any:
        name = f"inline.{id(schema)}"
        self._by_name[name] = schema
        try:
            return self._type_of_definition(name)
        finally:
            del self._by_name[name]

    def check(self, name: str, obj: Any, kind: str) -> tuple[list[str], str]:
        """Unknown fields (dropped from `obj`), and the first wrong type in Go's words, if any."""
        unknown: list[str] = []
        try:
            self._walk(self.get(name), obj, "", kind, unknown, top=True)
        except _WrongTypeError as wrong:
            return unknown, str(wrong)
        return unknown, ""

    def _walk(
        self,
        schema: Schema,
        value: Any,
        path: str,
        where: str,
        unknown: list[str],
        *,
        top: bool = False,
    ) -> None:
        schema = self.resolve(schema)
        if value is None or not schema:
            return
        if "oneOf" in schema:
            if not isinstance(value, str | int | float) or isinstance(value, bool):
                raise _WrongTypeError(
                    f"json: cannot unmarshal {json_name(value)} into Go struct field {where}"
                    f" of type string"
                )
            return
        kind = schema.get("type")
        _check_scalar(kind, schema, value, where)
        if kind == "array":
            for index, item in enumerate(value):
                self._walk(schema.get("items") or {}, item, f"{path}[{index}]", where, unknown)
        elif isinstance(value, dict) and "properties" in schema:
            self._walk_fields(schema, value, path, where, unknown, top=top)
        elif isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
            for key, item in value.items():
                self._walk(
                    schema["additionalProperties"],
                    item,
                    f"{path}.{key}" if path else key,
                    where,
                    unknown,
                )

    def _walk_fields(
        self, schema: Schema, value: Obj, path: str, where: str, unknown: list[str], *, top: bool
    ) -> None:
        properties = schema["properties"]
        keep = schema.get("x-kubernetes-preserve-unknown-fields")
        for key in list(value):
            inner = f"{path}.{key}" if path else key
            known = properties.get(key)
            if known is None:
                if top and key in ("apiVersion", "kind", "metadata"):
                    continue
                if not keep:
                    unknown.append(inner)
                    del value[key]
                continue
            # Go names the innermost struct that it knows, and then the path from the top.
            holder = (
                _go_name(known).rpartition(".")[2] if "$ref" in known else where.partition(".")[0]
            )
            self._walk(known, value[key], inner, f"{holder}.{inner}", unknown)

    # ---- how lists merge -------------------------------------------------------------------------

    def property(self, schema: Schema, field: str) -> Schema:
        """The schema of one field of an object, with the merge hints written beside the
        reference.
        """
        schema = self.resolve(schema)
        found: Schema = (schema.get("properties") or {}).get(field) or {}
        if not found and isinstance(schema.get("additionalProperties"), dict):
            return dict(schema["additionalProperties"])
        return found

    def items(self, schema: Schema) -> Schema:
        return dict(self.resolve(schema).get("items") or {})


_INTEGER_RANGE = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def _integer_range(schema: Schema) -> tuple[int, int]:
    return _INTEGER_RANGE.get(schema.get("format", "int64"), _INTEGER_RANGE["int64"])


class _WrongTypeError(Exception):
    pass


def _check_scalar(kind: str | None, schema: Schema, value: Any, where: str) -> None:
    def wrong(go_type: str, shown: str = "") -> _WrongTypeError:
        what = shown or json_name(value)
        return _WrongTypeError(
            f"json: cannot unmarshal {what} into Go struct field {where} of type {go_type}"
        )

    if kind == "string" and not isinstance(value, str):
        raise wrong("string")
    if kind == "boolean" and not isinstance(value, bool):
        raise wrong("bool")
    if kind == "integer":
        go_type = schema.get("format", "int64")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(go_type)
        low, high = _integer_range(schema)
        if value != int(value) or not low <= value <= high:
            raise wrong(go_type, f"number {value}")
    if kind == "number" and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise wrong("float64")
    if kind == "array" and not isinstance(value, list):
        raise wrong("[]" + _go_name(schema.get("items") or {}))
    if kind == "object" and not isinstance(value, dict):
        extra = schema.get("additionalProperties")
        raise wrong(
            f"map[string]{_go_name(extra)}" if isinstance(extra, dict) else _go_name(schema)
        )


def _go_name(schema: Schema) -> str:
    reference = schema.get("$ref")
    if reference:
        parts = str(reference).removeprefix(PREFIX).split(".")
        return ".".join(parts[-2:])
    return {"integer": "int32", "boolean": "bool", "string": "string"}.get(
        str(schema.get("type")), "object"
    )


def json_name(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
        case _:
            return "object"


def _references(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        found = [schema["$ref"].removeprefix(PREFIX)] if isinstance(schema.get("$ref"), str) else []
        for value in schema.values():
            found.extend(_references(value))
        return found
    if isinstance(schema, list):
        return [name for item in schema for name in _references(item)]
    return []


@cache
def definitions() -> Definitions:
    return Definitions()
