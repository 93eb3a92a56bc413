"""The metric families of Kueue 0.19 and their labels (`replica_role`, which all have, aside): who has dashboards knows these."""

from __future__ import annotations

_QUEUE = ("cluster_queue",)
_CLASS = ("cluster_queue", "priority_class")
_EVICTED = ("cluster_queue", "reason", "underlying_cause", "priority_class")
_RESOURCE = ("cohort", "cluster_queue", "flavor", "resource")

FAMILIES: dict[str, tuple[str, ...]] = {
    "kueue_admission_attempts_total": ("result",),
    "kueue_admission_attempt_duration_seconds": ("result",),
    "kueue_admission_cycle_preemption_skips": _QUEUE,
    "kueue_preemption_target_recomputations_total": ("cluster_queue", "result"),
    "kueue_pending_workloads": ("cluster_queue", "status"),
    "kueue_finished_workloads": _QUEUE,
    "kueue_finished_workloads_total": _CLASS,
    "kueue_quota_reserved_workloads_total": _CLASS,
    "kueue_quota_reserved_wait_time_seconds": _CLASS,
    "kueue_admitted_workloads_total": _CLASS,
    "kueue_admission_wait_time_seconds": _CLASS,
    "kueue_admission_checks_wait_time_seconds": _CLASS,
    "kueue_ready_wait_time_seconds": _CLASS,
    "kueue_admitted_until_ready_wait_time_seconds": _CLASS,
    "kueue_evicted_workloads_total": _EVICTED,
    "kueue_evicted_workloads_once_total": _EVICTED,
    "kueue_workload_eviction_latency_seconds": ("cluster_queue", "reason"),
    "kueue_preempted_workloads_total": ("preempting_cluster_queue", "reason"),
    "kueue_reserving_active_workloads": _QUEUE,
    "kueue_admitted_active_workloads": _QUEUE,
    "kueue_cluster_queue_status": ("cluster_queue", "status"),
    "kueue_unadmitted_workloads": ("cluster_queue", "reason", "underlying_cause"),
    "kueue_cluster_queue_resource_reservation": _RESOURCE,
    "kueue_cluster_queue_resource_usage": _RESOURCE,
    "kueue_cluster_queue_resource_pending": ("cluster_queue", "resource"),
    "kueue_cluster_queue_nominal_quota": _RESOURCE,
    "kueue_cluster_queue_borrowing_limit": _RESOURCE,
    "kueue_cluster_queue_lending_limit": _RESOURCE,
    "kueue_cluster_queue_weighted_share": ("cluster_queue", "cohort"),
    "kueue_cohort_weighted_share": ("cohort",),
    "kueue_local_queue_admission_fair_sharing_usage": ("name", "namespace", "cluster_queue"),
    "kueue_cohort_subtree_quota": ("cohort", "flavor", "resource"),
    "kueue_cohort_subtree_resource_reservations": ("cohort", "flavor", "resource"),
}
