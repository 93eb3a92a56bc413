"""Case files in, outcomes out. One module per kind of case compares; no rule of the engine is repeated here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance import flavors, orderings, preemption, schedule

Case = dict[str, Any]
CHECKS: dict[str, Callable[[Case], list[str]]] = {
    "preemption": preemption.check,
    "schedule": schedule.check,
    "flavorAssigner": flavors.check,
    "entryOrdering": orderings.check_entries,
    "candidatesOrdering": orderings.check_candidates,
}


@dataclass(frozen=True)
class Outcome:
    name: str
    exotic: bool
    problems: list[str]


@dataclass(frozen=True)
class Tally:
    mainstream_passed: int = 0
    mainstream: int = 0
    exotic_passed: int = 0
    exotic: int = 0

    @staticmethod
    def of(outcomes: Iterable[Outcome]) -> Tally:
        tally = Tally()
        for outcome in outcomes:
            passed = int(not outcome.problems)
            tally += Tally(0, 0, passed, 1) if outcome.exotic else Tally(passed, 1, 0, 0)
        return tally

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.mainstream_passed + other.mainstream_passed,
            self.mainstream + other.mainstream,
            self.exotic_passed + other.exotic_passed,
            self.exotic + other.exotic,
        )

    def __str__(self) -> str:
        return (
            f"{self.mainstream_passed} of {self.mainstream} mainstream,"
            f" {self.exotic_passed} of {self.exotic} exotic"
        )


def run_directory(directory: Path) -> dict[str, list[Outcome]]:
    results = {}
    for path in sorted(directory.glob("*.json")):
        content = json.loads(path.read_text())
        if isinstance(content, dict) and content.get("cases") and content.get("kind") in CHECKS:
            results[path.name] = [run_case(content["kind"], case) for case in content["cases"]]
    return results


def run_case(kind: str, case: Case) -> Outcome:
    try:
        problems = CHECKS[kind](case)
    except Exception as error:  # a case that crashes is a failing case, and the others still run
        problems = [f"{type(error).__name__}: {error}"]
    return Outcome(case["name"], bool(case.get("exotic")), problems)
