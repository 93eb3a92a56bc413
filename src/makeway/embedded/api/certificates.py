"""The API's own authority and certificate: made on first start, kept in the home, for loopback
only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from makeway.certificates import make_certificates


class Certificates(NamedTuple):
    authority: Path
    certificate: Path
    key: Path


def ensure_certificates(folder: Path, now: float) -> Certificates:
    found = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    if not all(path.exists() for path in found):
        made = make_certificates("makeway API", now, ["localhost"], ["127.0.0.1", "::1"])
        for path, content in zip(found, made, strict=True):
            write_private(path, content)
    return found


def write_private(path: Path, content: bytes) -> None:
    """Readable by its owner alone from the first byte on, and whole or not there."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    fresh.replace(path)
