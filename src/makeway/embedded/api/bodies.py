"""From the bytes of a request to an object with known fields of the right types, in the stored
version.
"""

from __future__ import annotations

from typing import Any

import msgspec

from makeway.embedded.api import protobuf
from makeway.embedded.api.http import Request, encode
from makeway.kinds.serving.cel.rules import has_rules
from makeway.kinds.serving.kind import Kind, Version
from makeway.kinds.serving.quantity import NotAQuantityError
from makeway.kinds.serving.refusal import Cause, Obj, Refusal, bad_request, invalid
from makeway.kinds.serving.schemas import definitions
from makeway.kinds.serving.structure import structural_causes

_decode = msgspec.json.Decoder().decode
# What comes after the parser works level by level on Python's stack; no object that people write comes near.
MAX_DEPTH = 200
# YAML can say a lot in a few bytes: what its aliases stand for is counted each time.
MAX_VALUES = 1_000_000
_VALIDATIONS = ("Strict", "Warn", "Ignore", "")


def parse(content_type: str, body: bytes) -> Any:
    """JSON, YAML or protobuf to plain values, of bounded depth and size."""
    if content_type == protobuf.CONTENT_TYPE:
        return protobuf.decode(body)
    try:
        found = _parse_yaml(body) if "yaml" in content_type else _parse_json(content_type, body)
    except RecursionError:
        raise _too_deep() from None
    if "yaml" not in content_type and body.count(b"{") + body.count(b"[") > MAX_DEPTH:
        _check_bounds(found)
    return found


def _too_deep() -> Refusal:
    return bad_request(f"the object is nested deeper than {MAX_DEPTH} levels")


def _check_bounds(found: Any) -> None:
    level, count = [found], 0
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner.extend(value.values())
            elif isinstance(value, list):
                inner.extend(value)
            if count + len(inner) > MAX_VALUES:
                raise bad_request(f"the object has more than {MAX_VALUES} values")
        if not inner:
            return
        count += len(inner)
        level = inner
    raise _too_deep()


def _parse_json(content_type: str, body: bytes) -> Any:
    if content_type not in ("application/json", "", "*/*"):
        accepted = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
        raise Refusal(
            415,
            "UnsupportedMediaType",
            f"the body of the request was in an unknown format - accepted media types include:"
            f" {accepted}",
        )
    try:
        return _decode(body)
    except msgspec.DecodeError as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from error


def _parse_yaml(body: bytes) -> Any:
    import yaml

    try:
        found = yaml.safe_load(body)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
        raise bad_request(f"error converting YAML to JSON: {error}") from error
    _check_bounds(found)
    try:
        # YAML knows more than JSON: dates become text, and what no text can hold is refused.
        return _decode(encode(found))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise bad_request(f"error converting YAML to JSON: {error}") from error


async def read_object(request: Request, kind: Kind, version: Version) -> Obj:
    """The object of a create or replace, checked and in the stored version."""
    content_type = request.content_type
    body = await request.body()
    obj = parse(content_type, body)
    if not isinstance(obj, dict):
        raise bad_request(
            f'couldn\'t get version/kind; json parse error: expected an object, got "{obj}"'
        )
    _check_type(obj, kind, version)
    text = b""
    if content_type != protobuf.CONTENT_TYPE:
        text = body if content_type in ("application/json", "") else b""
        check_fields(request, obj, kind, version, text)
    return to_storage(obj, version, text or b"null")


def _check_type(obj: Obj, kind: Kind, version: Version) -> None:
    expected = kind.api_version(version.name)
    given = obj.get("apiVersion") or expected
    if given != expected:
        raise bad_request(
            f"the API version in the data ({given}) does not match the expected API version"
            f" ({expected})"
        )
    if (obj.get("kind") or kind.kind) != kind.kind:
        raise bad_request(
            f'{obj["kind"]} in version "{version.name}" cannot be handled as a {kind.kind}'
        )


def check_fields(
    request: Request, obj: Obj, kind: Kind, version: Version, text: bytes = b""
) -> None:
    """Refuse wrong types; refuse, warn about or silently drop unknown fields, as the request
    asks.
    """
    mode = request.query.get("fieldValidation", "")
    if mode not in _VALIDATIONS:
        raise bad_request(
            f'fieldValidation: Unsupported value: "{mode}": supported values: "Ignore",'
            f' "Strict", "Warn"'
        )
    known = definitions()
    if not version.schema or version.schema not in known:
        return
    if known.fits(version.schema, text or encode(obj)):
        return
    unknown, wrong = known.check(version.schema, obj, kind.kind)
    if wrong:
        if kind.builtin:
            raise bad_request(
                f'{kind.kind} in version "{version.name}" cannot be handled as a {kind.kind}:'
                f" {wrong}"
            )
        raise _custom_type_refusal(kind, version.schema, obj, wrong)
    # Warnings are the default of the API server, so of ours.
    if unknown and mode == "Strict":
        listed = ", ".join(f'unknown field "{field}"' for field in unknown)
        raise bad_request(
            f'{kind.kind} in version "{version.name}" cannot be handled as a {kind.kind}:'
            f" strict decoding error: {listed}"
        )
    if mode != "Ignore":
        request.warnings.extend(f'unknown field "{field}"' for field in unknown)


def _custom_type_refusal(kind: Kind, schema: str, obj: Obj, wrong: str) -> Refusal:
    """A custom resource with a wrong type is invalid, where a built-in one cannot even be read."""
    metadata = obj.get("metadata")
    name = str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
    causes = structural_causes(schema, obj, has_rules=has_rules(definitions().get(schema)))
    if causes:
        return invalid(kind.kind, kind.group, name, causes)
    what, _, rest = wrong.partition(" into Go struct field ")
    field, _, go_type = rest.partition(" of type ")
    path = field.partition(".")[2]
    if "number" in what and go_type in ("int32", "int64"):
        why = f"Checked value must be of type integer with format {go_type} in {path}"
        return invalid(kind.kind, kind.group, name, [Cause("<nil>", 'Invalid value: ""', why)])
    given = what.rpartition(" ")[2]
    expected = {"int32": "integer", "int64": "integer", "bool": "boolean", "string": "string"}.get(
        go_type, "object"
    )
    if go_type.startswith("[]"):
        expected = "array"
    why = f'{path} in body must be of type {expected}: "{given}"'
    return invalid(
        kind.kind,
        kind.group,
        name,
        [Cause(path, f'Invalid value: "{given}"', why, "FieldValueTypeInvalid")],
    )


def to_storage(obj: Obj, version: Version, text: bytes = b"null") -> Obj:
    """`text` is the object's JSON where it is at hand: without a null in it there is none to look for."""
    clean = b"null" not in text
    if version.conversion is not None:
        version.conversion.to_storage(obj)
    stored: Obj = {"metadata": {}}
    for field, value in obj.items():
        # A status may say null (times of pod conditions do); anywhere else null means absent.
        if value is not None and field not in ("apiVersion", "kind"):
            stored[field] = value if clean or field == "status" else without_nulls(value)
    return stored


def quantity_refusal(kind: Kind, error: NotAQuantityError) -> Refusal:
    return bad_request(
        f'{kind.kind} in version "{kind.storage.name}" cannot be handled as a {kind.kind}: {error}'
    )


def without_nulls(value: Any) -> Any:
    """Null means absent in the API; drop it from objects that a user wrote."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value if item is not None]
    return value
