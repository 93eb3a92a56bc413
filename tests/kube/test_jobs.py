"""A queued Job from its first moment to its last, in step with its Workload."""

from __future__ import annotations

import pytest

from tests.kube.board import (
    PREEMPTS,
    Board,
    containers,
    flavor,
    job,
    node,
    pod,
    priority_class,
    queue_board,
)


async def test_is_admitted_and_started_with_the_labels_of_its_queue() -> None:
    b = queue_board()
    b.put("Job", job("train", priority="low"))

    await b.settle()

    workload = b.workload_of("train")
    assert workload["spec"]["priority"] == 100
    assert b.condition(workload, "Admitted") == ("True", "Admitted", "The workload is admitted")
    started = b.get("Job", "default/train")
    assert started["spec"]["suspend"] is False
    template = started["spec"]["template"]["metadata"]
    assert template["labels"]["kueue.x-k8s.io/cluster-queue-name"] == "cq"
    assert template["annotations"] == {"kueue.x-k8s.io/workload": workload["metadata"]["name"]}
    assert b.told("Started") == ["Admitted by clusterQueue cq"]


async def test_runs_where_its_flavor_says() -> None:
    b = queue_board()
    b.put(
        "ResourceFlavor",
        flavor(nodeLabels={"tier": "spot"}, tolerations=[{"key": "spot", "operator": "Exists"}]),
    )
    b.patch("Node", "node-1", {"metadata": {"labels": {"tier": "spot"}}})
    b.put("Job", job("train"))

    await b.settle()

    pod_spec = b.get("Job", "default/train")["spec"]["template"]["spec"]
    assert pod_spec["nodeSelector"] == {"tier": "spot"}
    assert pod_spec["tolerations"] == [{"key": "spot", "operator": "Exists"}]


async def test_pods_that_others_place_get_quota_and_no_node_of_ours() -> None:
    b = queue_board(config="makeway: {schedulerNames: [makeway]}")
    elsewhere = job("train")
    elsewhere["spec"]["template"]["spec"]["schedulerName"] = "another"
    b.put("Job", elsewhere)
    await b.settle()
    assert b.condition(b.workload_of("train"), "Admitted")[0] == "True"

    with pytest.raises(AssertionError, match="train-0 has no node"):
        await b.run_pods("train")


async def test_a_queued_job_that_names_no_scheduler_waits_for_nodes_too() -> None:
    """Its pods are given to us when they arrive, whatever other names we answer to."""
    b = queue_board(cpu="1000", config="makeway: {schedulerNames: [makeway]}")
    b.put("Job", job("large", cpu="500"))
    await b.settle()
    assert b.condition(b.workload_of("large"), "QuotaReserved")[:2] == ("False", "WaitingForNodes")


async def test_waits_with_kueues_words_when_the_quota_is_taken() -> None:
    b = queue_board(cpu="4")
    b.put("Job", job("first", "3"))
    await b.settle()
    b.put("Job", job("second", "3"))

    await b.settle()

    assert b.condition(b.workload_of("second"), "QuotaReserved") == (
        "False",
        "WaitingForQuota",
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor "
        "default-flavor, 2 more needed",
    )
    assert b.get("Job", "default/second")["spec"]["suspend"] is True


async def test_a_victim_is_suspended_restored_and_requeued() -> None:
    b = queue_board(cpu="4", **PREEMPTS)
    b.put("Job", job("low", "3", priority="low"))
    await b.settle()
    await b.run_pods("low")
    before = b.workload_of("low")
    assert b.condition(before, "PodsReady")[0] == "True"
    b.put("Job", job("high", "3", priority="high"))
    await b.settle()

    # Told to stop, it holds its quota until its pods are on their way out.
    low = b.get("Job", "default/low")
    assert low["spec"]["suspend"] is True
    assert low["metadata"]["annotations"] == {"kueue.x-k8s.io/stopping": "true"}
    assert b.condition(b.workload_of("low"), "QuotaReserved")[0] == "True"
    assert b.condition(b.workload_of("high"), "QuotaReserved")[1] == "WaitingForPreemptedWorkloads"

    await b.stop_pods("low")

    low = b.get("Job", "default/low")
    assert low["metadata"].get("annotations", {}) == {}
    assert "kueue.x-k8s.io/podset" not in low["spec"]["template"]["metadata"]["labels"]
    status, reason, message = b.condition(b.workload_of("low"), "Evicted")
    assert (status, reason) == ("True", "Preempted")
    assert message.startswith("Preempted to accommodate a workload (UID: ")
    assert (
        "due to prioritization in the ClusterQueue; preemptor path: /cq; preemptee path: /cq; preemptor: "
        in message
    )
    assert "(priority 1000 over 100); loss: " in message
    assert b.condition(b.workload_of("low"), "Requeued")[0:2] == ("True", "Preempted")
    assert b.condition(b.workload_of("high"), "Admitted")[0] == "True"
    assert b.workload_of("low")["status"]["schedulingStats"]["evictions"] == [
        {"reason": "Preempted", "underlyingCause": "", "count": 1}
    ]


async def test_finishes_with_its_job_and_lets_the_next_one_in() -> None:
    b = queue_board(cpu="4")
    b.put("Job", job("first", "3"))
    b.put("Job", job("second", "3"))
    await b.settle()
    done = {
        "type": "Complete",
        "status": "True",
        "reason": "CompletionsReached",
        "message": "Reached expected number of succeeded pods",
    }
    b.patch("Job", "default/first", {"status": {"succeeded": 1, "conditions": [done]}})

    await b.settle()

    first = b.workload_of("first")
    assert b.condition(first, "Finished") == ("True", "Succeeded", done["message"])
    assert first["metadata"].get("finalizers") is None
    assert b.condition(b.workload_of("second"), "Admitted")[0] == "True"


async def test_partial_admission_lowers_parallelism_and_eviction_restores_it() -> None:
    b = queue_board(cpu="5", **PREEMPTS)
    elastic = job("part", "1", priority="low", parallelism=10, completions=10)
    elastic["metadata"]["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": "2"}
    b.put("Job", elastic)
    await b.settle()
    assert b.get("Job", "default/part")["spec"]["parallelism"] == 5
    await b.run_pods("part")

    b.put("Job", job("high", "4", priority="high"))
    await b.settle()
    await b.stop_pods("part")

    assert b.get("Job", "default/part")["spec"]["parallelism"] == 10
    assert b.get("Job", "default/part")["spec"]["suspend"] is True


async def test_quota_counts_what_the_configuration_says() -> None:
    config = """
resources:
  excludeResourcePrefixes: [memory]
  transformations: [{input: example.com/slice, strategy: Replace, outputs: {cpu: "2"}}]
"""
    b = queue_board(cpu="5", config=config)
    asks = job("sliced", "1")
    requests = {"cpu": "1", "memory": "1Gi", "example.com/slice": "2"}
    asks["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": requests}
    for name in ("node-1", "node-2"):
        sizes = {"cpu": "8", "memory": "64Gi", "pods": "110", "example.com/slice": "4"}
        b.patch("Node", name, {"status": {"allocatable": sizes, "capacity": sizes}})
    b.put("Job", asks)
    await b.settle()
    given = b.workload_of("sliced")["status"]["admission"]["podSetAssignments"][0]
    assert given["resourceUsage"] == {"cpu": "5"}

    second = {**asks, "metadata": {**asks["metadata"], "name": "second"}}
    b.put("Job", second)
    await b.settle()
    waits = b.workload_of("second")["status"]
    assert waits["resourceRequests"] == [{"name": "main", "resources": {"cpu": "5"}}]


async def test_unsuspended_by_hand_is_suspended_again() -> None:
    b = queue_board(cpu="1")
    b.put("Job", job("big", "3"))
    await b.settle()
    b.patch("Job", "default/big", {"spec": {"suspend": False}})

    await b.settle()

    assert b.get("Job", "default/big")["spec"]["suspend"] is True
    assert b.told("Stopped") == ["Not admitted by cluster queue"]


async def test_waits_for_its_priority_class_and_says_so_once() -> None:
    b = queue_board()
    b.put("Job", job("train", priority="unheard-of"))
    await b.settle()
    await b.settle()
    assert b.told("WorkloadPriorityClassNotFound") == [
        'WorkloadPriorityClass "unheard-of" not found'
    ]

    b.put("WorkloadPriorityClass", priority_class("unheard-of", 7))
    await b.settle()

    assert b.workload_of("train")["spec"]["priority"] == 7


async def test_a_changed_job_changes_its_waiting_workload() -> None:
    b = queue_board(cpu="1")
    b.put("Job", job("train", "3"))
    await b.settle()
    b.patch("Job", "default/train", {"spec": {"parallelism": 2, "completions": 2}})

    await b.settle()

    assert b.workload_of("train")["spec"]["podSets"][0]["count"] == 2
    assert b.told("UpdatedWorkload")[0].startswith(
        "Updated not matching Workload for suspended job"
    )


async def test_a_deleted_job_frees_its_quota() -> None:
    b = queue_board(cpu="4")
    b.put("Job", job("first", "3"))
    b.put("Job", job("second", "3"))
    await b.settle()
    b.drop("Job", "default/first")

    await b.settle()

    assert b.condition(b.workload_of("first"), "Finished")[1] == "OwnerNotFound"
    assert b.condition(b.workload_of("second"), "Admitted")[0] == "True"


async def test_a_deleted_workload_is_made_anew() -> None:
    b = queue_board()
    b.put("Job", job("train"))
    await b.settle()
    name = b.workload_of("train")["metadata"]["name"]
    b.patch(
        "Workload", f"default/{name}", {"metadata": {"deletionTimestamp": "2027-01-15T08:00:00Z"}}
    )

    await b.settle()

    assert b.told("Stopped") == ["Workload is deleted"]
    assert b.get("Job", "default/train")["spec"]["suspend"] is False
    assert len(b.told("CreatedWorkload")) == 2


async def test_a_conflict_of_node_labels_is_final() -> None:
    b = queue_board()
    b.put("ResourceFlavor", flavor(nodeLabels={"tier": "spot"}))
    picky = job("train")
    picky["spec"]["template"]["metadata"]["labels"]["paid-by"] = "us"
    b.put("Job", picky)
    check = {
        "name": "budget",
        "state": "Ready",
        "podSetUpdates": [{"name": "main", "labels": {"paid-by": "them"}}],
    }
    b.put(
        "AdmissionCheck",
        {
            "metadata": {"name": "budget"},
            "spec": {"controllerName": "x"},
            "status": {
                "conditions": [
                    {"type": "Active", "status": "True", "reason": "Active", "message": ""}
                ]
            },
        },
    )
    b.patch("Node", "node-1", {"metadata": {"labels": {"tier": "spot"}}})
    b.patch(
        "ClusterQueue",
        "cq",
        {"spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": "budget"}]}}},
    )
    await b.settle()
    name = b.workload_of("train")["metadata"]["name"]
    b.patch("Workload", f"default/{name}", {"status": {"admissionChecks": [check]}})

    await b.settle()

    assert b.condition(b.workload_of("train"), "Finished")[1] == "FailedToStart"
    assert b.get("Job", "default/train")["spec"]["suspend"] is True


async def test_a_reason_that_changes_all_the_time_is_not_written_all_the_time() -> None:
    b = queue_board(cpu="1")
    b.put("Job", job("big", "20"))
    await b.settle()
    for size in range(2, 14):
        quota = [{"name": "cpu", "nominalQuota": str(size)}]
        groups = [
            {
                "coveredResources": ["cpu"],
                "flavors": [{"name": "default-flavor", "resources": quota}],
            }
        ]
        b.patch("ClusterQueue", "cq", {"spec": {"resourceGroups": groups}})
        await b.settle()
    name = b.workload_of("big")["metadata"]["name"]
    written = b.api.log.count(f"patch Workload {name}")
    assert written <= 7

    await b.wait(60)

    message = b.condition(b.workload_of("big"), "QuotaReserved")[2]
    assert message.endswith("> maximum capacity (13)")
    assert b.api.log.count(f"patch Workload {name}") == written + 1


async def test_a_job_that_is_done_before_anybody_looked_was_ready() -> None:
    b = queue_board(cpu="4")
    b.put("Job", job("quick"))
    await b.settle()
    over = {"type": "Complete", "status": "True", "reason": "CompletionsReached", "message": "done"}
    b.patch("Job", "default/quick", {"status": {"succeeded": 1, "conditions": [over]}})

    await b.settle()

    workload = b.workload_of("quick")
    assert b.condition(workload, "Finished")[0] == "True"
    assert b.condition(workload, "PodsReady")[:2] == ("True", "Started")


async def test_beside_a_living_kueue_its_workloads_are_safe_and_it_says_why() -> None:
    before = queue_board()
    before.put("Job", job("train", cpu="8"))
    await before.settle()
    await before.run_pods("train")
    b = Board(queues_are_ours=False)
    for kind in ("Namespace", "ResourceFlavor", "ClusterQueue", "LocalQueue", "Node", "Job"):
        for obj in before.cluster.copy.all(kind):
            b.put(kind, obj)
    for kind in ("Workload", "Pod"):
        for obj in before.cluster.copy.all(kind):
            b.put(kind, obj)
    for name in ("urgent", "too"):
        b.put("Pod", pod(name, "8", priority=1000))

    await b.settle()

    placed = [bool(b.get("Pod", f"default/{n}")["spec"].get("nodeName")) for n in ("urgent", "too")]
    assert sorted(placed) == [False, True]  # two nodes, and Kueue's job has one of them
    assert "deletionTimestamp" not in b.get("Pod", "default/train-0")["metadata"]
    (trained,) = [w for w in b.loop.state.workloads.values() if w.local_queue]
    assert trained.protected == "Kueue admitted it, and evicts by its own rules"


async def test_pods_that_must_be_near_each_other_run_inside_one_rack_or_wait() -> None:
    b = queue_board(cpu="100")
    for number in range(4):
        name = f"node-{number + 1}"
        b.put("Node", node(name, cpu="8"))
        b.patch("Node", name, {"metadata": {"labels": {"rack": f"r{number // 2}"}}})
    near = {"metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}}}
    for name, pods in (("pair", 2), ("three", 3)):
        made = job(name, cpu="8", parallelism=pods, completions=pods)
        made["spec"]["template"] |= near
        b.put("Job", made)
    await b.settle()

    request = b.workload_of("pair")["spec"]["podSets"][0]["topologyRequest"]
    assert request["required"] == "rack"
    await b.run_pods("pair")
    nodes = {b.get("Pod", f"default/pair-{n}")["spec"]["nodeName"] for n in range(2)}
    assert nodes in ({"node-1", "node-2"}, {"node-3", "node-4"})
    status, reason, message = b.condition(b.workload_of("three"), "QuotaReserved")
    assert (status, reason) == ("False", "WaitingForNodes")
    assert "(2 of 3 pods would fit within one rack)" in message


async def test_a_topology_that_no_node_has_is_named() -> None:
    b = queue_board()
    made = job("lost")
    made["spec"]["template"]["metadata"] = {
        "annotations": {"kueue.x-k8s.io/podset-required-topology": "block"}
    }
    b.put("Job", made)
    await b.settle()
    _, _, message = b.condition(b.workload_of("lost"), "QuotaReserved")
    assert message == "no node has the label block, within which its pods must be"


@pytest.mark.parametrize(("group", "admitted"), [("", True), ("both", False)])
async def test_each_pod_set_has_a_rack_of_its_own_unless_they_are_grouped(
    group: str, admitted: bool
) -> None:
    b = queue_board(cpu="100")
    for number in range(4):
        name = f"node-{number + 1}"
        b.put("Node", node(name, cpu="8"))
        b.patch("Node", name, {"metadata": {"labels": {"rack": f"r{number // 2}"}}})
    notes = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    if group:
        notes["kueue.x-k8s.io/podset-group-name"] = group
    template = {"metadata": {"annotations": notes}, "spec": {"containers": containers("8")}}
    jobs = [
        {
            "name": sort,
            "replicas": 1,
            "template": {"spec": {"parallelism": 2, "template": template}},
        }
        for sort in ("left", "right")
    ]
    labels = {"kueue.x-k8s.io/queue-name": "queue"}
    metadata = {"name": "set", "namespace": "default", "uid": "uid-set", "labels": labels}
    spec = {"suspend": True, "replicatedJobs": jobs}
    b.put("JobSet", {"metadata": metadata, "spec": spec})

    await b.settle()

    assert (b.condition(b.workload_of("set"), "Admitted")[0] == "True") is admitted
