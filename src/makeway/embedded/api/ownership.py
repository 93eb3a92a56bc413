"""Who manages which fields. Filled in below, with server-side apply."""

from __future__ import annotations

from makeway.kinds.serving.kind import Kind
from makeway.kinds.serving.refusal import Obj


def note_update(kind: Kind, old: Obj, new: Obj, manager: str, subresource: str, now: float) -> None:
    """Move the ownership of changed fields to who changed them."""
