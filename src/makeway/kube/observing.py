"""What happens to workloads, for the metrics that count it: their end, their pods becoming ready, evictions and how long they take.

Read from the conditions of a Workload before and after a change. What was so when we started to watch happened before, and was
counted by whoever decided then.
"""

from __future__ import annotations

from makeway.control.metrics import Metrics
from makeway.kinds import conditions
from makeway.kinds.metadata import Json, Object, created_at, namespace, spec, status
from makeway.kube import standing


class Observer:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def note(self, kind: str, _key: str, before: Object | None, after: Object | None) -> None:
        if kind != "Workload" or before is None or after is None or before is after:
            return
        queue = standing.cluster_queue(after) or standing.cluster_queue(before)
        door = f"{namespace(after)}/{spec(after).get('queueName') or ''}"
        if not queue:
            return
        if standing.finished(after) and not standing.finished(before):
            self._metrics.count("finished_workloads_total", queue, door)
        if _became(standing.PODS_READY, before, after):
            self._note_ready(after, queue, door)
        if _became(standing.EVICTED, before, after):
            self._note_evicted(before, after, queue, door)
        if standing.evicted(before) and not standing.has_quota(after):
            self._note_released(before, after, queue)

    def _note_ready(self, workload: Json, queue: str, door: str) -> None:
        ready = conditions.since(workload, standing.PODS_READY) or 0.0
        queued = conditions.since(workload, standing.REQUEUED) or created_at(workload)
        self._metrics.wait("ready_wait_time_seconds", ready - queued, queue, door)
        admitted = conditions.since(workload, standing.ADMITTED)
        if admitted is not None:
            waited = ready - admitted
            self._metrics.wait("admitted_until_ready_wait_time_seconds", waited, queue, door)

    def _note_evicted(self, before: Json, after: Json, queue: str, door: str) -> None:
        reason = conditions.reason(after, standing.EVICTED)
        if reason != "Preempted":  # those are counted with the plan that asks for them
            self._metrics.count("evicted_workloads_total", queue, door, reason=reason)
        if _times_evicted(after, reason) <= 1:
            self._metrics.count("evicted_workloads_once_total", queue, reason=reason)
        evicted = conditions.since(after, standing.EVICTED)
        ready = conditions.since(before, standing.PODS_READY)
        if conditions.is_true(before, standing.PODS_READY) and evicted and ready:
            self._metrics.wait(
                "pods_ready_to_evicted_time_seconds", evicted - ready, queue, reason=reason
            )

    def _note_released(self, before: Json, after: Json, queue: str) -> None:
        evicted = conditions.since(before, standing.EVICTED)
        released = conditions.since(after, standing.QUOTA_RESERVED)
        if evicted is not None and released is not None:
            reason = conditions.reason(before, standing.EVICTED)
            self._metrics.wait(
                "workload_eviction_latency_seconds", released - evicted, queue, reason=reason
            )


def _became(kind: str, before: Json, after: Json) -> bool:
    return conditions.is_true(after, kind) and not conditions.is_true(before, kind)


def _times_evicted(workload: Json, reason: str) -> int:
    told = (status(workload).get("schedulingStats") or {}).get("evictions") or []
    return sum(int(one.get("count") or 0) for one in told if one.get("reason") == reason)
