"""A gang of which only a part runs: completed in time, or stopped with a reason."""

from __future__ import annotations

import pytest

from tests.kube.board import Board, Object, cluster_queue, flavor, job, local_queue, node, pod

GROUP = "pod-group.scheduling.sigs.k8s.io"


def board() -> Board:
    made = Board()
    made.put("Namespace", {"metadata": {"name": "default"}})
    for number in (1, 2):
        made.put("Node", node(f"node-{number}", cpu="4"))
    return made


def with_gang(*members: str) -> Board:
    made = board()
    made.put("PodGroup", {"metadata": {"name": "train"}, "spec": {"minMember": len(members)}})
    for member in members:
        made.put("Pod", pod(member, "3", labels={GROUP: "train"}))
    return made


def node_of(b: Board, name: str) -> str:
    return str(b.get("Pod", f"default/{name}")["spec"].get("nodeName") or "")


def refused_by_its_node(b: Board, name: str) -> None:
    b.patch("Pod", f"default/{name}", {"status": {"phase": "Failed", "reason": "OutOfcpu"}})


async def test_a_member_that_was_refused_is_placed_anew_and_nobody_is_stopped() -> None:
    b = with_gang("one", "two")
    b.api.refuse.add("bindpod Pod two")
    await b.settle()
    assert (node_of(b, "one"), node_of(b, "two")) == ("node-1", "")
    b.api.refuse.clear()

    await b.wait(20)

    assert node_of(b, "two") == "node-2"
    await b.wait(60)
    assert b.told("GangBroken") == []


async def test_a_gang_that_cannot_be_completed_in_time_is_stopped_and_says_so() -> None:
    b = with_gang("one", "two")
    b.api.refuse.add("bindpod Pod two")
    await b.settle()
    b.running("default/one")

    await b.wait(29)
    assert b.told("GangBroken") == []
    await b.wait(2)

    message = "1 of the 2 pods that it needs at once run, and two found no node within 30 s"
    assert b.told("GangBroken") == [message]
    assert "delete Pod one" in b.api.log
    stopped = b.get("Pod", "default/one")
    assert b.condition(stopped, "DisruptionTarget") == ("True", "GangBroken", message)


@pytest.mark.parametrize(
    ("end", "stopped"),
    [
        ({"phase": "Failed", "reason": "OutOfcpu"}, True),
        ({"phase": "Failed"}, False),
        ({"phase": "Succeeded"}, False),
    ],
)
async def test_a_node_that_refuses_a_member_breaks_the_gang_and_a_program_that_ends_does_not(
    end: Object, stopped: bool
) -> None:
    b = with_gang("one", "two")
    await b.settle()
    for member in ("one", "two"):
        b.running(f"default/{member}")
    b.patch("Pod", "default/two", {"status": end})
    await b.settle()

    await b.wait(31)

    assert ("delete Pod one" in b.api.log) is stopped


async def test_a_queued_gang_that_is_broken_queues_again_as_a_whole() -> None:
    b = board()
    for kind, obj in (
        ("ResourceFlavor", flavor()),
        ("ClusterQueue", cluster_queue()),
        ("LocalQueue", local_queue()),
    ):
        b.put(kind, obj)
    b.put("Job", job("train", cpu="3", parallelism=2, completions=2, completionMode="Indexed"))
    await b.settle()
    await b.run_pods("train")
    first = b.cluster.world.pods_of("default/" + b.workload_of("train")["metadata"]["name"])[0]
    name = first["metadata"]["name"]
    b.drop("Pod", f"default/{name}")
    b.put("Node", node("node-1", cpu="1"))
    b.put("Node", node("node-2", cpu="1"))
    fresh = {k: v for k, v in first["metadata"].items() if k not in ("uid", "resourceVersion")}
    spec = {k: v for k, v in first["spec"].items() if k != "nodeName"}
    b.put("Pod", {"metadata": {**fresh, "name": f"{name}-again"}, "spec": spec})
    await b.settle()

    await b.wait(31)

    workload = b.workload_of("train")
    status, reason, message = b.condition(workload, "Evicted")
    assert (status, reason) == ("True", "GangBroken")
    assert (
        message
        == f"1 of the 2 pods that it needs at once run, and {name}-again found no node within 30 s"
    )
    assert b.get("Job", "default/train")["spec"]["suspend"] is True


async def test_a_preemption_is_over_when_those_who_were_promised_a_place_have_it() -> None:
    b = board()
    b.put("PriorityClass", {"metadata": {"name": "high"}, "value": 1000})
    for low in ("low-1", "low-2"):
        b.put("Pod", pod(low, "4"))
    await b.settle()
    b.put("PodGroup", {"metadata": {"name": "train"}, "spec": {"minMember": 2}})
    for member in ("w-1", "w-2", "w-3"):
        b.put("Pod", pod(member, "3", labels={GROUP: "train"}, priority=1000))
    await b.settle()
    for low in ("low-1", "low-2"):
        b.drop("Pod", f"default/{low}")

    await b.settle()

    assert [bool(node_of(b, member)) for member in ("w-1", "w-2", "w-3")] == [True, True, False]
    (record,) = b.cluster.copy.all("Preemption")
    assert record["status"]["phase"] == "Placed"
