"""Completion indexes of Indexed Jobs, and their short text form: `0,2-4,7`."""

from __future__ import annotations

from collections.abc import Iterable

from makeway.client.resource import Object

INDEX = "batch.kubernetes.io/job-completion-index"


def index_of(pod: Object) -> int | None:
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdigit() else None


def parse_indexes(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def format_indexes(indexes: Iterable[int]) -> str:
    """Runs of three or more are written as a range, two neighbours as `1,2`."""
    parts: list[str] = []
    for first, last in _runs(sorted(indexes)):
        if last - first >= 2:
            parts.append(f"{first}-{last}")
        else:
            parts += [str(index) for index in range(first, last + 1)]
    return ",".join(parts)


def _runs(ordered: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for index in ordered:
        if runs and index == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return runs
