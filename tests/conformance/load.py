"""A case's objects into a State, by the product's own readers."""

from __future__ import annotations

from typing import Any

import msgspec

from makeway.control.clock import parse_timestamp
from makeway.engine.policy import DEFAULT_STRATEGIES, Policy
from makeway.engine.state import State
from makeway.kinds import (
    admissioncheck,
    clusterqueue,
    cohort,
    limits,
    localqueue,
    namespace,
    resourceflavor,
    topology,
    workload,
)
from makeway.model.event import Upsert
from makeway.model.resources import amount_of
from makeway.model.workload import Workload

Case = dict[str, Any]

READERS: dict[str, Any] = {
    "namespaces": namespace.read,
    "resourceFlavors": resourceflavor.read,
    "topologies": topology.read,
    "admissionChecks": admissioncheck.read,
    "cohorts": cohort.read,
    "clusterQueues": clusterqueue.read,
    "localQueues": localqueue.read,
}


def now_of(case: Case) -> float:
    return parse_timestamp(case["now"]) if case.get("now") else 0.0


def gate(case: Case, name: str, default: bool) -> bool:
    return bool(case.get("featureGates", {}).get(name, default))


def policy_of(case: Case) -> Policy:
    config = case.get("config", {})
    fair = config.get("fairSharing", {})
    strategies = fair.get("effectivePreemptionStrategies") or DEFAULT_STRATEGIES
    return Policy(
        victims="kueue",
        quota_only=True,
        fair_sharing=bool(fair.get("enabled")),
        fair_strategies=tuple(strategies),
        fair_preempts_within_nominal=gate(case, "FairSharingPreemptWithinNominal", True),
        fair_prefers_non_borrowing=gate(case, "FairSharingPrioritizeNonBorrowing", True),
        # Kueue's zero value behaves as Creation.
        requeuing_timestamp=config.get("podsReadyRequeuingTimestamp") or "Creation",
        priority_within_cohort=gate(case, "PrioritySortingWithinCohort", True),
        preemptors_first=gate(case, "PrioritizePreemptorWorkloads", False),
        partial_admission=gate(case, "PartialAdmission", True),
        recompute_overlaps=gate(case, "RecomputeAssignmentUponPreemptionTargetsOverlap", True),
        ignore_undeclared=config.get("quotaCheckStrategy") == "IgnoreUndeclared",
    )


def read_workload(case: Case, obj: dict[str, Any]) -> Workload:
    found = workload.read(
        obj,
        priority_boost=gate(case, "PriorityBoost", False),
        reclaimable_pods=gate(case, "ReclaimablePods", True),
    )
    ranges = [
        extra
        for extra in case.get("extraObjects") or ()
        if extra["kind"] == "LimitRange"
        and extra["metadata"].get("namespace") == obj["metadata"].get("namespace")
    ]
    if ranges and not found.invalid:
        refused = limits.refusal(obj, limits.summarize(ranges))
        return msgspec.structs.replace(found, invalid=refused)
    return found


def state_of(case: Case, *, pending: bool = True) -> State:
    state = State()
    for field, read in READERS.items():
        for obj in case.get(field) or ():
            state.apply(Upsert(obj=read(obj)))
    groups = ["admitted", "pending"] if pending else ["admitted"]
    for group in groups:
        for obj in (case.get("workloads") or {}).get(group) or ():
            state.apply(Upsert(obj=read_workload(case, obj)))
    return state


def amounts(quantities: dict[str, Any] | None) -> dict[str, int]:
    return {name: amount_of(name, quantity) for name, quantity in (quantities or {}).items()}


def differ(what: str, want: object, got: object) -> list[str]:
    return [] if want == got else [f"{what}: want {want!r}, got {got!r}"]
