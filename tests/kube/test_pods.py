"""Pods that queue: alone, or in a group that is admitted as a whole."""

from __future__ import annotations

from typing import Any

from tests.kube.board import PREEMPTS, Board, queue_board, queued_pod


def member(
    name: str, cpu: str = "1", priority: str = "", notes: dict[str, str] | None = None
) -> dict[str, Any]:
    return queued_pod(name, cpu, group="g", total=2, priority=priority, notes=notes)


def gates(b: Board, name: str) -> list[dict[str, str]]:
    return b.get("Pod", f"default/{name}")["spec"].get("schedulingGates") or []


async def test_a_pod_is_let_through_when_its_workload_is_admitted() -> None:
    b = queue_board()
    b.put("Pod", queued_pod("one", "2"))

    await b.settle()

    one = b.get("Pod", "default/one")
    assert gates(b, "one") == []
    assert one["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "main"
    assert one["spec"]["nodeName"] in ("node-1", "node-2")
    assert b.workload_of("one")["metadata"]["name"].startswith("pod-one-")


async def test_a_pod_of_no_quota_stays_behind_its_gate() -> None:
    b = queue_board(cpu="1")
    b.put("Pod", queued_pod("one", "2"))

    await b.settle()

    assert len(gates(b, "one")) == 2
    assert "nodeName" not in b.get("Pod", "default/one")["spec"]


async def test_an_evicted_pod_is_told_deleted_and_gone_with_its_workload() -> None:
    b = queue_board(cpu="4", **PREEMPTS)
    b.put("Pod", queued_pod("low", "3", priority="low"))
    await b.settle()
    b.running("default/low")
    await b.settle()
    b.put("Pod", queued_pod("high", "3", priority="high"))

    await b.settle()

    low = b.get("Pod", "default/low")
    (told,) = [c for c in low["status"]["conditions"] if c["type"] == "TerminationTarget"]
    assert told["reason"] == "WorkloadEvictedDueToPreempted"
    assert "deletionTimestamp" in low["metadata"]
    assert low["metadata"].get("finalizers") is None
    workload = b.workload_of("low")
    assert b.condition(workload, "Requeued")[0] == "False"
    assert workload["metadata"].get("finalizers") is None or b.condition(workload, "Finished")[0]
    assert gates(b, "high") == []


async def test_a_pod_that_needs_longer_to_save_than_its_grace_gets_longer() -> None:
    b = queue_board(cpu="4", **PREEMPTS)
    b.put(
        "Pod",
        queued_pod("low", "3", priority="low", notes={"makeway.dev/checkpoint-on-term": "2m"}),
    )
    await b.settle()
    b.running("default/low")
    b.put("Pod", queued_pod("high", "3", priority="high"))

    await b.settle()

    assert b.get("Pod", "default/low")["metadata"]["deletionGracePeriodSeconds"] == 125


async def test_a_finished_pod_finishes_its_workload() -> None:
    b = queue_board()
    b.put("Pod", queued_pod("one"))
    await b.settle()
    b.running("default/one")
    b.patch("Pod", "default/one", {"status": {"phase": "Succeeded"}})

    await b.settle()

    assert b.condition(b.workload_of("one"), "Finished") == ("True", "Succeeded", "")
    assert b.get("Pod", "default/one")["metadata"].get("finalizers") is None


async def test_a_group_waits_until_it_is_complete() -> None:
    b = queue_board()
    b.put("Pod", member("a"))
    await b.settle()
    assert b.told("ErrWorkloadCompose") == ["'g' group has fewer runnable pods than expected"]
    assert b.cluster.copy.keys("Workload") == []
    b.put("Pod", member("b", "2"))

    await b.settle()

    group = b.get("Workload", "default/g")
    assert [s["count"] for s in group["spec"]["podSets"]] == [1, 1]
    assert {o["name"] for o in group["metadata"]["ownerReferences"]} == {"a", "b"}
    assert group["metadata"]["annotations"]["kueue.x-k8s.io/is-group-workload"] == "true"
    assert gates(b, "a") == gates(b, "b") == []


async def evicted_group(b: Board, notes: dict[str, str] | None = None) -> None:
    for name in ("a", "b"):
        b.put("Pod", member(name, "2", "low", notes))
    await b.settle()
    for name in ("a", "b"):
        b.running(f"default/{name}")
    await b.settle()
    b.put("Pod", queued_pod("high", "3", priority="high"))
    await b.settle()
    # All are told together, and the quota is theirs until the last has stopped.
    for name in ("a", "b"):
        assert "deletionTimestamp" in b.get("Pod", f"default/{name}")["metadata"]
    assert b.condition(b.get("Workload", "default/g"), "QuotaReserved")[0] == "True"
    for name in ("a", "b"):
        b.patch("Pod", f"default/{name}", {"status": {"phase": "Failed"}})
    await b.settle()


async def test_an_evicted_group_waits_for_replacements() -> None:
    b = queue_board(cpu="4", **PREEMPTS)
    await evicted_group(b)
    group = b.get("Workload", "default/g")
    assert b.condition(group, "WaitingForReplacementPods")[0:2] == ("True", "Preempted")
    assert b.condition(group, "Requeued")[0] == "True"
    assert b.get("Pod", "default/a")["metadata"]["finalizers"] == ["kueue.x-k8s.io/managed"]
    assert gates(b, "high") == []

    for name in ("c", "d"):
        b.put("Pod", member(name, "2", "low"))
    await b.settle()

    group = b.get("Workload", "default/g")
    assert b.condition(group, "WaitingForReplacementPods") == (
        "False",
        "PodsReady",
        "No pods need replacement",
    )
    assert {"c", "d"} <= {o["name"] for o in group["metadata"]["ownerReferences"]}
    assert b.get("Pod", "default/a")["metadata"].get("finalizers") is None


async def test_a_group_that_cannot_be_retried_is_over() -> None:
    b = queue_board(cpu="4", **PREEMPTS)
    await evicted_group(b, {"kueue.x-k8s.io/retriable-in-group": "false"})
    group = b.get("Workload", "default/g")
    assert b.condition(group, "Finished") == ("True", "Succeeded", "Pods succeeded: 0/2.")
    assert b.get("Pod", "default/a")["metadata"].get("finalizers") is None


async def test_pods_that_succeeded_give_their_quota_back() -> None:
    b = queue_board()
    b.put("Pod", member("a", "2"))
    b.put("Pod", member("b", "3"))
    await b.settle()
    for name in ("a", "b"):
        b.running(f"default/{name}")
    b.patch("Pod", "default/a", {"status": {"phase": "Succeeded"}})

    await b.settle()

    (spare,) = b.get("Workload", "default/g")["status"]["reclaimablePods"]
    assert spare["count"] == 1
    assert b.get("ClusterQueue", "cq")["status"]["flavorsUsage"][0]["resources"][0]["total"] == "3"
    b.patch("Pod", "default/b", {"status": {"phase": "Succeeded"}})
    await b.settle()
    assert b.condition(b.get("Workload", "default/g"), "Finished")[2] == "Pods succeeded: 2/2."


async def test_a_group_takes_the_nodes_that_its_victims_leave() -> None:
    """Seed 002: one node, the high pod runs as soon as the low one has ended."""
    b = queue_board(cpu="8", **PREEMPTS)
    b.drop("Node", "node-2")
    once = {"kueue.x-k8s.io/retriable-in-group": "false"}
    b.put("Pod", queued_pod("low", "8", group="low", total=1, priority="low", notes=once))
    await b.settle()
    b.running("default/low")
    await b.settle()
    b.put("Pod", queued_pod("high", "8", group="high", total=1, priority="high", notes=once))
    await b.settle()
    b.patch("Pod", "default/low", {"status": {"phase": "Failed"}})

    await b.settle()

    assert b.get("Pod", "default/high")["spec"]["nodeName"] == "node-1"
    (record,) = b.cluster.copy.all("Preemption")
    assert record["status"]["phase"] == "Placed"
