"""What people see: sentences, tables and progress on a terminal; JSON for programs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec


class Output:
    """Chosen once, from the command line: sentences or JSON, colour or not."""

    def __init__(self) -> None:
        self.as_json = False
        self.verbose = False
        self.log_format = "text"
        self._silent = False

    @contextlib.contextmanager
    def silenced(self) -> Iterator[None]:
        """For a command that is a step of another: its outcome is not the answer."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def say(self, sentence: str) -> None:
        """For people only."""
        if not self.as_json:
            print(sentence, flush=True)

    def result(self, data: Any, sentence: str | None = None) -> None:
        """The outcome of a command, in the form that was asked for."""
        if self._silent:
            return
        if self.as_json:
            sys.stdout.buffer.write(
                msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"
            )
            sys.stdout.flush()
        elif sentence is not None:
            print(sentence, flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as kubectl prints them."""
        widths = [max([len(c), *(len(row[i]) for row in rows)]) for i, c in enumerate(columns)]
        for row in (columns, *rows):
            print("   ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())

    def complain(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def progress(self, sentence: str) -> Iterator[None]:
        """Shows that a wait is a wait; quiet where nobody looks."""
        if self.as_json or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console  # 40 ms that most commands do not need

        with Console(stderr=True).status(sentence):
            yield


out = Output()
