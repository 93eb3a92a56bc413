"""What happened, in numbers, as Prometheus reads them.

Where the meaning is Kueue's the name is Kueue's too, so that existing dashboards go on working; what only makeway knows
(losses, notices, how hard the search was and how near to the proven optimum) has names of its own. Counters grow with every
cycle and with what happens to workloads; what stands now (who waits, who holds quota) is counted when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from makeway.control.ports import Clock
from makeway.control.standings import STANDING, Labels, standing
from makeway.engine.state import State
from makeway.model.decision import Admit, Evict, Hold, Plan
from makeway.model.workload import Admission, Workload, WorkloadId

Kind = Literal["counter", "gauge", "histogram"]

CYCLE_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)

COUNTERS: Final = {
    "kueue_admission_attempts_total": "Cycles with workloads in line, by whether at least one was admitted.",
    "kueue_quota_reserved_workloads_total": "Workloads that were given quota, by queue.",
    "kueue_admitted_workloads_total": "Workloads that were admitted, by queue.",
    "kueue_evicted_workloads_total": "Workloads told to stop, by queue and reason.",
    "kueue_evicted_workloads_once_total": "Workloads told to stop for this reason for the first time, by queue.",
    "kueue_finished_workloads_total": "Workloads that came to their end, by queue.",
    "kueue_local_queue_quota_reserved_workloads_total": "Workloads that were given quota, by local queue.",
    "kueue_local_queue_admitted_workloads_total": "Workloads that were admitted, by local queue.",
    "kueue_local_queue_evicted_workloads_total": "Workloads told to stop, by local queue and reason.",
    "kueue_local_queue_finished_workloads_total": "Workloads that came to their end, by local queue.",
    "kueue_cohort_subtree_admitted_workloads_total": "Workloads that were admitted in the queues below a cohort.",
    "kueue_preempted_workloads_total": "Workloads told to stop for another, by the queue of the other.",
    "makeway_cycles_total": "Times that the whole cluster was decided on.",
    "makeway_loss_gpu_seconds_total": "Work thrown away by evictions, by the queue that lost it.",
    "makeway_notice_seconds_total": "Time given to victims to save their work.",
    "makeway_search_steps_total": "Steps of the search for the cheapest victims.",
    "makeway_plans_proven_total": "Preemptions, by whether their loss is proven to be the least.",
    "makeway_loss_above_bound_gpu_seconds_total": "How far losses were above the proven lower bound.",
}
GAUGES: Final = {
    **STANDING,
    "makeway_leader": "1 while this replica decides.",
    "makeway_beside_kueue": "1 while Kueue runs: queued work is Kueue's, and only nodes are decided here.",
}
# Waiting, in seconds, as Kueue counts it.
WAITED_S: Final = (1.0, *(2.5 * 2**n for n in range(13)))
_WAITS: Final = {
    "quota_reserved_wait_time_seconds": "From being queued to having quota",
    "admission_wait_time_seconds": "From being queued to being admitted",
    "admission_checks_wait_time_seconds": "From having quota to being admitted, where checks are asked",
    "ready_wait_time_seconds": "From being queued until all pods are ready",
    "admitted_until_ready_wait_time_seconds": "From being admitted until all pods are ready",
}
HISTOGRAMS: Final = {
    "makeway_cycle_seconds": ("How long deciding took.", CYCLE_S),
    "kueue_admission_attempt_duration_seconds": (
        "How long deciding took with workloads in line, by whether at least one was admitted.",
        CYCLE_S,
    ),
    **{f"kueue_{name}": (f"{what}, by queue.", WAITED_S) for name, what in _WAITS.items()},
    **{
        f"kueue_local_queue_{name}": (f"{what}, by local queue.", WAITED_S)
        for name, what in _WAITS.items()
    },
    "kueue_pods_ready_to_evicted_time_seconds": (
        "From all pods being ready to being told to stop, by queue and reason.",
        WAITED_S,
    ),
    "kueue_workload_eviction_latency_seconds": (
        "From being told to stop to giving the quota back, by queue and reason.",
        WAITED_S,
    ),
}


class Histogram:
    """How many were at most so much; and all of them together."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._slots = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._sum += value
        over = len(self._bounds)
        self._slots[next((i for i, most in enumerate(self._bounds) if value <= most), over)] += 1

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        total = 0
        for most, count in zip((*self._bounds, "+Inf"), self._slots, strict=True):
            total += count
            yield f"{name}_bucket{_shown((*labels, ('le', str(most))))} {total}"
        yield f"{name}_sum{_shown(labels)} {self._sum:.6f}"
        yield f"{name}_count{_shown(labels)} {total}"


class Metrics:
    def __init__(self, clock: Clock) -> None:
        self.leads = False
        self.kueue_runs = False
        self._clock = clock
        self._counts: dict[tuple[str, Labels], float] = {}
        self._times: dict[tuple[str, Labels], Histogram] = {}
        self._state: State | None = None

    def note(self, state: State, plan: Plan, began: float) -> None:
        """After each cycle; `began` is when it started."""
        self._state = state
        self._add("makeway_cycles_total")
        took = self._clock.now() - began
        self._time("makeway_cycle_seconds", took)
        self._note_attempt(plan, took)
        for decision in plan.decisions:
            match decision:
                case Admit(admission=admission):
                    if admission is not None:
                        self._note_admission(state, decision.workload, admission, began)
                case Evict(already=False):
                    self._note_evict(state, decision)
                case Hold():
                    self._note_hold(decision)
                case _:
                    pass

    def _note_attempt(self, plan: Plan, took: float) -> None:
        """As Kueue has it, an attempt is a cycle: it looks at many, and succeeds when one is admitted."""
        if plan.admits or plan.waits:
            result = "success" if plan.admits else "inadmissible"
            self._add("kueue_admission_attempts_total", result=result)
            self._time("kueue_admission_attempt_duration_seconds", took, result=result)

    def _note_admission(
        self, state: State, workload_id: WorkloadId, admission: Admission, now: float
    ) -> None:
        """Quota comes first, and where checks have to be passed, admission comes later."""
        workload = state.workloads.get(workload_id)
        waited = now - (workload.queued_at or workload.created_at) if workload is not None else 0.0
        queue, door = str(admission.queue), _door(workload)
        if admission.reserved_at >= now:
            self.count("quota_reserved_workloads_total", queue, door)
            self.wait("quota_reserved_wait_time_seconds", waited, queue, door)
        if admission.admitted:
            self.count("admitted_workloads_total", queue, door)
            self.wait("admission_wait_time_seconds", waited, queue, door)
            node = state.ledger.tree.queues.get(admission.queue)
            for cohort in node.ancestors() if node is not None else ():
                self._add("kueue_cohort_subtree_admitted_workloads_total", cohort=cohort.name)
            if workload is not None and workload.checks:
                checked = now - admission.reserved_at
                self.wait("admission_checks_wait_time_seconds", checked, queue, door)

    def _note_evict(self, state: State, evict: Evict) -> None:
        queue = _queue_of(state, evict.workload)
        if (
            evict.preemptor
        ):  # whoever has to stop for another reason is told by its Workload, and counted there
            door = _door(state.workloads.get(evict.workload))
            why = evict.reason.kueue or "Preempted"
            self.count("evicted_workloads_total", queue, door, reason=why)
            self._add(
                "kueue_preempted_workloads_total",
                preempting_cluster_queue=_queue_of(state, evict.preemptor),
                reason=evict.reason.rule or evict.reason.kueue,
            )
        self._add("makeway_loss_gpu_seconds_total", evict.loss, cluster_queue=queue)
        self._add("makeway_notice_seconds_total", evict.notice_s)

    def count(self, what: str, queue: str, door: str = "", **labels: str) -> None:
        """One more, of a queue and of the local queue (`namespace/name`) that led to it."""
        self._add(f"kueue_{what}", 1, cluster_queue=queue, **labels)
        if door:
            self._add(f"kueue_local_queue_{what}", 1, **_named(door), **labels)

    def wait(self, what: str, took: float, queue: str, door: str = "", **labels: str) -> None:
        """So long it took, in a queue and the local queue that led to it."""
        self._time(f"kueue_{what}", took, cluster_queue=queue, **labels)
        if door:
            self._time(f"kueue_local_queue_{what}", took, **_named(door), **labels)

    def _note_hold(self, hold: Hold) -> None:
        if not hold.victims:
            return
        self._add("makeway_search_steps_total", hold.steps)
        proven = hold.bound is not None and hold.loss <= hold.bound
        self._add("makeway_plans_proven_total", proven=str(proven).lower())
        if hold.bound is not None:
            above = max(0.0, hold.loss - hold.bound)
            self._add("makeway_loss_above_bound_gpu_seconds_total", above)

    def _add(self, name: str, by: float = 1, /, **labels: str) -> None:
        key = (name, tuple(labels.items()))
        self._counts[key] = self._counts.get(key, 0) + by

    def _time(self, name: str, took: float, /, **labels: str) -> None:
        key = (name, tuple(labels.items()))
        if key not in self._times:
            self._times[key] = Histogram(HISTOGRAMS[name][1])
        self._times[key].add(max(0.0, took))

    # ---- as text -----------------------------------------------------------------------------------

    def text(self) -> str:
        lines: list[str] = []
        for name, help_ in COUNTERS.items():
            samples = {labels: n for (of, labels), n in self._counts.items() if of == name}
            lines += _family(name, "counter", help_, samples or {(): 0})
        standing = self._standing()
        for name, help_ in GAUGES.items():
            lines += _family(name, "gauge", help_, standing.get(name, {}))
        for name, (help_, _) in HISTOGRAMS.items():
            lines += [f"# HELP {name} {help_}", f"# TYPE {name} histogram"]
            for (of, labels), histogram in sorted(self._times.items(), key=lambda item: item[0]):
                lines += histogram.lines(name, labels) if of == name else ()
        return "\n".join(lines) + "\n"

    def _standing(self) -> dict[str, dict[Labels, float]]:
        found: dict[str, dict[Labels, float]] = {
            "makeway_leader": {(): float(self.leads)},
            "makeway_beside_kueue": {(): float(self.kueue_runs)},
        }
        return found | standing(self._state) if self._state is not None else found


def _door(workload: Workload | None) -> str:
    queued = workload is not None and workload.local_queue
    return f"{workload.namespace}/{workload.local_queue}" if workload and queued else ""


def _named(door: str) -> dict[str, str]:
    namespace, _, name = door.partition("/")
    return {"name": name, "namespace": namespace}


def _queue_of(state: State, workload: WorkloadId) -> str:
    found = state.workloads.get(workload)
    if found is None:
        return ""
    if found.admission is not None:
        return str(found.admission.queue)
    return str(state.queue_of(found) or "")


def _family(name: str, kind: Kind, help_: str, samples: Mapping[Labels, float]) -> list[str]:
    head = [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
    return head + [f"{name}{_shown(labels)} {_number(n)}" for labels, n in sorted(samples.items())]


def _shown(labels: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value != value or value == float("inf"):
        return "NaN" if value != value else "+Inf"
    return str(int(value)) if value == int(value) else f"{value:.6g}"
