"""Cycles written to a file, and replayed to the same bytes. A bug report is a file; a fixed bug is that file in the tests.

A recording starts with an empty state: one line for the policy, then one line an event and one line a cycle, in the order in
which they happened. The engine has no clock and no chance of its own, so whoever applies the same events and decides at the same
times gets the same plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, get_args

import msgspec

from makeway.engine.cycle import decide
from makeway.engine.policy import Policy
from makeway.engine.state import State
from makeway.errors import UserError
from makeway.model.decision import Plan
from makeway.model.event import Event, Object, Remove, Upsert
from makeway.model.history import History, Past

_TYPES: dict[str, type[Object]] = {kind.__name__: kind for kind in get_args(Object)}
_encode = msgspec.json.Encoder().encode


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One of: the policy, an object as it is now, an object that is gone, a cycle."""

    policy: Policy | None = None
    upsert: str = ""
    obj: msgspec.Raw = msgspec.Raw(b"null")
    remove: str = ""
    key: str = ""
    now: float | None = None
    history: dict[str, Past] = {}
    plan: msgspec.Raw = msgspec.Raw(b"null")


class Recorder:
    def __init__(self, path: Path, policy: Policy) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._write(Line(policy=policy))

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Upsert(obj=obj):
                    self._write(Line(upsert=type(obj).__name__, obj=msgspec.Raw(_encode(obj))))
                case Remove(type=kind, key=key):
                    self._write(Line(remove=kind.__name__, key=key))

    def cycle(self, now: float, history: History, plan: Plan) -> None:
        self._write(Line(now=now, history=dict(history), plan=msgspec.Raw(_encode(plan))))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, line: Line) -> None:
        self._file.write(_encode(line) + b"\n")


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """One cycle of a recording, decided again."""

    number: int
    now: float
    recorded: bytes
    decided: bytes

    @property
    def same(self) -> bool:
        return self.recorded == self.decided


def replay(path: Path) -> Iterator[Replayed]:
    """Every cycle of the file, in order."""
    state, policy, number = State(), Policy(), 0
    for count, line in enumerate(_lines(path), start=1):
        if line.policy is not None:
            policy = line.policy
        elif line.upsert:
            state.apply(
                Upsert(obj=msgspec.json.decode(line.obj, type=_type(line.upsert, path, count)))
            )
        elif line.remove:
            state.apply(Remove(type=_type(line.remove, path, count), key=line.key))
        elif line.now is not None:
            number += 1
            state.history = line.history
            decided = _encode(decide(state, line.now, policy))
            yield Replayed(number=number, now=line.now, recorded=bytes(line.plan), decided=decided)


def _lines(path: Path) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(Line)
    try:
        with path.open("rb") as file:
            for count, text in enumerate(file, start=1):
                try:
                    yield decoder.decode(text)
                except msgspec.DecodeError as error:
                    raise UserError(
                        f"is not a line of a recording: {error}.",
                        where=f"{path}:{count}",
                        hint="Record one with: makeway up --record FILE",
                    ) from error
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}.", where=str(path)) from error


def _type(name: str, path: Path, count: int) -> type[Object]:
    if name not in _TYPES:
        raise UserError(f'no object is called "{name}".', where=f"{path}:{count}")
    return _TYPES[name]
