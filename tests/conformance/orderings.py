"""kinds `entryOrdering` and `candidatesOrdering`."""

from __future__ import annotations

from typing import Any

from makeway.engine.ledger import Held, Ledger
from makeway.engine.ordering import entry_key
from makeway.engine.victims.candidates import Candidates, Request, Source
from makeway.model.queue import PreemptionPolicy
from makeway.model.workload import Workload, WorkloadId
from tests.conformance.load import differ, now_of, policy_of, read_workload

Case = dict[str, Any]


def check_entries(case: Case) -> list[str]:
    policy = policy_of(case)
    keyed = []
    for entry in case["entries"]:
        workload = read_workload(case, entry["workload"])
        key = entry_key(
            workload,
            policy,
            borrowing=entry["borrowing"],
            second_pass=workload.admission is not None,
            preemptor=entry["isPreemptor"],
        )
        keyed.append((key, workload.name))
    return differ("order", case["want"]["order"], [name for _, name in sorted(keyed)])


ANY = ("flavor", "resource")  # what all candidates use, and the preemptor lacks


class Usage:
    """What the case says that local queues have used; in every queue of the case it counts."""

    def __init__(self, by_door: dict[str, float]) -> None:
        self._by_door = by_door

    def applies_to(self, queue: str) -> bool:
        return bool(self._by_door)

    def of(self, door: str) -> float:
        return self._by_door.get(door, 0.0)


def check_candidates(case: Case) -> list[str]:
    """The candidates hold quota in a ledger, and are asked as a search asks them."""
    own = case["preemptorClusterQueue"]
    ledger, usage = Ledger(), {}
    for item in case["candidates"]:
        workload = read_workload(case, item["workload"])
        ledger.reserve(Held(workload, item["clusterQueue"], {ANY: 1}))
        if item.get("localQueueFSUsage") is not None:
            usage[workload.door] = float(item["localQueueFSUsage"])
    request = Request(
        workload=Workload(id=WorkloadId("preemptor")),
        queue=own,
        usage={ANY: 1},
        need=frozenset({ANY}),
        preemption=PreemptionPolicy(within_queue="LowerPriority", reclaim="Any"),
        policy=policy_of(case),
        now=now_of(case),
        used=Usage(usage),
    )
    queues = dict.fromkeys([item["clusterQueue"] for item in case["candidates"]])
    sources = {name: Source(ledger, request, ledger.queue(name), "Any") for name in queues}
    same = [sources.pop(own)] if own in sources else []
    asked = Candidates([], list(sources.values()), same)
    return differ("order", case["want"]["order"], [c.held.workload.name for c in asked])
