"""What happened, in numbers, as Prometheus reads them.

Where the meaning is Kueue's the name is Kueue's too, so that existing dashboards go on working; what only makeway knows
(losses, notices, how hard the search was and how near to the proven optimum) has names of its own. Counters grow with every
cycle; what stands now (who waits, who holds quota) is counted when somebody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from makeway.control.ports import Clock
from makeway.engine.state import State
from makeway.model.decision import Admit, Evict, Hold, Plan, Wait
from makeway.model.workload import WorkloadId

Labels = tuple[tuple[str, str], ...]
Kind = Literal["counter", "gauge", "histogram"]

CYCLE_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)

COUNTERS: Final = {
    "kueue_admission_attempts_total": "Workloads decided on, by result.",
    "kueue_admitted_workloads_total": "Workloads that were given quota, by queue.",
    "kueue_evicted_workloads_total": "Workloads told to stop, by queue and reason.",
    "kueue_preempted_workloads_total": "Workloads told to stop for another, by the queue of the other.",
    "makeway_cycles_total": "Times that the whole cluster was decided on.",
    "makeway_loss_gpu_seconds_total": "Work thrown away by evictions, by the queue that lost it.",
    "makeway_notice_seconds_total": "Time given to victims to save their work.",
    "makeway_search_steps_total": "Steps of the search for the cheapest victims.",
    "makeway_plans_proven_total": "Preemptions, by whether their loss is proven to be the least.",
    "makeway_loss_above_bound_gpu_seconds_total": "How far losses were above the proven lower bound.",
}
GAUGES: Final = {
    "kueue_pending_workloads": "Workloads in line, by queue; inadmissible ones wait for a change.",
    "kueue_reserving_active_workloads": "Workloads that hold quota, by queue.",
    "kueue_cluster_queue_status": "1 for the state a queue is in.",
    "makeway_holds": "Workloads for which room is kept while victims leave.",
    "makeway_nodes": "Nodes that are known.",
    "makeway_leader": "1 while this replica decides.",
    "makeway_beside_kueue": "1 while Kueue runs: queued work is Kueue's, and only nodes are decided here.",
}


class Metrics:
    def __init__(self, clock: Clock) -> None:
        self.leads = False
        self.kueue_runs = False
        self._clock = clock
        self._counts: dict[tuple[str, Labels], float] = {}
        self._slots = [0] * (len(CYCLE_S) + 1)
        self._seconds = 0.0
        self._state: State | None = None

    def note(self, state: State, plan: Plan, began: float) -> None:
        """After each cycle; `began` is when it started."""
        self._state = state
        self._add("makeway_cycles_total")
        took = max(0.0, self._clock.now() - began)
        self._seconds += took
        self._slots[next((i for i, most in enumerate(CYCLE_S) if took <= most), len(CYCLE_S))] += 1
        for decision in plan.decisions:
            match decision:
                case Admit(admission=admission):
                    self._add("kueue_admission_attempts_total", result="success")
                    if admission is not None:
                        self._add("kueue_admitted_workloads_total", cluster_queue=admission.queue)
                case Evict(already=False):
                    self._note_evict(state, decision)
                case Hold():
                    self._note_hold(decision)
                case Wait():
                    self._add("kueue_admission_attempts_total", result="inadmissible")
                case _:
                    pass

    def _note_evict(self, state: State, evict: Evict) -> None:
        queue = _queue_of(state, evict.workload)
        self._add("kueue_evicted_workloads_total", cluster_queue=queue, reason="Preempted")
        self._add(
            "kueue_preempted_workloads_total",
            preempting_cluster_queue=_queue_of(state, evict.preemptor),
            reason=evict.reason.rule or evict.reason.kueue,
        )
        self._add("makeway_loss_gpu_seconds_total", evict.loss, cluster_queue=queue)
        self._add("makeway_notice_seconds_total", evict.notice_s)

    def _note_hold(self, hold: Hold) -> None:
        if not hold.victims:
            return
        self._add("makeway_search_steps_total", hold.steps)
        proven = hold.bound is not None and hold.loss <= hold.bound
        self._add("makeway_plans_proven_total", proven=str(proven).lower())
        if hold.bound is not None:
            above = max(0.0, hold.loss - hold.bound)
            self._add("makeway_loss_above_bound_gpu_seconds_total", above)

    def _add(self, name: str, by: float = 1, **labels: str) -> None:
        key = (name, tuple(labels.items()))
        self._counts[key] = self._counts.get(key, 0) + by

    # ---- as text -----------------------------------------------------------------------------------

    def text(self) -> str:
        lines: list[str] = []
        for name, help_ in COUNTERS.items():
            samples = {labels: n for (of, labels), n in self._counts.items() if of == name}
            lines += _family(name, "counter", help_, samples or {(): 0})
        standing = self._standing()
        for name, help_ in GAUGES.items():
            lines += _family(name, "gauge", help_, standing.get(name, {}))
        lines += self._cycle_histogram()
        return "\n".join(lines) + "\n"

    def _standing(self) -> dict[str, dict[Labels, float]]:
        found: dict[str, dict[Labels, float]] = {
            "makeway_leader": {(): float(self.leads)},
            "makeway_beside_kueue": {(): float(self.kueue_runs)},
        }
        state = self._state
        if state is None:
            return found
        found["makeway_holds"] = {(): len(state.holds)}
        found["makeway_nodes"] = {(): len(state.nodes)}
        pending = found["kueue_pending_workloads"] = {}
        active = found["kueue_cluster_queue_status"] = {}
        for queue in state.queues:
            waiting = state.pending.get(queue)
            counts = (
                ("active", waiting.active() if waiting else ()),
                ("inadmissible", waiting.parked() if waiting else ()),
            )
            for status, who in counts:
                labels = (("cluster_queue", str(queue)), ("status", status))
                pending[labels] = sum(1 for _ in who)
            status = "active" if state.is_active(queue) else "pending"
            active[(("cluster_queue", str(queue)), ("status", status))] = 1
        reserving = Counter(
            str(workload.admission.queue)
            for workload in state.workloads.values()
            if workload.admission is not None and not workload.finished
        )
        found["kueue_reserving_active_workloads"] = {
            (("cluster_queue", queue),): count for queue, count in reserving.items()
        }
        return found

    def _cycle_histogram(self) -> list[str]:
        name = "makeway_cycle_seconds"
        lines = [f"# HELP {name} How long deciding took.", f"# TYPE {name} histogram"]
        total = 0
        for most, count in zip((*CYCLE_S, "+Inf"), self._slots, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{most}"}} {total}')
        return [*lines, f"{name}_sum {self._seconds:.6f}", f"{name}_count {total}"]


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
    return str(int(value)) if value == int(value) else f"{value:.6g}"
