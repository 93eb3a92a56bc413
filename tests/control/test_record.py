"""A recorded run, decided again, gives the same plans to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from makeway.control.record import Recorder, replay
from makeway.engine.cycle import decide
from makeway.engine.policy import Policy, UsageOrder
from makeway.engine.state import State
from makeway.errors import UserError
from makeway.model.event import Event
from makeway.testing import Harness


def _recorded(path: Path) -> None:
    """A gang that makes a borrower and a single pod step aside, seen through the events of a Harness."""
    h = Harness()
    h.nodes(2, gpus=8)
    h.queue("research", gpus=16)
    h.submit("low", queue="research", gpus=8, priority=1)
    h.submit("pod", gpus=8, priority=1)
    h.settle()
    h.submit("train", queue="research", pods=2, gpus=8, priority=10)
    events: list[Event] = []
    fresh = h.rebuilt(shuffle=events.extend)
    recorder = Recorder(path, Policy())
    recorder.events(events)
    for now in (h.now, h.now + 1, h.now + 120):
        recorder.cycle(now, fresh.history, decide(fresh, now, Policy()))
    recorder.close()


def test_every_plan_is_the_same_to_the_byte(tmp_path: Path) -> None:
    _recorded(tmp_path / "run.jsonl")

    cycles = list(replay(tmp_path / "run.jsonl"))

    assert [cycle.same for cycle in cycles] == [True, True, True]
    assert b'"evict"' in cycles[0].recorded


def test_a_recording_holds_what_local_queues_have_used(tmp_path: Path) -> None:
    policy = Policy(usage_order=UsageOrder(half_life_s=3600.0))
    h = Harness(policy)
    h.nodes(1, gpus=8)
    h.queue("shared", gpus=8, doors={"blue": 1.0, "green": 1.0})
    h.submit("ran", queue="blue", gpus=8)
    h.settle()
    h.advance(3600)
    h.cycle()
    h.finish("ran")
    h.submit("blue-first", queue="blue", gpus=8)
    h.submit("green-later", queue="green", gpus=8)
    events: list[Event] = []
    fresh = h.rebuilt(shuffle=events.extend)
    recorder = Recorder(tmp_path / "run.jsonl", policy)
    recorder.events(events)
    recorder.cycle(h.now, fresh.history, decide(fresh, h.now, policy))
    recorder.close()

    (cycle,) = replay(tmp_path / "run.jsonl")

    assert cycle.same
    admitted = [d["workload"] for d in json.loads(cycle.decided)["decisions"] if "binds" in d]
    assert admitted == ["default/green-later"]


def test_another_decision_is_noticed(tmp_path: Path) -> None:
    _recorded(tmp_path / "run.jsonl")
    text = (tmp_path / "run.jsonl").read_text().replace('"priority":10', '"priority":0')
    (tmp_path / "run.jsonl").write_text(text)

    assert not all(cycle.same for cycle in replay(tmp_path / "run.jsonl"))


def test_a_line_that_is_no_recording_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"policy": {"victims": "kind"}}\n')

    with pytest.raises(UserError, match=r"bad\.jsonl:1: is not a line of a recording"):
        list(replay(tmp_path / "bad.jsonl"))


def test_a_state_is_rebuilt_from_nothing() -> None:
    assert decide(State(), 0.0, Policy()).decisions == ()
