"""The log of a makeway in the background stays short: past a size it is set aside once, and begun anew.

Its processes hold the file open for appending, so it is emptied in place rather than renamed; what is written between the copy and that
is lost, which a log can bear.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

MOST_BYTES = 10 * 1024 * 1024
_LOOK_EVERY_S = 60.0


def shorten(log: Path, most_bytes: int = MOST_BYTES) -> None:
    if not log.exists() or log.stat().st_size <= most_bytes:
        return
    aside = log.with_name(f"{log.name}.1")
    shutil.copyfile(log, aside)
    aside.chmod(0o600)
    os.truncate(log, 0)


async def keep_short(log: Path) -> None:
    while True:
        shorten(log)
        await asyncio.sleep(_LOOK_EVERY_S)
