"""What the path of a request means."""

from __future__ import annotations

from dataclasses import dataclass

from makeway.kinds.serving.kind import Kind, Version


@dataclass(frozen=True, slots=True)
class Target:
    """A kind in a version, one object of it or all, and maybe a part of it."""

    kind: Kind
    version: Version
    namespace: str = ""
    name: str = ""
    subresource: str = ""
