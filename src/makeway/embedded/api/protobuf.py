"""Protobuf request bodies, which newer kubectl sends for `kubectl create <noun>` and `auth can-i`."""

from __future__ import annotations

from typing import Any

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"


def decode(body: bytes) -> Any:
    from makeway.embedded.api.protobuf_tables import decode_message

    return decode_message(body)
