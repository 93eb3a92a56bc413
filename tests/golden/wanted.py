"""The differences that are wanted: general rules, each with its reason. No rule names a situation.

A rule looks at the smallest part in which two facts differ: what the fact is about, the recorded value and ours.
The first rule that applies gives the reason; a part to which none applies is a difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.golden.facts import Facts, Key

ABSENT = "(nothing)"

# Reasons of QuotaReserved=False and of the events that go with it.
COARSE = {"Pending", "Inadmissible", "Waiting"}
GRANULAR = {
    "ExceedsMaxQuota",
    "Misconfigured",
    "NoMatchingFlavor",
    "PendingEvaluation",
    "Suspended",
    "WaitingForNodes",
    "WaitingForPodsReady",
    "WaitingForPreemptedWorkloads",
    "WaitingForQuota",
}


class Context(NamedTuple):
    """All facts of the step, for rules that have to look around."""

    want: Facts
    got: Facts


class Rule(NamedTuple):
    why: str
    applies: Callable[[Key, str, Any, Any, Context], bool]


def reason(key: Key, path: str, want: Any, got: Any, context: Context) -> str:
    """Why this difference is wanted, or nothing."""
    return next((rule.why for rule in RULES if rule.applies(key, path, want, got, context)), "")


def same_granular(want: str, got: str) -> bool:
    return want in COARSE and got in GRANULAR


def _granular_reason(_key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    """The same sentence under a more telling reason: in a condition, an event or a line of text."""
    if not isinstance(want, str) or not isinstance(got, str):
        return False
    if same_granular(want, got):
        return True
    ours = re.sub(r"\b(?:" + "|".join(sorted(GRANULAR)) + r")\b", "Pending", got)
    theirs = re.sub(r"\b(?:" + "|".join(sorted(COARSE)) + r")\b", "Pending", want)
    return ours == theirs


NO_RESERVATION = "The workload has no reservation"


def _not_admitted_yet(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    """With the granular reasons comes the condition Admitted=False, and the column that shows it."""
    if want == ABSENT and isinstance(got, dict):
        return key.field == "Admitted" and got.get("message") == NO_RESERVATION
    if want == ABSENT and isinstance(got, str):
        return got.startswith("Type: Admitted; Status: False; ") and NO_RESERVATION in got
    if key.sort == "row" and "workloads" in key.about and isinstance(want, str):
        return want.split() == [word for word in str(got).split() if word != "False"]
    return False


PREEMPTION = re.compile(
    r"Preempted (?:to accommodate|workload|by pod)|preempting to accommodate|Pending the preemption of"
)


def _longer_preemption_message(
    _key: Key, _path: str, want: Any, got: Any, context: Context
) -> bool:
    if not isinstance(want, str) or not isinstance(got, str) or not PREEMPTION.search(want):
        return False
    return got != want and got.startswith(want.rstrip("."))


def _silent_in_kueue(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    if want != ABSENT or not isinstance(got, dict):
        return False
    if key.sort == "condition" and key.field == "QuotaReserved":
        return bool(got.get("status") == "False" and got.get("message"))
    return key.sort == "event" and got.get("type") == "Warning" and got.get("reason") in GRANULAR


def _own_annotation(_key: Key, path: str, want: Any, got: Any, _context: Context) -> bool:
    text = f"{path} {got}"
    return want == ABSENT and bool(re.search(r"(?:^|[. ])makeway\.dev/", text))


def _attempt_in_between(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    """A cycle here goes on until nothing changes: only its end is told, not each attempt of a loop."""
    told = want.get("note", "") if isinstance(want, dict) else want
    return got == ABSENT and isinstance(told, str) and "no longer fits after processing" in told


RULES = (
    Rule(
        "Reasons are told in Kueue's granular form (its own default from 0.20 on):"
        " WaitingForQuota, not Pending.",
        _granular_reason,
    ),
    Rule(
        "In the granular form a workload that waits says Admitted=False from the beginning.",
        _not_admitted_yet,
    ),
    Rule(
        "A preemption message begins as recorded and goes on with the preemptor's name,"
        " the priorities and the loss.",
        _longer_preemption_message,
    ),
    Rule(
        "Where Kueue is silent (an equal workload that was skipped, an unknown priority class)"
        " whoever waits is told why.",
        _silent_in_kueue,
    ),
    Rule(
        "What makeway has to remember beyond Kueue's fields stands in annotations of its own.",
        _own_annotation,
    ),
    Rule(
        "A cycle here runs until nothing changes; only its end is told, not the attempts in between.",
        _attempt_in_between,
    ),
)
