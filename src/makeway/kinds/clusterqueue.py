"""kueue.x-k8s.io ClusterQueue, v1beta1 and v1beta2."""

from __future__ import annotations

from typing import Any

from makeway.control.durations import duration
from makeway.errors import InvalidObject
from makeway.kinds.fields import (
    Json,
    annotations_of,
    is_terminating,
    name_of,
    one_of,
    spec_of,
    title_of,
    weight,
)
from makeway.kinds.labels import read_selector
from makeway.kinds.quotas import read_resource_groups
from makeway.model.queue import (
    CohortName,
    FlavorName,
    Fungibility,
    PreemptionPolicy,
    Queue,
    QueueCheck,
    QueueName,
)


def read(obj: Json) -> Queue:
    spec = spec_of(obj)
    cohort = spec.get("cohortName") or spec.get("cohort")  # v1beta1
    strategy = spec.get("queueingStrategy") or "BestEffortFIFO"
    scope = (spec.get("admissionScope") or {}).get("admissionMode")
    return Queue(
        name=QueueName(name_of(obj)),
        cohort=CohortName(cohort) if cohort else None,
        strategy=one_of(obj, "spec.queueingStrategy", strategy, ("BestEffortFIFO", "StrictFIFO")),
        namespace_selector=read_selector(spec.get("namespaceSelector")),
        resource_groups=read_resource_groups(obj),
        preemption=_read_preemption(obj),
        fungibility=_read_fungibility(obj),
        checks=_read_checks(spec),
        stop=one_of(
            obj,
            "spec.stopPolicy",
            spec.get("stopPolicy") or "None",
            ("None", "Hold", "HoldAndDrain"),
        ),
        weight=weight(obj),
        usage_based_fair_sharing=scope == "UsageBasedAdmissionFairSharing",
        terminating=is_terminating(obj),
        max_protection_s=_seconds(obj, "makeway.dev/max-protection"),
        reserve_after_s=_seconds(obj, "makeway.dev/reserve-after"),
        preemptions_per_day=_count(obj, "makeway.dev/preemptions-per-day"),
    )


def _read_preemption(obj: Json) -> PreemptionPolicy:
    block = spec_of(obj).get("preemption")
    if block is None:
        return PreemptionPolicy()
    borrow = block.get("borrowWithinCohort")
    path = "spec.preemption"
    # An unset word inside a present block stays "": the API server fills in Never, objects from elsewhere may not have it.
    return PreemptionPolicy(
        within_queue=one_of(
            obj,
            f"{path}.withinClusterQueue",
            block.get("withinClusterQueue") or "",
            ("", "Never", "LowerPriority", "LowerOrNewerEqualPriority"),
        ),
        reclaim=one_of(
            obj,
            f"{path}.reclaimWithinCohort",
            block.get("reclaimWithinCohort") or "",
            ("", "Never", "LowerPriority", "Any"),
        ),
        borrow="Never"
        if borrow is None
        else one_of(
            obj,
            f"{path}.borrowWithinCohort.policy",
            borrow.get("policy") or "Never",
            ("Never", "LowerPriority"),
        ),
        borrow_max_priority=None if borrow is None else borrow.get("maxPriorityThreshold"),
    )


# What v1beta1 called the same thing.
_OLD_WORDS = {"Borrow": "MayStopSearch", "Preempt": "MayStopSearch"}


def _read_fungibility(obj: Json) -> Fungibility:
    block = spec_of(obj).get("flavorFungibility") or {}
    path = "spec.flavorFungibility"

    def word(field: str, default: str) -> Any:
        value = block.get(field) or default
        return one_of(
            obj, f"{path}.{field}", _OLD_WORDS.get(value, value), ("MayStopSearch", "TryNextFlavor")
        )

    return Fungibility(
        when_can_borrow=word("whenCanBorrow", "MayStopSearch"),
        when_can_preempt=word("whenCanPreempt", "TryNextFlavor"),
        preference=one_of(
            obj,
            f"{path}.preference",
            block.get("preference") or "",
            ("", "BorrowingOverPreemption", "PreemptionOverBorrowing"),
        ),
    )


def _read_checks(spec: Json) -> tuple[QueueCheck, ...]:
    strategy = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    named = tuple(
        QueueCheck(
            name=str(check.get("name")),
            on_flavors=tuple(FlavorName(flavor) for flavor in check.get("onFlavors") or ()),
        )
        for check in strategy
    )
    return named or tuple(QueueCheck(name=str(name)) for name in spec.get("admissionChecks") or ())


def _count(obj: Json, annotation: str) -> int | None:
    text = annotations_of(obj).get(annotation)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidObject(
            f'expected a whole number of at least 1, got "{text}".',
            obj=title_of(obj),
            field=f"metadata.annotations[{annotation}]",
            hint='Write for example "3".',
        )
    return int(text)


def _seconds(obj: Json, annotation: str) -> float | None:
    text = annotations_of(obj).get(annotation)
    if text is None:
        return None
    found = duration(text)
    if found is None:
        raise InvalidObject(
            f'expected a duration, got "{text}".',
            obj=title_of(obj),
            field=f"metadata.annotations[{annotation}]",
            hint='Write for example "30m".',
        )
    return found
