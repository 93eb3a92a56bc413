"""Facts against facts: equal, wanted different, different.

A fact counts in the step in which it appears or changes, on either side; what stays as it was is not
counted again. Where a recorded uid's owner is not known, it takes the first of ours that stands in its place and has to
keep to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from tests.golden import facts, wanted
from tests.golden.apart import ABSENT, Apart
from tests.golden.facts import Event, Facts, Key
from tests.golden.recording import Json

UNKNOWN_UID = re.compile(r"<uid:\d+>")

Verdict = Literal["equal", "wanted", "different"]


class Outcome(NamedTuple):
    step: str
    key: Key
    verdict: Verdict
    want: Any = None
    got: Any = None
    why: str = ""


class Leaf(NamedTuple):
    """The smallest part in which two facts differ."""

    path: str
    want: Any
    got: Any


class Comparison:
    """One situation, step by step."""

    def __init__(self, more: Sequence[wanted.Rule] = ()) -> None:
        self._more = more
        self._uids: dict[str, str] = {}
        self._before: dict[Key, tuple[Any, Any]] = {}
        self._key, self._context = Key("", ""), wanted.Context()
        self._told: set[Event] = set()  # all that we said in steps before
        self._standing = wanted.Context()
        self._want: Facts = {}
        self.apart = Apart()
        # Where each pod was last, there and here; also of those that are gone.
        self.nodes: tuple[dict[str, str], dict[str, str]] = ({}, {})
        self.being_deleted: set[str] = set()  # pods on the recorded side, over the steps

    def begin(self, want: Json, got: Json, want_objects: Facts, got_objects: Facts) -> None:
        """A step's outcomes on both sides, for the rules that look around them."""
        self.apart.step(want, got)
        same = {key.about for key in want_objects if key.field == "unchanged"}
        kept = {key: value for key, value in self._want.items() if key.about in same}
        self._want = {**kept, **want_objects}
        for nodes, objects in zip(self.nodes, (want_objects, got_objects), strict=True):
            nodes |= {k.about: v for k, v in objects.items() if k.field == "spec.nodeName"}
        self._standing = wanted.Context(
            apart=self.apart,
            told=self._told,
            want=self._want,
            got=got_objects,
            events=facts.of_events(want.get("newEvents") or []),
            more=self._more,
        )

    def facts(self, step: str, want: Facts, got: Facts) -> list[Outcome]:
        outcomes = []
        context = self._standing
        if any(key.sort == "command" for key in want):
            context = context._replace(want={**context.want, **want})
        for key in [*want, *(key for key in got if key not in want)]:
            pair = (want.get(key, ABSENT), got.get(key, ABSENT))
            if self._before.get(key) == pair and key.sort != "command":
                continue
            self._before[key] = pair
            outcomes.append(self._judge(step, key, *pair, context))
        return outcomes

    def forget(self, keys: Iterator[Key]) -> None:
        for key in list(keys):
            self._before.pop(key, None)

    def events(self, step: str, want: list[Event], got: list[Event]) -> list[Outcome]:
        outcomes = [
            self._judge(
                step,
                Key("event", (one or other or _NOBODY).about),
                one._asdict() if one else ABSENT,
                other._asdict() if other else ABSENT,
                self._standing,
            )
            for one, other in self._paired(want, got)
        ]
        self._told = self._told | set(got)
        return outcomes

    # ---- pairs of events

    def _paired(
        self, want: list[Event], got: list[Event]
    ) -> Iterator[tuple[Event | None, Event | None]]:
        left = list(got)
        unmatched: list[Event] = []
        for event in want:
            same = next((o for o in left if not self.leaves(event._asdict(), o._asdict())), None)
            if same is None:
                unmatched.append(event)
                continue
            left.remove(same)
            yield event, same
        yield from self._alike(unmatched, left, _same_note)
        for event in [e for e in unmatched if self._alone(e._asdict(), ABSENT)]:
            unmatched.remove(event)
            yield event, None
        for event in [e for e in left if self._alone(ABSENT, e._asdict())]:
            left.remove(event)
            yield None, event
        yield from self._alike(unmatched, left, _same_reason)
        for event in unmatched:
            yield event, None
        for event in left:
            yield None, event

    def _alike(
        self, unmatched: list[Event], left: list[Event], likeness: Callable[[Event, Event], bool]
    ) -> Iterator[tuple[Event, Event]]:
        for event in list(unmatched):
            like = next((o for o in left if likeness(event, o)), None)
            if like is not None:
                unmatched.remove(event)
                left.remove(like)
                yield event, like

    def _alone(self, want: Any, got: Any) -> bool:
        """Whether an event that only one side has is wanted so."""
        about = (got if want == ABSENT else want)["about"]
        return bool(wanted.reason(Key("event", about), "", want, got, self._standing))

    # ---- one fact

    def _judge(self, step: str, key: Key, want: Any, got: Any, context: wanted.Context) -> Outcome:
        self._key, self._context = key, context
        leaves = self.leaves(want, got)
        if not leaves:
            return Outcome(step, key, "equal")
        reasons = [wanted.reason(key, leaf.path, leaf.want, leaf.got, context) for leaf in leaves]
        if all(reasons):
            return Outcome(step, key, "wanted", want, got, str(reasons[0]))
        # Only what nobody wanted is worth showing.
        unwanted = [leaf for leaf, reason in zip(leaves, reasons, strict=True) if not reason]
        return Outcome(step, key, "different", _shown(unwanted, 1), _shown(unwanted, 2))

    def leaves(self, want: Any, got: Any, path: str = "") -> list[Leaf]:
        if isinstance(want, dict) and isinstance(got, dict):
            fields = [*want, *(field for field in got if field not in want)]
            return [
                leaf
                for field in fields
                for leaf in self.leaves(
                    want.get(field, ABSENT), got.get(field, ABSENT), f"{path}.{field}"
                )
            ]
        if isinstance(want, list | tuple) and isinstance(got, list | tuple):
            return self._lines(list(want), list(got), path)
        if isinstance(want, str) and isinstance(got, str):
            want = self._resolved(want, got)
        return [] if want == got else [Leaf(path, want, got)]

    def _lines(self, want: list[Any], got: list[Any], path: str) -> list[Leaf]:
        """Lines that are on one side only, each beside the one that it most likely stands for."""
        missing = list(want)
        more = []
        for line in got:
            same = next((w for w in missing if not self.leaves(w, line)), None)
            if same is None:
                more.append(line)
            else:
                missing.remove(same)
        found = []
        for line in missing:
            like = self._counterpart(line, more)
            if like != ABSENT:
                more.remove(like)
            found += self.leaves(line, like, f"{path}[]")
        return found + [Leaf(f"{path}[]", ABSENT, line) for line in more]

    def _counterpart(self, line: Any, more: list[Any]) -> Any:
        """The line that says the same otherwise; none where saying nothing is wanted; else the one that begins alike."""
        if not isinstance(line, str):
            return more[0] if more else ABSENT
        texts = [other for other in more if isinstance(other, str)]
        for other in texts:
            if self._wanted(self._resolved(line, other), other):
                return other
        if self._wanted(line, ABSENT):
            return ABSENT
        begins = line.split()[:3]
        return next((other for other in texts if other.split()[:3] == begins), ABSENT)

    def _wanted(self, want: str, got: str) -> bool:
        return bool(wanted.reason(self._key, "", want, got, self._context))

    def _resolved(self, want: str, got: str) -> str:
        """The recorded text with our uids, where the two begin alike."""
        want = UNKNOWN_UID.sub(lambda m: self._uids.get(m.group(), m.group()), want)
        unknown = UNKNOWN_UID.findall(want)
        if not unknown:
            return want
        pattern = "(<uid [^>]*>+)".join(map(re.escape, UNKNOWN_UID.split(want)))
        found = re.match(pattern, got)
        if not found:
            return want
        self._uids.update(zip(unknown, found.groups(), strict=True))
        return UNKNOWN_UID.sub(lambda m: self._uids[m.group()], want)


_NOBODY = Event("", "", "", "", "", "")


def _same_note(one: Event, other: Event) -> bool:
    return one.about == other.about and one.note == other.note


def _same_reason(one: Event, other: Event) -> bool:
    return one.about == other.about and (
        one.reason == other.reason or wanted.same_granular(one.reason, other.reason)
    )


def _shown(leaves: list[Leaf], side: int) -> str:
    return "; ".join(f"{leaf.path.lstrip('.')} {leaf[side]}".strip() for leaf in leaves[:4])
