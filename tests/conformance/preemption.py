"""kind `preemption`: the victims for one workload with flavors already assigned."""

from __future__ import annotations

from typing import Any

import msgspec

from makeway.engine.demand import demands
from makeway.engine.state import State
from makeway.engine.victims import kueue
from makeway.engine.victims.candidates import Request
from makeway.engine.victims.spare import Victim
from makeway.model.decision import Evict, Plan
from makeway.model.event import LocalQueue, Upsert
from makeway.model.queue import QueueName
from makeway.model.reason import Reason
from makeway.model.workload import WorkloadId
from tests.conformance.load import differ, now_of, policy_of, state_of
from tests.conformance.statuses import check_conditions

Case = dict[str, Any]


def check(case: Case) -> list[str]:
    state = state_of(case)
    _take_out(case, state)
    victims = _choose(case, state)
    want = case["want"]
    wanted = sorted((v["workload"], v["reason"]) for v in want["preempted"])
    got = sorted((str(v.held.id), v.rule) for v in victims)
    inputs = [obj for group in case["workloads"].values() for obj in group]
    return [
        *differ("victims", wanted, got),
        *differ("number of victims", want["preemptedCount"], len(victims)),
        *check_conditions(want.get("workloads"), inputs, _plan(case, state, victims), state),
    ]


def _take_out(case: Case, state: State) -> None:
    """Some fixtures give the incoming workload an admission; it holds nothing yet all the same."""
    preemptor = state.workloads[WorkloadId(case["preemptor"])]
    state.apply(Upsert(obj=msgspec.structs.replace(preemptor, admission=None)))


def _choose(case: Case, state: State) -> list[Victim]:
    queue = QueueName(case["targetClusterQueue"])
    preemptor = state.workloads[WorkloadId(case["preemptor"])]
    assigned = {p["name"]: p for p in case["assignment"]["podSets"]}
    counts = tuple(
        assigned.get(d.pod_set.name, {}).get("count", d.count) for d in demands(preemptor)
    )
    by_name = {d.pod_set.name: d for d in demands(preemptor, counts)}
    usage: dict[tuple[str, str], int] = {}
    need: set[tuple[str, str]] = set()
    for pod_set in case["assignment"]["podSets"]:
        requests = dict(by_name[pod_set["name"]].requests)
        requests["pods"] = by_name[pod_set["name"]].count
        for resource, choice in pod_set["flavors"].items():
            fr = (choice["flavor"], resource)
            usage[fr] = usage.get(fr, 0) + requests.get(resource, 0)
            if choice["mode"] == "Preempt":
                need.add(fr)
    request = Request(
        workload=preemptor,
        queue=queue,
        usage=usage,
        need=frozenset(need),
        preemption=state.queues[queue].preemption,
        policy=policy_of(case),
        now=now_of(case),
    )
    return kueue.choose(state.ledger, request)


def _plan(case: Case, state: State, victims: list[Victim]) -> Plan:
    # These tables have no local queues; the messages need to know where the preemptor wants in.
    preemptor = state.workloads[WorkloadId(case["preemptor"])]
    local = LocalQueue(
        namespace=preemptor.namespace,
        name=str(preemptor.local_queue),
        queue=QueueName(case["targetClusterQueue"]),
    )
    state.apply(Upsert(obj=local))
    return Plan(
        decisions=tuple(
            Evict(
                workload=victim.held.id,
                preemptor=preemptor.id,
                reason=Reason(kind="preempted", kueue="Preempted", rule=victim.rule),
                already=victim.held.workload.evicted_at is not None,
            )
            for victim in victims
        )
    )
