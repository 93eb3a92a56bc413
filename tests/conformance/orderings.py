"""kinds `entryOrdering` and `candidatesOrdering`."""

from __future__ import annotations

from typing import Any

from makeway.engine.ordering import candidate_key, entry_key
from tests.conformance.load import differ, policy_of, read_workload

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


def check_candidates(case: Case) -> list[str]:
    keyed = []
    for item in case["candidates"]:
        workload = read_workload(case, item["workload"])
        key = candidate_key(
            workload,
            own_queue=item["clusterQueue"] == case["preemptorClusterQueue"],
            local_usage=item.get("localQueueFSUsage") or 0.0,
        )
        keyed.append((key, workload.name))
    return differ("order", case["want"]["order"], [name for _, name in sorted(keyed)])
