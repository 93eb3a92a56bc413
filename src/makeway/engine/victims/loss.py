"""What an eviction costs: GPUs x (work since the last save + time to restart), in GPU-seconds.

CPU cores count as a fraction of a GPU where no GPU is involved. A gang's last save is its oldest member's, because it restarts
from what all of them have; work before a pod's own start does not count. See docs/explanation/loss.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import median

from makeway.model.resources import CPU, FrozenAmounts, is_accelerator
from makeway.model.workload import (
    SAVE_MARGIN_S,
    Checkpoint,
    Pod,
    PodShape,
    Workload,
)

CORES_PER_GPU = 16.0  # a core is worth a 16th of a GPU unless configured otherwise
_ENOUGH_TO_BELIEVE = 3


def weight(shape: PodShape, cores_per_gpu: float = CORES_PER_GPU) -> float:
    """One pod's worth in GPUs."""
    return _weight(shape.requests, cores_per_gpu)


@lru_cache(maxsize=4096)
def _weight(requests: FrozenAmounts, cores_per_gpu: float) -> float:
    gpus = sum(amount for resource, amount in requests if is_accelerator(resource))
    if gpus:
        return float(gpus)
    millicores = sum(amount for resource, amount in requests if resource == CPU)
    return millicores / 1000 / cores_per_gpu


def loss_of(
    workload: Workload,
    pods: Sequence[Pod],
    now: float,
    *,
    usual_interval_s: float | None = None,
    save_s: float | None = None,
    cores_per_gpu: float = CORES_PER_GPU,
) -> float:
    """GPU-seconds thrown away when these pods of the workload are stopped now.

    `usual_interval_s`: how often the others of its queue save, for who says nothing. `save_s`: how long its saves took when it
    was stopped before.
    """
    running = [pod for pod in pods if pod.started_at is not None and pod.phase == "Running"]
    if not running:
        return 0.0
    if len(running) == 1:
        pod = running[0]
        facts = _facts(workload, pod)
        lost = _since_save(facts, pod, now, usual_interval_s, save_s)
        return weight(pod.shape, cores_per_gpu) * (lost + _restart(facts, pod))
    unsaved = [
        _since_save(_facts(workload, pod), pod, now, usual_interval_s, save_s) for pod in running
    ]
    together = max(unsaved) if workload.gang is not None else None
    total = 0.0
    for pod, own in zip(running, unsaved, strict=True):
        age = max(0.0, now - (pod.started_at or now))
        lost = min(age, together) if together is not None else own
        restart = _restart(_facts(workload, pod), pod)
        total += weight(pod.shape, cores_per_gpu) * (lost + restart)
    return total


def notice_of(workload: Workload, pods: Iterable[Pod], max_notice_s: float = 3600.0) -> float:
    """How long the victim has to save: the longest grace, or its save time and a little more."""
    longest = 0.0
    for pod in pods:
        saves = _facts(workload, pod).on_term_s
        longest = max(
            longest,
            pod.grace_s,
            min(saves + SAVE_MARGIN_S, max_notice_s) if saves is not None else 0.0,
        )
    return longest


def usual_interval(workloads: Iterable[Workload]) -> float | None:
    """The median save interval that a queue's workloads declare, where enough of them do."""
    declared = [w.checkpoint.every_s for w in workloads if w.checkpoint.every_s is not None]
    return median(declared) if len(declared) >= _ENOUGH_TO_BELIEVE else None


class Intervals:
    """How often the workloads of each queue say they save; worked out when first asked for."""

    def __init__(self, workloads: Iterable[Workload]) -> None:
        self._workloads = workloads
        self._by_queue: dict[str, float | None] | None = None

    def of(self, workload: Workload) -> float | None:
        if workload.admission is None:
            return None
        if self._by_queue is None:
            members: dict[str, list[Workload]] = {}
            for other in self._workloads:
                if other.admission is not None:
                    members.setdefault(other.admission.queue, []).append(other)
            self._by_queue = {queue: usual_interval(found) for queue, found in members.items()}
        return self._by_queue.get(workload.admission.queue)


def _facts(workload: Workload, pod: Pod) -> Checkpoint:
    return pod.checkpoint or workload.checkpoint


def _restart(facts: Checkpoint, pod: Pod) -> float:
    """As long as its last start took, where that was seen; else what its owner says."""
    return facts.restart_s if pod.warmup_s is None else pod.warmup_s


def _saves_in_time(facts: Checkpoint, pod: Pod, save_s: float | None) -> bool:
    """Whether its save fits its grace. A save that took all of it before was cut off."""
    if facts.on_term_s is None:
        return False
    return pod.grace_s >= facts.on_term_s if save_s is None else pod.grace_s > save_s


def _since_save(
    facts: Checkpoint, pod: Pod, now: float, usual_interval_s: float | None, save_s: float | None
) -> float:
    """Seconds of this pod's work that are not saved."""
    started = pod.started_at if pod.started_at is not None else now
    age = max(0.0, now - started)
    if _saves_in_time(facts, pod, save_s):
        return 0.0
    since = age
    if facts.last_at is not None:
        since = min(age, max(0.0, now - facts.last_at))
    if facts.every_s:
        since = min(since, age % facts.every_s)
    elif facts.last_at is None and usual_interval_s is not None:
        since = min(since, usual_interval_s)
    return since
