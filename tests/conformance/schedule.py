"""kind `schedule`: one round of `decide`, compared on everything that the table says."""

from __future__ import annotations

from typing import Any

import msgspec

from makeway.control import explain
from makeway.engine.assume import assume
from makeway.engine.cycle import decide
from makeway.engine.state import State
from makeway.model.decision import Admit, Plan
from makeway.model.workload import Admission
from tests.conformance.load import amounts, differ, now_of, policy_of, state_of
from tests.conformance.statuses import check_conditions

Case = dict[str, Any]


def check(case: Case) -> list[str]:
    state, now = state_of(case), now_of(case)
    plan = decide(state, now, policy_of(case), rounds=1)
    if case.get("injectedAdmissionError"):
        plan = _unwritten(plan)
    want = case["want"]
    inputs = [obj for group in case["workloads"].values() for obj in group]
    problems = [
        *_check_victims(want, plan),
        *_check_reasons(want, plan),
        *_check_skips(want, plan),
        *_check_events(want, explain.events(plan, state, now)),
        *check_conditions(want.get("workloads"), inputs, plan, state),
    ]
    assume(state, plan, now)
    return [*problems, *_check_admissions(want, state, plan), *_check_lines(want, state)]


def _unwritten(plan: Plan) -> Plan:
    """The API refused to write the admissions: nobody was admitted."""
    kept = tuple(d for d in plan.decisions if not isinstance(d, Admit))
    return msgspec.structs.replace(plan, decisions=kept)


def _check_victims(want: Case, plan: Plan) -> list[str]:
    wanted = sorted((v["workload"], v["reason"]) for v in want["preempted"])
    got = sorted((e.workload, e.reason.rule) for e in plan.evicts if not e.already)
    return differ("victims", wanted, got)


def _check_reasons(want: Case, plan: Plan) -> list[str]:
    wanted = {k: (v["reason"], v["message"]) for k, v in (want.get("pendingReasons") or {}).items()}
    got = {str(w.workload): (w.reason.kueue, w.reason.message) for w in plan.waits}
    return differ("pending reasons", wanted, got)


def _check_skips(want: Case, plan: Plan) -> list[str]:
    wanted = want.get("skippedPreemptions")
    if wanted is None:
        return []
    return differ(
        "skipped preemptions", wanted, {q: plan.skipped_preemptions.get(q, 0) for q in wanted}
    )


def _check_events(want: Case, events: list[explain.WorkloadEvent]) -> list[str]:
    if want.get("events") is None:
        return []
    with_messages = bool(want.get("eventMessagesCompared"))
    wanted = [
        (e["workload"], e["type"], e["reason"], e.get("message", "") if with_messages else "")
        for e in want["events"]
    ]
    got = [(str(e.workload), e.type, e.reason, e.message if with_messages else "") for e in events]
    # Kueue writes admissions in the background: only the order of one workload's events is fixed.
    return differ("events", sorted(wanted, key=_workload), sorted(got, key=_workload))


def _workload(event: tuple[str, str, str, str]) -> str:
    return event[0]


def _check_admissions(want: Case, state: State, plan: Plan) -> list[str]:
    wanted = {key: _wanted_admission(obj) for key, obj in want["admitted"].items()}
    got = {
        str(key): _admission(workload.admission)
        for key, workload in state.workloads.items()
        if workload.admission is not None
    }
    new = sorted(a.workload for a in plan.admits)
    return [
        *differ("admitted", wanted, got),
        *differ("newly admitted", sorted(want["newlyAdmitted"]), new),
    ]


def _wanted_admission(obj: Case) -> object:
    return (
        obj["clusterQueue"],
        [
            (p["name"], p.get("flavors") or {}, amounts(p.get("resourceUsage")), p["count"])
            for p in obj["podSetAssignments"]
        ],
    )


def _admission(admission: Admission) -> object:
    return (
        admission.queue,
        [(a.pod_set, dict(a.flavors), dict(a.usage), a.count) for a in admission.assignments],
    )


def _check_lines(want: Case, state: State) -> list[str]:
    left = {str(q): sorted(line.active()) for q, line in state.pending.items()}
    parked = {str(q): sorted(line.parked()) for q, line in state.pending.items()}
    return [
        *differ("left", _sorted(want["left"]), {q: ids for q, ids in left.items() if ids}),
        *differ(
            "inadmissible", _sorted(want["inadmissible"]), {q: i for q, i in parked.items() if i}
        ),
    ]


def _sorted(lines: dict[str, list[str]]) -> dict[str, list[str]]:
    return {queue: sorted(ids) for queue, ids in lines.items() if ids}
