"""Pods without a queue: placed, refused in kube-scheduler's words, evicted with a reason."""

from __future__ import annotations

import pytest

from tests.kube.board import Board, Object, node, pod, queue_board


def board(*cpus: str, config: str = "") -> Board:
    made = Board(config)
    made.put("Namespace", {"metadata": {"name": "default"}})
    for number, cpu in enumerate(cpus, 1):
        made.put("Node", node(f"node-{number}", cpu=cpu))
    return made


def why(b: Board, name: str) -> str:
    for c in b.get("Pod", f"default/{name}")["status"].get("conditions", []):
        if c["type"] == "PodScheduled" and c["status"] == "False":
            return str(c["message"])
    return ""


async def running(b: Board, *pods: dict[str, object]) -> None:
    for one in pods:
        b.put("Pod", one)
    await b.settle()
    for one in pods:
        b.running(f"default/{one['metadata']['name']}")  # type: ignore[index]
    await b.settle()


async def test_a_pod_is_bound_with_its_schedulers_name_on_the_event() -> None:
    b = board("4")
    b.put("Pod", pod("one", "2", schedulerName="koord-scheduler"))

    await b.settle()

    assert b.get("Pod", "default/one")["spec"]["nodeName"] == "node-1"
    (told,) = [t for t in b.api.told if t.reason == "Scheduled"]
    assert (told.note, told.component, told.action) == (
        "Successfully assigned default/one to node-1",
        "koord-scheduler",
        "Binding",
    )


async def test_too_large_for_every_node() -> None:
    b = board("4", "4")
    b.put("Pod", pod("big", "8"))

    await b.settle()

    assert why(b, "big") == (
        "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: "
        "0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )
    assert b.told("FailedScheduling") == [why(b, "big")]


async def test_no_nodes_at_all() -> None:
    b = board()
    b.put("Pod", pod("lonely"))
    await b.settle()
    assert why(b, "lonely") == "no nodes available to schedule pods"


async def test_a_closed_gate_keeps_a_pod_where_it_is() -> None:
    b = board("4")
    b.put("Pod", pod("one", schedulingGates=[{"name": "example.com/wait"}]))
    await b.settle()
    assert "nodeName" not in b.get("Pod", "default/one")["spec"]


async def test_a_victim_is_told_before_it_is_deleted_and_the_room_is_held() -> None:
    b = board("4")
    await running(b, pod("low", "3", priority=10))
    b.put("Pod", pod("high", "3", priority=100))

    await b.settle()

    low = b.get("Pod", "default/low")
    (told,) = [c for c in low["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert told["message"].startswith(
        "default-scheduler: preempting to accommodate a higher priority pod; preemptor: default/high "
        "(priority 100 over 10); loss: "
    )
    first = b.api.log.index(
        "create Preemption " + b.cluster.copy.keys("Preemption")[0].split("/")[1]
    )
    assert first < b.api.log.index("patch Pod low") < b.api.log.index("delete Pod low")
    assert b.get("Pod", "default/high")["status"]["nominatedNodeName"] == "node-1"
    assert why(b, "high") == "0/1 nodes are available: 1 Insufficient cpu."
    (record,) = b.cluster.copy.all("Preemption")
    assert "status" not in record
    await b.wait(3)
    (record,) = b.cluster.copy.all("Preemption")
    assert record["status"]["phase"] == "Draining"

    # Somebody of lower priority may not slip in.
    b.put("Pod", pod("mid", "3", priority=50))
    await b.settle()
    b.drop("Pod", "default/low")
    await b.settle()

    assert b.get("Pod", "default/high")["spec"]["nodeName"] == "node-1"
    assert "nodeName" not in b.get("Pod", "default/mid")["spec"]
    (record,) = b.cluster.copy.all("Preemption")
    assert record["status"]["phase"] == "Placed"


async def test_a_preemption_that_is_over_in_a_moment_is_told_once() -> None:
    b = board("4")
    await running(b, pod("low", "3", priority=10))
    b.put("Pod", pod("high", "3", priority=100))
    await b.settle()
    b.drop("Pod", "default/low")
    await b.settle()
    (record,) = b.cluster.copy.all("Preemption")
    assert record["status"]["phase"] == "Placed"
    assert [line for line in b.api.log if "Preemption" in line] == [
        f"create Preemption {record['metadata']['name']}",
        f"patch Preemption {record['metadata']['name']}",
    ]


async def test_of_many_preemptions_at_once_only_those_that_last_point_at_their_nodes() -> None:
    b = board(*["1"] * 20)
    for n in range(20):
        await running(b, pod(f"low-{n:02}", "1", priority=10))
    for n in range(20):
        b.put("Pod", pod(f"high-{n:02}", "1", priority=100))
    await b.settle()
    assert not any(line.startswith("patch Pod high") for line in b.api.log)
    for n in range(19):
        b.drop("Pod", f"default/low-{n:02}")
    await b.settle()
    await b.wait(11)
    (waits,) = {line for line in b.api.log if line.startswith("patch Pod high")}
    left = b.get("Pod", f"default/{waits.split()[-1]}")
    assert "nodeName" not in left["spec"]
    assert left["status"]["nominatedNodeName"]


async def test_nobody_is_touched_when_the_record_cannot_be_written() -> None:
    b = board("4")
    await running(b, pod("low", "3", priority=10))
    b.api.refuse.add("create Preemption")
    b.put("Pod", pod("high", "3", priority=100))
    for _ in range(4):
        await b.loop.once()

    assert "deletionTimestamp" not in b.get("Pod", "default/low")["metadata"]

    b.api.refuse.clear()
    await b.wait(15)
    assert "deletionTimestamp" in b.get("Pod", "default/low")["metadata"]


async def test_never_means_never() -> None:
    b = board("4")
    await running(b, pod("low", "3", priority=10))
    b.put("Pod", pod("high", "3", priority=100, preemptionPolicy="Never"))
    await b.settle()
    assert why(b, "high") == (
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, "
        "preemption: not eligible due to preemptionPolicy=Never."
    )


async def test_a_restart_goes_on_with_what_was_begun() -> None:
    b = board("4")
    await running(b, pod("low", "3", priority=10))
    b.put("Pod", pod("high", "3", priority=100))
    await b.settle()

    # Another process sees the same API: same hold, nobody told twice, no second record.
    again = Board()
    again.clock.time = b.clock.time
    for kind in ("Namespace", "Node", "Pod", "Preemption"):
        for obj in b.cluster.copy.all(kind):
            again.put(kind, obj)
    await again.settle()
    assert [line for line in again.api.log if line.startswith(("create", "delete", "bind"))] == []

    again.drop("Pod", "default/low")
    await again.settle()
    assert again.get("Pod", "default/high")["spec"]["nodeName"] == "node-1"


async def test_a_missing_claim_is_named() -> None:
    b = board("4")
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "absent"}}
    b.put("Pod", pod("one", volumes=[volume]))
    await b.settle()
    assert why(b, "one") == (
        '0/1 nodes are available: persistentvolumeclaim "absent" not found. not found'
    )

    b.put("PersistentVolumeClaim", {"metadata": {"name": "absent"}, "status": {"phase": "Bound"}})
    await b.settle()
    assert b.get("Pod", "default/one")["spec"]["nodeName"] == "node-1"


GANG = {"pod-group.scheduling.sigs.k8s.io": "g"}


async def test_a_gang_is_bound_whole_or_not_at_all() -> None:
    b = board("4", "4")
    b.put("PodGroup", {"metadata": {"name": "g"}, "spec": {"minMember": 3}})
    for name in ("a", "b"):
        b.put("Pod", pod(name, "3", labels=GANG, schedulerName="koord-scheduler"))
    await b.settle()
    assert [line for line in b.api.log if line.startswith("bind")] == []

    b.put("Pod", pod("c", "3", labels=GANG, schedulerName="koord-scheduler"))
    await b.settle()
    assert [line for line in b.api.log if line.startswith("bind")] == []

    assert b.get("PodGroup", "default/g")["status"]["phase"] == "Scheduling"

    b.put("Node", node("node-3", cpu="4"))
    await b.settle()
    group = b.get("PodGroup", "default/g")["status"]
    assert (group["phase"], group["scheduled"]) == ("Scheduled", 3)
    assert sorted(b.get("Pod", f"default/{n}")["spec"]["nodeName"] for n in "abc") == [
        "node-1",
        "node-2",
        "node-3",
    ]


async def test_pods_of_other_schedulers_are_left_to_them() -> None:
    b = board("4", config="makeway: {schedulerNames: [makeway]}")
    b.put("Pod", pod("theirs", "3", schedulerName="default-scheduler"))
    b.put("Pod", pod("ours", "3", schedulerName="makeway"))
    await b.settle()
    assert "nodeName" not in b.get("Pod", "default/theirs")["spec"]
    assert b.get("Pod", "default/ours")["spec"]["nodeName"] == "node-1"


async def test_losses_are_counted_for_whoever_owns_the_pods() -> None:
    b = board("4")
    owned = pod("low", "3", priority=10)
    owned["metadata"]["ownerReferences"] = [
        {"kind": "ReplicaSet", "name": "web", "uid": "web-uid", "controller": True}
    ]
    await running(b, owned)
    b.put("Pod", pod("high", "3", priority=100))

    await b.settle()

    assert list(b.cluster.history()) == ["web-uid"]
    assert b.loop.state.history == b.cluster.history()


async def test_a_closed_record_is_kept_for_a_week() -> None:
    b = board("4")
    await running(b, pod("low", "3", priority=10))
    b.put("Pod", pod("high", "3", priority=100))
    await b.settle()
    b.drop("Pod", "default/low")
    await b.settle()

    await b.wait(6 * 86_400)
    assert len(b.cluster.copy.keys("Preemption")) == 1
    await b.wait(2 * 86_400)
    assert b.cluster.copy.keys("Preemption") == []


async def test_a_volume_that_binds_late_gets_its_node_first() -> None:
    b = board("4")
    b.put(
        "StorageClass", {"metadata": {"name": "local"}, "volumeBindingMode": "WaitForFirstConsumer"}
    )
    claim = {
        "metadata": {"name": "data"},
        "spec": {"storageClassName": "local"},
        "status": {"phase": "Pending"},
    }
    b.put("PersistentVolumeClaim", claim)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    b.put("Pod", pod("one", volumes=[volume]))
    await b.settle()
    chosen = b.get("PersistentVolumeClaim", "default/data")["metadata"]["annotations"]
    assert chosen == {"volume.kubernetes.io/selected-node": "node-1"}
    assert "nodeName" not in b.get("Pod", "default/one")["spec"]

    b.patch("PersistentVolumeClaim", "default/data", {"status": {"phase": "Bound"}})
    await b.settle()
    assert b.get("Pod", "default/one")["spec"]["nodeName"] == "node-1"


async def test_a_gang_with_a_queue_keeps_its_nodes_over_a_restart() -> None:
    from tests.kube.board import job

    b = queue_board()
    b.put("Job", job("train", "2", completionMode="Indexed", parallelism=2, completions=2))
    await b.settle()
    written = b.workload_of("train")["metadata"]["annotations"]["makeway.dev/placement"]
    assert '"count":2' in written or written.count('"count":1') == 2


async def test_what_a_preemptor_lacked_is_said_of_the_nodes_before_anybody_made_way() -> None:
    b = board()
    b.put("Node", node("small", cpu="4", memory="4Gi"))
    b.put("Node", node("busy", cpu="2", memory="16Gi"))
    await running(b, pod("low", "2", priority=1, nodeName="busy"))
    large = pod("large", "2", priority=9)
    large["spec"]["containers"][0]["resources"]["requests"]["memory"] = "12Gi"

    b.put("Pod", large)
    await b.settle()

    assert why(b, "large") == (
        "0/2 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."
    )


# Sets whose pods belong together


def jobset(**spec: object) -> Object:
    def sort(name: str, replicas: int) -> Object:
        return {"name": name, "replicas": replicas, "template": {"spec": {"parallelism": 1}}}

    jobs = [sort("lead", 1), sort("work", 2)]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train", "namespace": "default", "uid": "uid-train"},
        "spec": {"replicatedJobs": jobs, **spec},
    }


def of_jobset(sort: str, index: int, cpu: str, **spec: object) -> Object:
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "train",
        "jobset.sigs.k8s.io/replicatedjob-name": sort,
    }
    return pod(f"train-{sort}-{index}", cpu, labels=labels, **spec)


def placed(b: Board) -> list[str]:
    pods = b.cluster.copy.all("Pod")
    return sorted(p["metadata"]["name"] for p in pods if p["spec"].get("nodeName"))


async def test_a_jobset_without_a_queue_is_placed_whole_or_not_at_all() -> None:
    b = board("4", "4")
    b.put("JobSet", jobset())
    b.put("Pod", of_jobset("lead", 0, "1"))
    b.put("Pod", of_jobset("work", 0, "3"))
    await b.settle()
    assert placed(b) == [], "one is still to come"
    b.put("Pod", of_jobset("work", 1, "4"))
    await b.settle()
    assert placed(b) == ["train-lead-0", "train-work-0", "train-work-1"]


async def test_a_jobset_that_does_not_fit_takes_no_room() -> None:
    b = board("4", "4")
    b.put("JobSet", jobset())
    for sort, index, cpu in (("lead", 0, "2"), ("work", 0, "3"), ("work", 1, "4")):
        b.put("Pod", of_jobset(sort, index, cpu))
    await b.settle()
    assert placed(b) == []
    b.put("Pod", pod("other", "4"))
    await b.settle()
    assert placed(b) == ["other"]


async def test_a_jobset_in_order_comes_job_by_job() -> None:
    b = board("4")
    b.put("JobSet", jobset(startupPolicy={"startupPolicyOrder": "InOrder"}))
    b.put("Pod", of_jobset("lead", 0, "1"))
    await b.settle()
    assert placed(b) == ["train-lead-0"]


async def test_all_of_a_jobset_is_preempted() -> None:
    b = board("4", "4")
    b.put("JobSet", jobset())
    members = [of_jobset("lead", 0, "1"), of_jobset("work", 0, "3"), of_jobset("work", 1, "4")]
    await running(b, *members)
    b.put("Pod", pod("urgent", "4", priority=100))
    await b.settle()
    going = [p["metadata"]["name"] for p in b.cluster.copy.all("Pod") if leaving(p)]
    assert sorted(going) == ["train-lead-0", "train-work-0", "train-work-1"]


def leaving(one: Object) -> bool:
    return bool(one["metadata"].get("deletionTimestamp"))


def group(index: int, worker: int, cpu: str) -> Object:
    labels = {
        "leaderworkerset.sigs.k8s.io/name": "serve",
        "leaderworkerset.sigs.k8s.io/group-index": str(index),
        "leaderworkerset.sigs.k8s.io/worker-index": str(worker),
    }
    name = f"serve-{index}-{worker}" if worker else f"serve-{index}"
    return pod(name, cpu, labels=labels)


def leader_worker_set(**spec: object) -> Object:
    form = {"size": 2, "leaderTemplate": {}, "workerTemplate": {}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve", "namespace": "default", "uid": "uid-serve"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": form, **spec},
    }


async def test_each_group_of_a_leaderworkerset_is_placed_whole_or_not_at_all() -> None:
    b = board("4", "4")
    b.put("LeaderWorkerSet", leader_worker_set())
    for index in (0, 1):
        b.put("Pod", group(index, 0, "2"))
        b.put("Pod", group(index, 1, "3"))
    await b.settle()
    assert len(placed(b)) == 2, "room for one group, and for the leader of another"
    assert placed(b) in (["serve-0", "serve-0-1"], ["serve-1", "serve-1-1"])


async def test_workers_that_wait_for_their_leader_do_not_keep_it_waiting() -> None:
    b = board("4")
    b.put("LeaderWorkerSet", leader_worker_set(startupPolicy="LeaderReady"))
    b.put("Pod", group(0, 0, "2"))
    await b.settle()
    assert placed(b) == ["serve-0"]


@pytest.mark.parametrize("victims", ["least-loss", "kube"])
async def test_room_that_was_made_for_somebody_goes_to_who_ranks_higher_and_the_record_says_so(
    victims: str,
) -> None:
    b = board("4", config=f"makeway: {{victims: {victims}}}")
    await running(b, pod("low", "4", priority=10))
    b.put("Pod", pod("middle", "4", priority=500))
    await b.settle()
    assert b.get("Pod", "default/middle")["status"]["nominatedNodeName"] == "node-1"

    b.put("Pod", pod("high", "4", priority=1000))
    await b.settle()

    assert b.get("Pod", "default/high")["status"]["nominatedNodeName"] == "node-1"
    assert not b.get("Pod", "default/middle")["status"].get("nominatedNodeName")
    (record,) = b.cluster.copy.all("Preemption")
    assert record["spec"]["preemptor"] == "default/middle"
    assert (record["status"]["phase"], record["status"]["message"]) == (
        "Cancelled",
        "default/high (priority 1000) took the room",
    )

    b.drop("Pod", "default/low")
    await b.settle()
    assert b.get("Pod", "default/high")["spec"]["nodeName"] == "node-1"
    assert "No preemption victims found for incoming pod" in why(b, "middle")
