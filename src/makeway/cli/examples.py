"""Where the example files are: inside an installed makeway, or at the root of a clone."""

from __future__ import annotations

from pathlib import Path

import makeway
from makeway.errors import UserError


def example(name: str) -> Path:
    package = Path(makeway.__file__).parent
    for root in (package / "examples", package.parent.parent / "examples"):
        if (root / name).is_dir():
            return root / name
    raise UserError(
        f"the example {name} is not installed here.",
        hint="It is in the folder examples/ of a clone.",
    )
