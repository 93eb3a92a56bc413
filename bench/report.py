"""What every benchmark does with its figures: a table for people, JSON for programs, exit code 1 for a missed target.

A figure is the median of several runs. `half` and `double` are the same figure at half and at twice the size, so that growth
shows; the calibration loop is fixed work, so that a slow machine shows. Figures of one core are measured in CPU time, which does
not count what other programs take of the machine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

RUNS = 5


class Row(msgspec.Struct, kw_only=True):
    figure: str
    value: float
    unit: str
    target: float | None = None
    at_least: bool = True  # False: the target is an upper limit
    half: float | None = None
    double: float | None = None

    @property
    def met(self) -> bool:
        if self.target is None:
            return True
        return self.value >= self.target if self.at_least else self.value <= self.target


def median(measure: Callable[[], float], runs: int = RUNS) -> float:
    return statistics.median(measure() for _ in range(runs))


def calibration() -> Row:
    """A loop of fixed work: about 0.1 s on a quiet machine of 2024."""

    def loop() -> float:
        started = time.process_time()
        total = 0
        for i in range(2_000_000):
            total += i & 7
        assert total == 7_000_000
        return time.process_time() - started

    return Row(figure="calibration loop", value=median(loop), unit="s", at_least=False)


def report(name: str, rows: list[Row], runs: int = RUNS) -> int:
    rows = [*rows, calibration()]
    folder = Path("build/bench")
    folder.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    document = {
        "name": name,
        "commit": commit,
        "rows": [
            {
                "figure": row.figure,
                "value": row.value,
                "unit": row.unit,
                "target": row.target,
                "met": row.met,
                "half": row.half,
                "double": row.double,
            }
            for row in rows
        ],
    }
    (folder / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
    _print(name, rows, runs)
    return 0 if all(row.met for row in rows) else 1


def _print(name: str, rows: list[Row], runs: int) -> None:
    print(f"{name}: median of {runs} runs" if runs > 1 else f"{name}: one run")
    header = ("figure", "value", "unit", "target", "met", "half the size", "twice the size")
    table = [header, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(header))]
    for line in table:
        print(
            "  "
            + "   ".join(
                cell.ljust(width) for cell, width in zip(line, widths, strict=True)
            ).rstrip()
        )


def _cells(row: Row) -> tuple[str, ...]:
    sign = ">=" if row.at_least else "<="
    target = f"{sign} {row.target:g}" if row.target is not None else ""
    met = ("yes" if row.met else "NO") if row.target is not None else ""
    return (
        row.figure,
        _number(row.value),
        row.unit,
        target,
        met,
        _number(row.half),
        _number(row.double),
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
