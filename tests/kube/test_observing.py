"""What happens to workloads is counted once, when it happens."""

from __future__ import annotations

from makeway.control.metrics import Metrics
from makeway.kube.observing import Observer
from tests.control.test_metrics import values
from tests.kube.board import (
    Board,
    HandClock,
    cluster_queue,
    flavor,
    job,
    local_queue,
    node,
    priority_class,
)

READY = "waitForPodsReady: {enable: true}\n"
QUEUE, DOOR = 'cluster_queue="cq"', 'name="queue",namespace="default"'


def observed(config: str = "") -> tuple[Board, Metrics]:
    b = Board(config)
    metrics = Metrics(HandClock())
    b.cluster.copy.listen(Observer(metrics).note)
    b.put("Namespace", {"metadata": {"name": "default"}})
    b.put("ResourceFlavor", flavor())
    b.put(
        "ClusterQueue", cluster_queue(cpu="4", preemption={"withinClusterQueue": "LowerPriority"})
    )
    b.put("LocalQueue", local_queue())
    b.put("WorkloadPriorityClass", priority_class("low", 100))
    b.put("WorkloadPriorityClass", priority_class("high", 1000))
    b.put("Node", node("node-1", cpu="8"))
    return b, metrics


async def test_pods_that_become_ready_tell_how_long_that_took() -> None:
    b, metrics = observed(READY)
    b.put("Job", job("train", "3"))
    await b.settle()
    b.clock.time += 20
    await b.run_pods("train")
    found = values(metrics)
    for name in ("ready_wait_time_seconds", "admitted_until_ready_wait_time_seconds"):
        assert found[f"kueue_{name}_count{{{QUEUE}}}"] == 1
        assert 20 <= found[f"kueue_{name}_sum{{{QUEUE}}}"] < 30
        assert found[f"kueue_local_queue_{name}_count{{{DOOR}}}"] == 1


async def test_an_eviction_is_counted_once_and_how_long_it_took_to_leave() -> None:
    b, metrics = observed(READY)
    b.put("Job", job("low", "3", priority="low"))
    await b.settle()
    await b.run_pods("low")
    b.clock.time += 100
    b.put("Job", job("high", "3", priority="high"))
    await b.settle()
    await b.stop_pods("low")
    found = values(metrics)
    why = f'{{{QUEUE},reason="Preempted"}}'
    assert found[f"kueue_evicted_workloads_once_total{why}"] == 1
    assert found[f"kueue_workload_eviction_latency_seconds_count{why}"] == 1
    assert 100 <= found[f"kueue_pods_ready_to_evicted_time_seconds_sum{why}"] < 110


async def test_who_is_switched_off_is_counted_with_that_reason() -> None:
    b, metrics = observed()
    b.put("Job", job("train", "3"))
    await b.settle()
    workload = b.workload_of("train")
    b.patch("Workload", f"default/{workload['metadata']['name']}", {"spec": {"active": False}})
    await b.settle()
    found = values(metrics)
    assert found[f'kueue_evicted_workloads_total{{{QUEUE},reason="Deactivated"}}'] == 1
    assert found[f'kueue_local_queue_evicted_workloads_total{{{DOOR},reason="Deactivated"}}'] == 1


async def test_the_end_of_a_workload_is_counted() -> None:
    b, metrics = observed()
    b.put("Job", job("train", "3"))
    await b.settle()
    over = {"type": "Complete", "status": "True", "reason": "", "message": "done"}
    b.patch("Job", "default/train", {"status": {"conditions": [over], "succeeded": 1}})
    await b.settle()
    found = values(metrics)
    assert found[f"kueue_finished_workloads_total{{{QUEUE}}}"] == 1
    assert found[f"kueue_local_queue_finished_workloads_total{{{DOOR}}}"] == 1
