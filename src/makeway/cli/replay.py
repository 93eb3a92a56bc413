"""`makeway replay FILE`: decide a recording again, and say whether every plan is the same to the byte."""

from __future__ import annotations

from pathlib import Path

from makeway.cli.output import out
from makeway.control.record import replay as replay_file
from makeway.errors import UserError


def replay(path: Path) -> None:
    cycles = 0
    for cycle in replay_file(path):
        cycles += 1
        if not cycle.same:
            raise UserError(
                f"cycle {cycle.number} (at {cycle.now:.3f}) decides otherwise now.\n"
                f"recorded: {cycle.recorded.decode()}\ndecided:  {cycle.decided.decode()}",
                where=str(path),
            )
    out.result(
        {"cycles": cycles, "same": True},
        f"{cycles} cycles replayed, every plan the same to the byte.",
    )
