"""The timeline of a demo: what happened when, to whom, why and at what cost, printed as it happens."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from typing import Any

from makeway.cli.output import out

_COLOURS = {"run": "32", "stop": "33", "end": "36", "why": "1", "plain": "", "dim": "2"}
_WHO = 12
_WIDTH = 110


class Timeline:
    def __init__(self) -> None:
        self._started = time.monotonic()
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self.steps: list[dict[str, Any]] = []

    def title(self, text: str) -> None:
        out.say(self._painted(text, "why"))
        out.say("")

    def note(self, text: str) -> None:
        """Something around the story: not a step of it."""
        self._line("", text, "dim")

    def step(self, who: str, text: str, mood: str = "plain", **facts: object) -> None:
        self.steps.append({"at": self._seconds(), "who": who, "what": text, **facts})
        self._line(who, text, mood)

    def say(self, text: str, mood: str = "plain") -> None:
        """A sentence between the steps."""
        out.say("")
        for line in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False):
            out.say(self._painted(line, mood))
        out.say("")

    def _seconds(self) -> float:
        return round(time.monotonic() - self._started, 2)

    def _line(self, who: str, text: str, mood: str) -> None:
        head = f"{self._seconds():6.1f} s  {who:<{_WHO}}"
        wrapped = textwrap.wrap(
            text, _WIDTH - len(head), break_long_words=False, break_on_hyphens=False
        )
        first, *more = wrapped or [""]
        out.say(f"{head} {self._painted(first, mood)}")
        for line in more:
            out.say(f"{'':{len(head)}} {self._painted(line, mood)}")

    def _painted(self, text: str, mood: str) -> str:
        colour = _COLOURS[mood]
        return f"\033[{colour}m{text}\033[0m" if self._colour and colour else text
