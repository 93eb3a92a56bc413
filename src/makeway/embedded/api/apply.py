"""Server-side apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from makeway.embedded.api.http import Request
from makeway.embedded.api.objects import Objects
from makeway.embedded.store import Entry
from makeway.kinds.serving.kind import Context

if TYPE_CHECKING:
    from makeway.embedded.api.app import Target


def server_side_apply(
    objects: Objects, request: Request, target: Target, applied: Any, context: Context
) -> tuple[Entry, bool]:
    raise NotImplementedError
