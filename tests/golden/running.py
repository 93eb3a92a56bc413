"""One situation from its first step to its last, and the report on it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.golden import facts, wanted
from tests.golden.comparing import Comparison, Outcome
from tests.golden.expected import Expected
from tests.golden.facts import Facts, Key
from tests.golden.names import RecordedNames
from tests.golden.on_cluster import ON_CLUSTER
from tests.golden.promises import broken
from tests.golden.recording import Json, Situation, Step
from tests.golden.replay import Replay, replaying


@dataclass
class Report:
    situation: str
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    plays: int = 1

    @property
    def count(self) -> Counter[str]:
        return Counter(outcome.verdict for outcome in self.outcomes)


def run(situation: Situation, promises: bool = False) -> Report:
    """A recording is one of the ways that things could go when several programs raced: what differs is played once more.

    Promises have no second chance.
    """
    logging.basicConfig(level=logging.ERROR)
    first = _play(situation, promises)
    if promises or not first.count["different"]:
        return first
    second = _play(situation, promises)
    second.plays = 2
    second.seconds += first.seconds
    return second


def _play(situation: Situation, promises: bool) -> Report:
    started = time.monotonic()
    report = Report(situation.name)
    try:
        report.outcomes = asyncio.run(_outcomes(situation, promises))
    except Exception as error:  # one broken situation must not hide the others
        logging.exception("%s could not be replayed", situation.name)
        broken = Outcome("", Key("situation", situation.name), "different", "a replay", repr(error))
        report.outcomes = [broken]
    report.seconds = time.monotonic() - started
    return report


async def _outcomes(situation: Situation, promises: bool) -> list[Outcome]:
    config = situation.configuration("least-loss" if promises else "")
    async with replaying(situation, config) as replay:
        if promises:
            return await _check_promises(situation, replay)
        if situation.program == "koordinator":
            return await _expect(situation, replay)
        return await _compare(situation, replay)


async def _check_promises(situation: Situation, replay: Replay) -> list[Outcome]:
    return [
        outcome
        for step in situation.steps
        for _ in [await replay.step(step, as_recorded=False)]
        for outcome in broken(step.name, replay)
    ]


async def _expect(situation: Situation, replay: Replay) -> list[Outcome]:
    expected = Expected(situation)
    outcomes: list[Outcome] = []
    for step in situation.steps:
        await replay.step(step)
        outcomes += expected.judge(step.name, replay)
    return outcomes


async def _compare(situation: Situation, replay: Replay) -> list[Outcome]:
    gots = [await replay.step(step) for step in situation.steps]
    recorded = replay.recorded
    comparison = Comparison(ON_CLUSTER if replay.box.backend.name == "kube" else ())
    for step, got in zip(situation.steps, gots, strict=True):
        recorded.match_nodes(step.outcome, got)
    recorded.match_pods(situation, gots)
    outcomes: list[Outcome] = []
    last: Json = {}
    for step, got in zip(situation.steps, gots, strict=True):
        outcomes += compare_step(comparison, recorded, step, got, last)
        last = got
    return outcomes


def compare_step(
    comparison: Comparison, recorded: RecordedNames, step: Step, got: Json, last: Json
) -> list[Outcome]:
    want = recorded.deep(step.outcome)
    want_objects = facts.of_objects(want)
    comparison.begin(want, got, want_objects, facts.of_objects(got))
    outcomes = comparison.facts(step.name, _commands(want), _commands(got, recorded))
    got_objects = _as_shown(want_objects, facts.of_objects(got), facts.of_objects(last))
    kinds = facts.shown_kinds(want)
    got_objects = {k: v for k, v in got_objects.items() if k.about.split()[0] in kinds}
    outcomes += comparison.facts(step.name, want_objects, got_objects)
    if not got["anew"]:
        outcomes += _events(comparison, step, want, got)
        outcomes += _order(comparison, step, want, got)
    for command, lines in (want.get("text") or {}).items():
        ours = _text_of(got, command, recorded)
        if ours is None:
            continue  # it was about a pod whose place another one has here
        outcomes += comparison.facts(
            step.name, facts.of_text(command, lines), facts.of_text(command, ours)
        )
    return outcomes


def _text_of(got: Json, command: str, recorded: RecordedNames) -> list[str] | None:
    texts: Json = {recorded.unswapped(said): lines for said, lines in got["text"].items()}
    lines: list[str] | None = texts.get(command)
    return lines


def _commands(outcome: Json, recorded: RecordedNames | None = None) -> Facts:
    found: Facts = {}
    for number, said in enumerate(outcome["commands"]):
        run = recorded.of(said["run"]) if recorded else said["run"]
        found.update(
            facts.of_command(
                number,
                run,
                said.get("exitCode"),
                said.get("stdout") or [],
                said.get("stderr") or [],
            )
        )
    return found


def _as_shown(want: Facts, got: Facts, last: Facts) -> Facts:
    """Ours, as the recording would show it: an object that did not change is only said to be unchanged,
    and a queue's spec only when it is new.
    """
    unchanged = {key.about for key in want if key.field == "unchanged"}
    with_spec = {key.about for key in want if key.field.startswith("spec.")}
    shown: Facts = {}
    for key, value in got.items():
        kind = key.about.split()[0]
        if key.about in unchanged:
            shown[Key("object", key.about, "unchanged")] = _same(got, last, key.about)
        elif not (
            kind in facts.SPEC_ONCE and key.field.startswith("spec.") and key.about not in with_spec
        ):
            shown[key] = value
    return shown


def _same(got: Facts, last: Facts, about: str) -> bool | str:
    """Whether an object is as it was before the step; one that waits may only have a newer reason to."""
    now, then = ({k: v for k, v in side.items() if k.about == about} for side in (got, last))
    changed = {key for key in {*now, *then} if now.get(key) != then.get(key)}
    still_waits = all(
        key.field == "QuotaReserved"
        and all(side.get(key, {}).get("status") == "False" for side in (now, then))
        for key in changed
    )
    return wanted.NEWER_REASON if changed and still_waits else not changed


def _events(comparison: Comparison, step: Step, want: Json, got: Json) -> list[Outcome]:
    theirs = facts.of_events(want.get("newEvents") or [])
    told = facts.of_events(got["newEvents"])
    again = [event for event in facts.of_events(got["repeatedEvents"]) if event in theirs]
    return comparison.events(step.name, theirs, list(dict.fromkeys([*told, *again])))


def _order(comparison: Comparison, step: Step, want: Json, got: Json) -> list[Outcome]:
    timeline = want.get("timeline") or []
    there, here = comparison.nodes
    theirs = facts.of_marks(facts.marks_of_timeline(timeline, comparison.being_deleted), there)
    ours = facts.of_marks(got["marks"], here)
    # Between objects only what happened on both sides has an order; who is missing is told elsewhere.
    both = {key for key in theirs if key in ours or key.field == "life"} | {
        key for key in ours if key.field == "life"
    }
    comparison.forget(iter(both))
    return comparison.facts(
        step.name,
        {key: value for key, value in theirs.items() if key in both},
        {key: value for key, value in ours.items() if key in both},
    )
