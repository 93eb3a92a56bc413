"""When a CronJob is due: `minute hour day month weekday` as cron writes it, `@daily` and its like, and `@every 1h30m`.

Of day and weekday either is enough where both are named. Times are those of a zone, as Kubernetes has them: what a clock skips in spring
does not happen, and what it repeats in autumn happens again.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo
from typing import Final

import msgspec

_FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 6))  # fmt: skip
_NAMES: Final = {
    "month": ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    "weekday": ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}
_NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_UNITS: Final = {"h": 3600, "m": 60, "s": 1}
_HORIZON_S: Final = 5 * 366 * 86_400.0  # 29 February comes at least so often, but for 2100
_WINDOWS: Final = tuple(timedelta(hours=h) for h in (1, 24, 24 * 35, 24 * 400, 24 * 366 * 5))


class Schedule(msgspec.Struct, frozen=True):
    minutes: frozenset[int] = frozenset()
    hours: frozenset[int] = frozenset()
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    any_day: bool = True
    any_weekday: bool = True
    every_s: int = 0

    def next_after(self, time: float, zone: tzinfo) -> float | None:
        """None if it never is again."""
        if self.every_s:
            return float(int(time) + self.every_s)
        when = time - time % 60 + 60
        end = when + _HORIZON_S
        while when < end:
            at = datetime.fromtimestamp(when, zone)
            if at.month not in self.months:
                first = (at.replace(day=1) + timedelta(days=32)).replace(day=1)
                when = _midnight(first)
            elif not self._on(at):
                when = _midnight(at + timedelta(days=1))
            elif at.hour not in self.hours:
                when += (60 - at.minute) * 60
            elif at.minute not in self.minutes:
                when += 60
            else:
                return when
        return None

    def _on(self, at: datetime) -> bool:
        day, weekday = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        return (day and weekday) if self.any_day or self.any_weekday else (day or weekday)

    def last_between(self, since: float, now: float, zone: tzinfo) -> float | None:
        """The last time after `since` that is not after `now`; looked for near first, so that a long pause costs little."""
        if self.every_s:
            passed = int((now - since) // self.every_s)
            return float(int(since) + passed * self.every_s) if passed > 0 else None
        for window in _WINDOWS:
            start = max(since, now - window.total_seconds())
            last, due = None, self.next_after(start, zone)
            while due is not None and due <= now:
                last, due = due, self.next_after(due, zone)
            if last is not None or start == since:
                return last
        return None


def _midnight(day: datetime) -> float:
    return day.replace(hour=0, minute=0, fold=0).timestamp()


def parse_schedule(text: str) -> Schedule:
    """ValueError says what is wrong."""
    text = text.strip()
    every = re.fullmatch(r"@every ((?:\d+[hms])+)", text)
    if every:
        parts = re.findall(r"(\d+)([hms])", every[1])
        return Schedule(every_s=max(1, sum(int(n) * _UNITS[unit] for n, unit in parts)))
    words = _NICKNAMES.get(text, text).split()
    if text.startswith("@") and text not in _NICKNAMES:
        raise ValueError(f"unrecognized descriptor: {text}")
    if len(words) != len(_FIELDS):
        raise ValueError(
            f"expected exactly {len(_FIELDS)} fields, found {len(words)}: [{' '.join(words)}]"
        )
    minutes, hours, days, months, weekdays = (
        _field(word, *field) for word, field in zip(words, _FIELDS, strict=True)
    )
    return Schedule(
        minutes,
        hours,
        days,
        months,
        weekdays,
        any_day=words[2][0] in "*?",
        any_weekday=words[4][0] in "*?",
    )


def _field(text: str, name: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        spread, _, step = part.partition("/")
        if step and (not step.isdecimal() or int(step) == 0):
            raise ValueError(f"step of range should be a positive number: {part}")
        first, dash, last = spread.partition("-")
        if spread in ("*", "?"):
            begin, end = low, high
        else:
            begin = _number(first, name)
            end = _number(last, name) if dash else high if step else begin
        if begin < low:
            raise ValueError(f"beginning of range ({begin}) below minimum ({low}): {part}")
        if end > high:
            raise ValueError(f"end of range ({end}) above maximum ({high}): {part}")
        if begin > end:
            raise ValueError(f"beginning of range ({begin}) beyond end of range ({end}): {part}")
        found |= set(range(begin, end + 1, int(step or 1)))
    return frozenset(found)


def _number(text: str, name: str) -> int:
    names = _NAMES.get(name, ())
    if text.lower() in names:
        return names.index(text.lower()) + (name == "month")
    if not text.isdecimal():
        raise ValueError(f"failed to parse int from {text}")
    return int(text)
