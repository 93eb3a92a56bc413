"""The event loop of our long-running processes: uvloop where it can be had, which halves what a call costs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any


def run(work: Coroutine[Any, Any, None]) -> None:
    # What is kept for long are API objects, which hold no cycles: looking through all of them finds nothing.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)
