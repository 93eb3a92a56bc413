"""Workload objects after a plan, compared with the objects of a case."""

from __future__ import annotations

from typing import Any

from makeway.control import explain
from makeway.engine.state import State
from makeway.model.decision import Plan
from makeway.model.workload import WorkloadId
from tests.conformance.load import differ

Json = dict[str, Any]


def check_conditions(
    wanted: list[Json] | None, inputs: list[Json], plan: Plan, state: State
) -> list[str]:
    written = explain.conditions(plan, state)
    before = {_key(obj): _conditions(obj) for obj in inputs}
    problems = []
    for obj in wanted or ():
        key = _key(obj)
        after = dict(before.get(key, {}))
        for condition in written.get(WorkloadId(key), ()):
            after[condition.type] = (condition.status, condition.reason, condition.message)
        problems += differ(f"conditions of {key}", _conditions(obj), after)
    return problems


def _key(obj: Json) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def _conditions(obj: Json) -> dict[str, tuple[str, str, str]]:
    found = (obj.get("status") or {}).get("conditions") or ()
    return {c["type"]: (c["status"], c["reason"], c["message"]) for c in found}
