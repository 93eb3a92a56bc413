"""Keys that wait for attention: each at most once, one worker per key at a time, with delays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable

from makeway.client import ApiError
from makeway.errors import UserError

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.2
LONGEST_RETRY_S = 60.0


class WorkQueue:
    """`add(key)` now or later; `run(work)` calls `work(key)` for each, again when it fails."""

    def __init__(self, name: str, workers: int = 16) -> None:
        self.name = name
        self._workers = workers
        self._ready: asyncio.Queue[Hashable] = asyncio.Queue()
        self._waiting: set[Hashable] = set()
        self._under_way: set[Hashable] = set()
        self._dirty: set[Hashable] = set()
        self._timers: dict[Hashable, asyncio.TimerHandle] = {}
        self._failures: dict[Hashable, int] = {}

    @property
    def idle(self) -> bool:
        """Nothing is due now; something may be due later."""
        return not self._waiting and not self._under_way

    def add(self, key: Hashable) -> None:
        if key in self._under_way:
            # Changed while being worked on: once more, afterwards.
            self._dirty.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_in(self, key: Hashable, seconds: float) -> None:
        """Look at it in so many seconds, or at the sooner time that is already set."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= when:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(when, self._ring, key)

    def _ring(self, key: Hashable) -> None:
        del self._timers[key]
        self.add(key)

    async def run(self, work: Callable[[Hashable], Awaitable[None]]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._run_one(work))

    async def _run_one(self, work: Callable[[Hashable], Awaitable[None]]) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._under_way.add(key)
            try:
                await work(key)
                self._failures.pop(key, None)
            except Exception as error:
                self._retry(key, error)
            finally:
                self._under_way.discard(key)
                if key in self._dirty:
                    self._dirty.discard(key)
                    self.add(key)

    def _retry(self, key: Hashable, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(failures - 1, 10))
        log.log(
            logging.WARNING if failures > 2 else logging.DEBUG,
            "%s %s: %s; again in %.1f s",
            self.name,
            key,
            error,
            pause,
            exc_info=not isinstance(error, ApiError | UserError),
        )
        self.add_in(key, pause)
