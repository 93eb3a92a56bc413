"""Numbers as Prometheus reads them."""

from __future__ import annotations

import re

from makeway.control.metrics import Metrics
from makeway.engine.state import State
from makeway.model.decision import Evict, Hold, Plan, Wait
from makeway.model.reason import Reason
from makeway.model.workload import WorkloadId

LINE = re.compile(r'^[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [0-9.e+-]+$')


class At:
    def now(self) -> float:
        return 10.05


def values(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.text().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_every_line_is_a_help_a_type_or_a_sample() -> None:
    metrics = Metrics(At())
    metrics.note(State(), Plan(), 10.0)
    for line in metrics.text().splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or LINE.match(line.replace("+Inf", "9")), (
            line
        )


def test_a_preemption_counts_its_loss_its_notice_and_how_hard_it_was_to_find() -> None:
    low, high = WorkloadId("a/low"), WorkloadId("a/high")
    reason = Reason(kind="preempted", rule="InClusterQueue")
    plan = Plan(
        decisions=(
            Evict(workload=low, preemptor=high, reason=reason, loss=120.5, notice_s=30.0),
            Evict(workload=low, preemptor=high, reason=reason, loss=120.5, already=True),
            Hold(workload=high, victims=(low,), loss=120.5, bound=100.0, steps=7),
            Wait(workload=low, reason=reason),
        )
    )
    metrics = Metrics(At())
    metrics.note(State(), plan, 10.0)
    found = values(metrics)
    assert found['makeway_loss_gpu_seconds_total{cluster_queue=""}'] == 120.5
    assert found["makeway_notice_seconds_total"] == 30
    assert found["makeway_search_steps_total"] == 7
    assert found["makeway_loss_above_bound_gpu_seconds_total"] == 20.5
    assert found['makeway_plans_proven_total{proven="false"}'] == 1
    evicted = 'kueue_evicted_workloads_total{cluster_queue="",reason="Preempted"}'
    assert found[evicted] == 1
    assert found['kueue_admission_attempts_total{result="inadmissible"}'] == 1
    assert found['makeway_cycle_seconds_bucket{le="0.02"}'] == 0
    assert found['makeway_cycle_seconds_bucket{le="0.1"}'] == 1


def test_who_leads_is_told() -> None:
    metrics = Metrics(At())
    assert values(metrics)["makeway_leader"] == 0
    metrics.leads = True
    assert values(metrics)["makeway_leader"] == 1
