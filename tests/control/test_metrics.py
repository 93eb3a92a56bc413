"""Numbers as Prometheus reads them."""

from __future__ import annotations

import re

from makeway.control.metrics import COUNTERS, GAUGES, HISTOGRAMS, Metrics
from makeway.engine.state import State
from makeway.model.decision import Admit, Evict, Hold, Plan, Wait
from makeway.model.queue import QueueName
from makeway.model.reason import Reason
from makeway.model.workload import Admission, WorkloadId
from makeway.testing import Harness
from tests.control.kueue_metrics import FAMILIES

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


def admission(queue: str, *, reserved_at: float, admitted: bool) -> Admission:
    return Admission(
        queue=QueueName(queue), assignments=(), reserved_at=reserved_at, admitted=admitted
    )


def test_quota_and_admission_are_counted_when_each_comes(h: Harness) -> None:
    h.submit("train")
    (workload,) = h.state.workloads
    metrics = Metrics(At())
    reserved_at = h.now + 10
    for at, admitted in ((reserved_at, False), (reserved_at + 30, True)):
        given = admission("lab", reserved_at=reserved_at, admitted=admitted)
        plan = Plan(decisions=(Admit(workload=workload, admission=given),))
        metrics.note(h.state, plan, at)
    found = values(metrics)
    assert found['kueue_quota_reserved_workloads_total{cluster_queue="lab"}'] == 1
    assert found['kueue_admitted_workloads_total{cluster_queue="lab"}'] == 1
    waited = 'kueue_admission_wait_time_seconds_sum{cluster_queue="lab"}'
    sooner = 'kueue_quota_reserved_wait_time_seconds_sum{cluster_queue="lab"}'
    assert (round(found[sooner]), round(found[waited])) == (10, 40)


def test_what_queues_own_and_have_given_out_is_told_in_kueues_units(h: Harness) -> None:
    h.nodes(1, gpus=8)
    h.queue("lab", gpus=8)
    h.submit("train", queue="lab", gpus=6)
    h.cycle()
    metrics = Metrics(At())
    metrics.note(h.state, Plan(), 10.0)
    found = values(metrics)
    ours = ("kueue_cluster_queue_", 'resource="nvidia.com/gpu"')
    gpus = [name for name in found if all(part in name for part in ours)]
    told = {
        name.partition("{")[0].removeprefix("kueue_cluster_queue_"): found[name] for name in gpus
    }
    assert told == {
        "nominal_quota": 8,
        "resource_reservation": 6,
        "resource_usage": 6,
        "borrowing_limit": float("inf"),
        "lending_limit": float("inf"),
    }


def test_what_has_a_name_of_kueues_is_one_of_its_families_with_its_labels(h: Harness) -> None:
    h.nodes(1, gpus=8)
    h.queue("lab", gpus=8)
    h.submit("low", queue="lab", gpus=6)
    plan = h.cycle()
    metrics = Metrics(At())
    metrics.note(h.state, plan or Plan(), 10.0)
    named = [name for name in (*COUNTERS, *GAUGES, *HISTOGRAMS) if name.startswith("kueue_")]
    assert set(named) <= FAMILIES.keys()
    for line in metrics.text().splitlines():
        family = re.sub(r"_(bucket|sum|count)(?=[{ ])", "", line).split("{")[0].split(" ")[0]
        if family.startswith("kueue_"):
            labels = set(re.findall(r'([a-z_]+)="', line)) - {"le"}
            assert labels <= set(FAMILIES[family]), line


def test_local_queues_and_cohorts_are_told_like_queues(h: Harness) -> None:
    h.nodes(2, gpus=8)
    h.queue("lab", gpus=8, cohort="all")
    h.queue("web", gpus=4, cohort="all")
    h.submit("runs", queue="lab", gpus=6)
    h.submit("waits", queue="web", gpus=64)
    plan = h.cycle()
    metrics = Metrics(At())
    metrics.note(h.state, plan or Plan(), 10.0)
    found = values(metrics)
    (lab,) = {w.local_queue for w in h.state.workloads.values() if w.name == "runs"}
    (web,) = {w.local_queue for w in h.state.workloads.values() if w.name == "waits"}
    space = next(iter(h.state.workloads.values())).namespace
    door = f'name="{lab}",namespace="{space}"'
    gpus = 'flavor="default",resource="nvidia.com/gpu"'
    assert found[f"kueue_local_queue_admitted_active_workloads{{{door}}}"] == 1
    assert found[f"kueue_local_queue_resource_usage{{{door},{gpus}}}"] == 6
    assert found[f'kueue_local_queue_status{{{door},active="true"}}'] == 1
    other = f'name="{web}",namespace="{space}"'
    assert sum(n for name, n in found.items() if f"pending_workloads{{{other}" in name) == 1
    pending = 'kueue_cluster_queue_resource_pending{cluster_queue="web",resource="nvidia.com/gpu"}'
    assert found[pending] == 64
    assert found[f'kueue_cohort_subtree_quota{{cohort="all",{gpus}}}'] == 12
    assert found[f'kueue_cohort_subtree_resource_reservations{{cohort="all",{gpus}}}'] == 6
    assert found['kueue_cohort_subtree_admitted_active_workloads{cohort="all"}'] == 1
    above = 'parent_cohort="all",root_cohort="all"'
    assert found[f'kueue_cluster_queue_info{{cluster_queue="lab",{above}}}'] == 1
    assert found['kueue_cohort_info{cohort="all",parent_cohort="",root_cohort="all"}'] == 1
