"""Protobuf request bodies, which newer kubectl sends for `kubectl create <noun>` and `auth can-i`.

There is no way to tell such a client to send JSON instead, so bodies are decoded; answers are
always JSON, which every client takes. The table of field numbers is data
(`tools/extract_protobuf.py`). Go writes the zero values of fields that are not pointers, so those
are dropped unless the table says that zero means something.
"""

from __future__ import annotations

import base64
import lzma
import struct
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from makeway.control.clock import micro_timestamp, timestamp
from makeway.kinds.serving.refusal import Obj, bad_request

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"

Fields = dict[str, tuple[str, str, bool]]


@cache
def _table() -> dict[str, Fields]:
    packed = resources.files("makeway.kinds.serving").joinpath("data/protobuf.json.xz").read_bytes()
    return msgspec.json.decode(
        lzma.decompress(packed), type=dict[str, dict[str, tuple[str, str, bool]]]
    )


def decode(body: bytes) -> Obj:
    """A Kubernetes envelope (`k8s\\0`, type and raw message) to the object that JSON would have
    given.
    """
    if not body.startswith(_MAGIC):
        raise bad_request(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
        )
    try:
        envelope = {number: value for number, _, value in _fields(body[len(_MAGIC) :])}
        type_meta = {number: value.decode() for number, _, value in _fields(envelope.get(1, b""))}
        api_version, kind = type_meta.get(1, ""), type_meta.get(2, "")
        obj = _message(_message_name(api_version, kind), envelope.get(2, b""))
    # A field of another wire type than its number says is found out where its value is read.
    except (
        IndexError,
        TypeError,
        ValueError,
        OverflowError,
        struct.error,
        AttributeError,
    ) as error:
        raise bad_request(f"the protobuf body cannot be read: {error}") from error
    return {"apiVersion": api_version, "kind": kind, **obj}


def _message_name(api_version: str, kind: str) -> str:
    if kind == "DeleteOptions":
        return "meta/v1.DeleteOptions"
    group, _, version = api_version.rpartition("/")
    name = f"{group.partition('.')[0] or 'core'}/{version}.{kind}"
    if name not in _table():
        raise bad_request(
            f'no kind "{kind}" is registered for version "{api_version}" in protobuf; send JSON'
        )
    return name


# ---- wire format ---------------------------------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and raw value of each field."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        value: Any
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 1:
            value, at = data[at : at + 8], at + 8
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise IndexError("a field is longer than its message")
            value, at = data[at : at + size], at + size
        elif wire == 5:
            value, at = data[at : at + 4], at + 4
        else:
            raise IndexError(f"unknown wire type {wire}")
        yield number, wire, value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


# ---- messages ------------------------------------------------------------------------------------


def _message(name: str, data: bytes) -> Obj:
    fields = _table().get(name, {})
    obj: Obj = {}
    for number, _, raw in _fields(data):
        known = fields.get(str(number))
        if known is None:
            continue
        field, kind, pointer = known
        if kind.startswith("list:"):
            obj.setdefault(field, []).append(_value(kind[5:], raw))
        elif kind.startswith("map:"):
            key, value = _pair(kind[4:], raw)
            obj.setdefault(field, {})[key] = value
        elif not field:
            obj.update(_value(kind, raw))
        else:
            value = _value(kind, raw)
            if pointer or _means_something(value):
                obj[field] = value
    return obj


def _means_something(value: Any) -> bool:
    return value is not None and value not in ("", 0, False, {})


def _pair(kind: str, raw: bytes) -> tuple[str, Any]:
    parts = {number: value for number, _, value in _fields(raw)}
    return parts.get(1, b"").decode(), _value(kind, parts.get(2, b""))


def _value(kind: str, raw: Any) -> Any:
    match kind:
        case "text":
            return raw.decode()
        case "int":
            return _signed(raw)
        case "bool":
            return bool(raw)
        case "bytes":
            return base64.b64encode(raw).decode()
        case "float":
            return struct.unpack("<d", raw)[0]
        case "time" | "microtime":
            return _time(raw, micro=kind == "microtime")
        case "quantity":
            return _only_text(raw)
        case "raw":
            return _raw_json(raw)
        case "int-or-text":
            return _int_or_text(raw)
        case "duration":
            nanoseconds = next((value for number, _, value in _fields(raw) if number == 1), 0)
            return f"{_signed(nanoseconds) / 1e9:g}s"
    if kind.startswith("list:"):
        # A list inside a map or a list is a message with repeated field 1.
        return [_value(kind[5:], value) for _, _, value in _fields(raw)]
    return _message(kind, raw)


def _time(raw: bytes, *, micro: bool) -> str | None:
    parts = {number: value for number, _, value in _fields(raw)}
    if not parts:
        return None
    seconds = _signed(parts.get(1, 0)) + parts.get(2, 0) / 1e9
    return micro_timestamp(seconds) if micro else timestamp(seconds)


def _only_text(raw: bytes) -> str:
    return next((value.decode() for number, _, value in _fields(raw) if number == 1), "")


def _raw_json(raw: bytes) -> Any:
    content = next((value for number, _, value in _fields(raw) if number == 1), b"")
    return msgspec.json.decode(content) if content else None


def _int_or_text(raw: bytes) -> int | str:
    parts = {number: value for number, _, value in _fields(raw)}
    if parts.get(1, 0) == 1:
        text: str = parts.get(3, b"").decode()
        return text
    return _signed(parts.get(2, 0))
