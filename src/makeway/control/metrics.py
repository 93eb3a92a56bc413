"""What happened, in numbers, as Prometheus reads them.

Where the meaning is Kueue's the name is Kueue's too, so that existing dashboards go on working; what only makeway knows
(losses, notices, how hard the search was and how near to the proven optimum) has names of its own. Counters grow with every
cycle; what stands now (who waits, who holds quota) is counted when somebody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from makeway.control.ports import Clock
from makeway.engine.fairness import share
from makeway.engine.quota import QuotaNode
from makeway.engine.state import State
from makeway.model.decision import Admit, Evict, Hold, Plan, Wait
from makeway.model.queue import Queue, Quota
from makeway.model.resources import in_units
from makeway.model.workload import Admission, Workload, WorkloadId

Labels = tuple[tuple[str, str], ...]
Kind = Literal["counter", "gauge", "histogram"]

CYCLE_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)

COUNTERS: Final = {
    "kueue_admission_attempts_total": "Workloads decided on, by result.",
    "kueue_quota_reserved_workloads_total": "Workloads that were given quota, by queue.",
    "kueue_admitted_workloads_total": "Workloads that were admitted, by queue.",
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
    "kueue_admitted_active_workloads": "Workloads that are admitted and not over, by queue.",
    "kueue_cluster_queue_status": "1 for the state a queue is in.",
    "kueue_cluster_queue_resource_reservation": "Quota that is reserved, by queue, flavor and resource.",
    "kueue_cluster_queue_nominal_quota": "Quota that a queue owns.",
    "kueue_cluster_queue_borrowing_limit": "How much a queue may borrow; +Inf where nothing limits it.",
    "kueue_cluster_queue_lending_limit": "How much a queue may lend; +Inf where nothing limits it.",
    "kueue_cluster_queue_weighted_share": "A queue's share of what it borrows, by its weight.",
    "kueue_cohort_weighted_share": "A cohort's share of what it borrows, by its weight.",
    "kueue_local_queue_admission_fair_sharing_usage": "What a local queue has used, as it counts where usage decides.",
    "makeway_holds": "Workloads for which room is kept while victims leave.",
    "makeway_nodes": "Nodes that are known.",
    "makeway_leader": "1 while this replica decides.",
    "makeway_beside_kueue": "1 while Kueue runs: queued work is Kueue's, and only nodes are decided here.",
}
# Waiting, in seconds, as Kueue counts it.
WAITED_S: Final = (1.0, *(2.5 * 2**n for n in range(13)))
HISTOGRAMS: Final = {
    "makeway_cycle_seconds": ("How long deciding took.", CYCLE_S),
    "kueue_quota_reserved_wait_time_seconds": (
        "From being queued to having quota, by queue.",
        WAITED_S,
    ),
    "kueue_admission_wait_time_seconds": (
        "From being queued to being admitted, by queue.",
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
        self._time("makeway_cycle_seconds", self._clock.now() - began)
        for decision in plan.decisions:
            match decision:
                case Admit(admission=admission):
                    self._add("kueue_admission_attempts_total", result="success")
                    if admission is not None:
                        workload = state.workloads.get(decision.workload)
                        self._note_admission(admission, workload, began)
                case Evict(already=False):
                    self._note_evict(state, decision)
                case Hold():
                    self._note_hold(decision)
                case Wait():
                    self._add("kueue_admission_attempts_total", result="inadmissible")
                case _:
                    pass

    def _note_admission(self, admission: Admission, workload: Workload | None, now: float) -> None:
        """Quota comes first, and where checks have to be passed, admission comes later."""
        waited = now - (workload.queued_at or workload.created_at) if workload is not None else 0.0
        queue = str(admission.queue)
        if admission.reserved_at >= now:
            self._add("kueue_quota_reserved_workloads_total", cluster_queue=queue)
            self._time("kueue_quota_reserved_wait_time_seconds", waited, cluster_queue=queue)
        if admission.admitted:
            self._add("kueue_admitted_workloads_total", cluster_queue=queue)
            self._time("kueue_admission_wait_time_seconds", waited, cluster_queue=queue)

    def _note_evict(self, state: State, evict: Evict) -> None:
        queue = _queue_of(state, evict.workload)
        why = evict.reason.kueue or "Preempted"
        self._add("kueue_evicted_workloads_total", cluster_queue=queue, reason=why)
        if evict.preemptor:
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

    def _time(self, name: str, took: float, **labels: str) -> None:
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
        holding = [
            workload.admission
            for workload in state.workloads.values()
            if workload.admission is not None and not workload.finished
        ]
        found["kueue_reserving_active_workloads"] = _by_queue(holding)
        found["kueue_admitted_active_workloads"] = _by_queue(a for a in holding if a.admitted)
        found["kueue_local_queue_admission_fair_sharing_usage"] = _usage_of_local_queues(state)
        return found | _quotas(state) | _shares(state)


def _usage_of_local_queues(state: State) -> dict[Labels, float]:
    """As of the last cycle."""
    return {
        (
            ("name", local.name),
            ("namespace", local.namespace),
            ("cluster_queue", str(local.queue)),
        ): (state.usage.of(door))
        for door, local in state.local_queues.items()
        if state.usage.applies_to(local.queue)
    }


def _by_queue(admissions: Iterable[Admission]) -> dict[Labels, float]:
    counts = Counter(str(admission.queue) for admission in admissions)
    return {(("cluster_queue", queue),): count for queue, count in counts.items()}


def _quotas(state: State) -> dict[str, dict[Labels, float]]:
    """What queues own, may borrow and lend, and have given out."""
    prefix = "kueue_cluster_queue"
    found: dict[str, dict[Labels, float]] = {
        f"{prefix}_{what}": {}
        for what in ("nominal_quota", "borrowing_limit", "lending_limit", "resource_reservation")
    }
    for name, queue in state.queues.items():
        usage = state.ledger.tree.queues[name].usage if name in state.ledger.tree.queues else {}
        for flavor, quota in _owned(queue):
            labels = (
                ("cohort", str(queue.cohort or "")),
                ("cluster_queue", str(name)),
                ("flavor", flavor),
                ("resource", quota.resource),
            )
            amounts = {
                "nominal_quota": quota.nominal,
                "borrowing_limit": quota.borrowing_limit,
                "lending_limit": quota.lending_limit,
                "resource_reservation": usage.get((flavor, quota.resource), 0),
            }
            for what, amount in amounts.items():
                found[f"{prefix}_{what}"][labels] = _in_units(quota.resource, amount)
    return found


def _owned(queue: Queue) -> Iterator[tuple[str, Quota]]:
    for group in queue.resource_groups:
        for flavor in group.flavors:
            for quota in flavor.quotas:
                yield str(flavor.flavor), quota


def _in_units(resource: str, amount: int | None) -> float:
    """Cores and not thousandths, as Kueue has it; no limit is an infinite one."""
    if amount is None:
        return float("inf")
    return in_units(resource, amount)


def _shares(state: State) -> dict[str, dict[Labels, float]]:
    tree = state.ledger.tree
    return {
        "kueue_cluster_queue_weighted_share": {
            (("cluster_queue", node.name), ("cohort", node.parent.name)): _share(node)
            for node in tree.queues.values()
            if node.parent is not None
        },
        "kueue_cohort_weighted_share": {
            (("cohort", node.name),): _share(node) for node in tree.cohorts.values()
        },
    }


def _share(node: QuotaNode) -> float:
    found = share(node)
    return float("nan") if found.endless else float(found.rounded())


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
