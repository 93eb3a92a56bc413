"""What queues say about themselves."""

from __future__ import annotations

from makeway.kinds.metadata import Object
from tests.kube.board import cluster_queue, job, local_queue, queue_board


async def test_counts_and_usage_follow_the_workloads() -> None:
    b = queue_board(cpu="4")
    b.put("Job", job("first", "3"))
    b.put("Job", job("second", "3"))

    await b.settle()

    status = b.get("ClusterQueue", "cq")["status"]
    assert (
        status["pendingWorkloads"],
        status["reservingWorkloads"],
        status["admittedWorkloads"],
    ) == (1, 1, 1)
    assert status["flavorsUsage"] == [
        {"name": "default-flavor", "resources": [{"name": "cpu", "total": "3", "borrowed": "0"}]}
    ]
    door = b.get("LocalQueue", "default/queue")["status"]
    assert door["pendingWorkloads"] == 1
    assert door["flavorsReservation"] == [
        {"name": "default-flavor", "resources": [{"name": "cpu", "total": "3"}]}
    ]


async def test_what_goes_beyond_its_own_quota_is_borrowed() -> None:
    b = queue_board(cpu="1", cohortName="pool")
    b.put("ClusterQueue", cluster_queue("other", "9", cohortName="pool"))
    b.put("Job", job("big", "4"))

    await b.settle()

    (used,) = b.get("ClusterQueue", "cq")["status"]["flavorsUsage"][0]["resources"]
    assert used == {"name": "cpu", "total": "4", "borrowed": "3"}


async def test_a_queue_that_is_being_deleted_stays_while_it_is_used() -> None:
    b = queue_board()
    b.put("Job", job("train"))
    await b.settle()
    b.patch(
        "ClusterQueue",
        "cq",
        {
            "metadata": {
                "deletionTimestamp": "2027-01-15T08:00:00Z",
                "finalizers": ["kueue.x-k8s.io/resource-in-use"],
            }
        },
    )
    await b.settle()
    assert b.condition(b.get("ClusterQueue", "cq"), "Active")[1] == "Terminating"

    b.drop("Job", "default/train")
    b.drop("Workload", "default/" + b.workload_of("train")["metadata"]["name"])
    await b.settle()

    assert b.cluster.copy.get("ClusterQueue", "cq") is None


async def test_a_door_to_nowhere_says_so() -> None:
    b = queue_board()
    b.put("LocalQueue", local_queue("lost", "nowhere"))
    await b.settle()
    assert b.condition(b.get("LocalQueue", "default/lost"), "Active") == (
        "False",
        "ClusterQueueDoesNotExist",
        "Can't submit new workloads to clusterQueue",
    )


async def test_counts_are_not_written_a_thousand_times() -> None:
    b = queue_board(cpu="100")
    for number in range(40):
        b.put("Job", job(f"j{number}", "100m"))
        await b.loop.once()
    await b.settle()
    writes = [line for line in b.api.log if line == "patch ClusterQueue cq"]
    assert len(writes) <= 4
    assert b.get("ClusterQueue", "cq")["status"]["admittedWorkloads"] == 40


async def test_nobody_passes_while_admitted_pods_are_not_ready() -> None:
    b = queue_board(config="waitForPodsReady: {timeout: 5m, blockAdmission: true}")
    b.put("Job", job("first"))
    await b.settle()
    b.put("Job", job("second"))
    await b.settle()
    assert b.condition(b.workload_of("second"), "QuotaReserved") == (
        "False",
        "WaitingForPodsReady",
        "waiting for all admitted workloads to be in PodsReady condition",
    )

    await b.run_pods("first")
    assert b.condition(b.workload_of("second"), "Admitted")[0] == "True"


async def test_limits_of_the_namespace_count() -> None:
    b = queue_board()
    b.put(
        "LimitRange",
        {
            "metadata": {"name": "lr"},
            "spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]},
        },
    )
    b.put("Job", job("over", "3"))
    await b.settle()
    assert b.condition(b.workload_of("over"), "QuotaReserved") == (
        "False",
        "Misconfigured",
        "resources validation failed: spec.podSets[0].template.spec.containers[0]: "
        'Invalid value: ["cpu"]: requests must not exceed its limits',
    )

    b.drop("LimitRange", "default/lr")
    await b.settle()
    assert b.condition(b.workload_of("over"), "Admitted")[0] == "True"


async def test_cohorts_that_run_in_a_circle_are_named_until_it_is_cut() -> None:
    b = queue_board(cpu="4", cohortName="team")
    b.put("Cohort", _cohort("team", "lab"))
    b.put("Cohort", _cohort("lab", "org"))
    b.put("Cohort", _cohort("org", "lab"))
    b.put("Job", job("train"))

    await b.settle()

    assert b.condition(b.get("ClusterQueue", "cq"), "Active") == (
        "False",
        "CohortCycle",
        "Can't admit new workloads: its cohorts run in a circle (lab -> org -> lab):"
        " change one's spec.parentName.",
    )
    waits = b.condition(b.workload_of("train"), "QuotaReserved")
    assert waits[1:] == ("Suspended", "ClusterQueue cq is inactive")

    b.drop("Cohort", "org")
    await b.settle()

    assert b.condition(b.get("ClusterQueue", "cq"), "Active")[1] == "Ready"
    assert b.condition(b.workload_of("train"), "Admitted")[0] == "True"


def _cohort(name: str, parent: str) -> Object:
    return {"metadata": {"name": name}, "spec": {"parentName": parent}}
