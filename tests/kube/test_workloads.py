"""A Workload by itself: deactivation, checks, stopped queues, timeouts."""

from __future__ import annotations

from typing import Any

from tests.kube.board import Board, flavor, job, local_queue, queue_board

CHECK = {
    "metadata": {"name": "budget"},
    "spec": {"controllerName": "example.com/budget"},
    "status": {
        "conditions": [{"type": "Active", "status": "True", "reason": "Active", "message": ""}]
    },
}
ASKS = {"admissionChecksStrategy": {"admissionChecks": [{"name": "budget"}]}}


async def running(b: Board, name: str = "train", cpu: str = "3") -> None:
    b.put("Job", job(name, cpu))
    await b.settle()
    await b.run_pods(name)


def key(b: Board, owner: str = "train") -> str:
    return "default/" + str(b.workload_of(owner)["metadata"]["name"])


async def test_deactivated_by_hand_it_stops_and_activated_it_comes_back() -> None:
    b = queue_board()
    await running(b)
    b.patch("Workload", key(b), {"spec": {"active": False}})
    await b.settle()
    await b.stop_pods("train")

    workload = b.workload_of("train")
    assert b.condition(workload, "Evicted")[0:2] == ("True", "Deactivated")
    assert b.condition(workload, "Requeued")[0] == "False"
    assert b.get("Job", "default/train")["spec"]["suspend"] is True
    assert b.told("EvictedDueToDeactivated") == ["The workload is deactivated"]

    b.patch("Workload", key(b), {"spec": {"active": True}})
    await b.settle()

    assert b.condition(b.workload_of("train"), "Admitted")[0] == "True"


async def test_a_waiting_one_is_deactivated_without_noise() -> None:
    b = queue_board(cpu="1")
    b.put("Job", job("train", "3"))
    await b.settle()
    b.patch("Workload", key(b), {"spec": {"active": False}})

    await b.settle()

    assert b.condition(b.workload_of("train"), "Evicted")[1] == "Deactivated"
    assert b.condition(b.workload_of("train"), "Requeued") == ("", "", "")
    assert b.told("EvictedDueToDeactivated") == []


async def with_check(b: Board) -> None:
    b.put("AdmissionCheck", CHECK)
    b.patch("ClusterQueue", "cq", {"spec": ASKS})
    b.put("Job", job("train"))
    await b.settle()
    (check,) = b.workload_of("train")["status"]["admissionChecks"]
    assert (check["name"], check["state"]) == ("budget", "Pending")
    assert b.condition(b.workload_of("train"), "QuotaReserved")[0] == "True"
    assert b.condition(b.workload_of("train"), "Admitted")[0] != "True"


def says(state: str, **more: Any) -> dict[str, Any]:
    return {
        "status": {
            "admissionChecks": [{"name": "budget", "state": state, "message": "because", **more}]
        }
    }


async def test_ready_checks_let_it_run() -> None:
    b = queue_board()
    await with_check(b)
    b.patch("Workload", key(b), says("Ready"))

    await b.settle()

    assert b.condition(b.workload_of("train"), "Admitted")[0] == "True"
    assert b.get("Job", "default/train")["spec"]["suspend"] is False


async def test_ready_checks_without_nodes_leave_it_waiting_with_its_quota() -> None:
    b = queue_board()
    await with_check(b)
    for node in b.cluster.copy.keys("Node"):
        b.patch("Node", node, {"spec": {"unschedulable": True}})
    b.patch("Workload", key(b), says("Ready"))
    await b.settle()

    workload = b.workload_of("train")
    assert b.condition(workload, "QuotaReserved")[0] == "True"
    status, reason, message = b.condition(workload, "Admitted")
    assert (status, reason) == ("False", "WaitingForNodes")
    assert "node(s) were unschedulable" in message
    assert b.get("Job", "default/train")["spec"]["suspend"] is True

    for node in b.cluster.copy.keys("Node"):
        b.patch("Node", node, {"spec": {"unschedulable": False}})
    await b.settle()
    assert b.condition(b.workload_of("train"), "Admitted")[0] == "True"


async def test_a_check_that_wants_a_retry_costs_the_reservation() -> None:
    b = queue_board()
    await with_check(b)
    b.patch("Workload", key(b), says("Retry", requeueAfterSeconds=60))
    await b.settle()

    workload = b.workload_of("train")
    assert b.condition(workload, "Evicted") == (
        "True",
        "AdmissionCheck",
        'Evicted due to AdmissionCheck in Retry state: "budget" (because)',
    )
    assert b.condition(workload, "Requeued")[0:2] == ("False", "AdmissionCheck")
    (check,) = workload["status"]["admissionChecks"]
    assert (check["state"], check["retryCount"]) == ("Pending", 1)

    await b.wait(61)

    assert b.condition(b.workload_of("train"), "Requeued")[1] == "BackoffFinished"
    assert b.condition(b.workload_of("train"), "QuotaReserved")[0] == "True"


async def test_a_rejected_check_deactivates() -> None:
    b = queue_board()
    await with_check(b)
    b.patch("Workload", key(b), says("Rejected"))

    await b.settle()

    workload = b.workload_of("train")
    assert workload["spec"]["active"] is False
    assert b.condition(workload, "Evicted")[1] == "DeactivatedDueToAdmissionCheck"
    assert b.condition(workload, "QuotaReserved")[0] == "False"
    assert b.told("AdmissionCheckRejected") == [
        'Deactivated due to AdmissionCheck in Rejected state: "budget" (because)'
    ]


async def test_a_drained_queue_stops_everybody_and_takes_them_back() -> None:
    b = queue_board()
    await running(b)
    b.patch("ClusterQueue", "cq", {"spec": {"stopPolicy": "HoldAndDrain"}})
    await b.settle()
    await b.stop_pods("train")

    workload = b.workload_of("train")
    assert b.condition(workload, "Evicted") == (
        "True",
        "ClusterQueueStopped",
        "The ClusterQueue is stopped",
    )
    assert b.condition(workload, "QuotaReserved") == (
        "False",
        "Suspended",
        "ClusterQueue cq is inactive",
    )

    b.patch("ClusterQueue", "cq", {"spec": {"stopPolicy": "None"}})
    await b.settle()

    assert b.condition(b.workload_of("train"), "Requeued")[1] == "ClusterQueueRestarted"
    assert b.condition(b.workload_of("train"), "Admitted")[0] == "True"


async def test_a_held_queue_leaves_those_alone_that_run() -> None:
    b = queue_board()
    await running(b)
    b.patch("LocalQueue", "default/queue", {"spec": {"stopPolicy": "Hold"}})

    await b.settle()

    assert b.condition(b.workload_of("train"), "Admitted")[0] == "True"


async def test_whoever_points_nowhere_is_told_where_the_way_ends() -> None:
    b = queue_board()
    b.put("LocalQueue", local_queue("orphan", "nowhere"))
    b.put("Job", job("one", queue="absent"))
    b.put("Job", job("two", queue="orphan"))
    await b.settle()

    assert b.condition(b.workload_of("one"), "QuotaReserved") == (
        "False",
        "Misconfigured",
        "LocalQueue absent doesn't exist",
    )
    assert (
        b.condition(b.workload_of("two"), "QuotaReserved")[2]
        == "ClusterQueue nowhere doesn't exist"
    )

    b.put("LocalQueue", local_queue("absent"))
    await b.settle()

    assert b.condition(b.workload_of("one"), "Admitted")[0] == "True"


async def test_a_queue_without_its_flavor_is_inactive() -> None:
    b = queue_board()
    b.drop("ResourceFlavor", "default-flavor")
    b.put("Job", job("one"))
    await b.settle()
    assert b.condition(b.get("ClusterQueue", "cq"), "Active") == (
        "False",
        "FlavorNotFound",
        "Can't admit new workloads: references missing ResourceFlavor(s): default-flavor.",
    )
    assert (
        b.condition(b.get("LocalQueue", "default/queue"), "Active")[1] == "ClusterQueueIsInactive"
    )

    b.put("ResourceFlavor", flavor())
    await b.settle()

    assert b.condition(b.workload_of("one"), "Admitted")[0] == "True"


SLOW = """
waitForPodsReady:
  timeout: 10s
  requeuingStrategy: {backoffLimitCount: 1, backoffBaseSeconds: 5}
"""


async def test_pods_that_are_not_ready_in_time_back_off_and_then_give_up() -> None:
    b = queue_board(config=SLOW)
    b.put("Job", job("train"))
    await b.settle()
    await b.wait(11)
    workload = b.workload_of("train")
    assert b.condition(workload, "Evicted") == (
        "True",
        "PodsReadyTimeout",
        f"Exceeded the PodsReady timeout {key(b)}",
    )
    assert workload["status"]["requeueState"]["count"] == 1
    assert b.condition(workload, "Requeued")[0] == "False"

    await b.wait(6)
    assert b.condition(b.workload_of("train"), "Requeued")[1] == "BackoffFinished"
    assert b.condition(b.workload_of("train"), "Admitted")[0] == "True"

    await b.wait(11)
    workload = b.workload_of("train")
    assert workload["spec"]["active"] is False
    assert b.condition(workload, "Evicted")[1] == "DeactivatedDueToRequeuingLimitExceeded"


async def test_the_longest_execution_time_ends_it() -> None:
    b = queue_board()
    limited = job("train")
    limited["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = "30"
    b.put("Job", limited)
    await b.settle()
    await b.run_pods("train")

    await b.wait(31)

    assert b.told("MaximumExecutionTimeExceeded") == ["The maximum execution time (30s) exceeded"]
    assert (
        b.condition(b.workload_of("train"), "Evicted")[1]
        == "DeactivatedDueToMaximumExecutionTimeExceeded"
    )
    assert b.get("Job", "default/train")["spec"]["suspend"] is True


async def test_a_class_that_changes_its_value_changes_who_waits_and_who_runs() -> None:
    b = queue_board()
    b.put("Job", job("train", priority="low"))
    await b.settle()
    b.patch("WorkloadPriorityClass", "low", {"value": 5})

    await b.settle()

    assert b.workload_of("train")["spec"]["priority"] == 5


async def test_a_finished_one_is_kept_as_long_as_was_said_and_does_not_come_back() -> None:
    b = queue_board(config="objectRetentionPolicies: {workloads: {afterFinished: 10m}}")
    await running(b)
    done = {"type": "Complete", "status": "True", "reason": "Done", "message": ""}
    b.patch("Job", "default/train", {"status": {"succeeded": 1, "conditions": [done]}})
    await b.settle()

    await b.wait(590)
    assert len(list(b.cluster.copy.all("Workload"))) == 1
    await b.wait(11)

    assert list(b.cluster.copy.all("Workload")) == []
    assert b.told("Deleted") == ["Deleted finished workload due to elapsed retention"]
    b.patch("Job", "default/train", {"metadata": {"labels": {"again": "looked-at"}}})
    await b.settle()
    assert list(b.cluster.copy.all("Workload")) == []
