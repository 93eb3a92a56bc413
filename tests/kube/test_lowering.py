"""A Job with a minimum parallelism gives up pods above it, and goes on."""

from __future__ import annotations

import contextlib

import pytest

from tests.kube.board import (
    PREEMPTS,
    Board,
    Object,
    cluster_queue,
    job,
    queue_board,
)
from tests.kube.test_faults import Killed, MortalApi

COMPLETE = {"type": "Complete", "status": "True", "reason": "CompletionsReached", "message": "done"}


def board(cpu: str) -> Board:
    return queue_board(cpu, **PREEMPTS)


def elastic_job(name: str = "elastic") -> Object:
    """Six pods of one CPU, of which two are enough."""
    found = job(name, "1", priority="low", parallelism=6, completions=60)
    found["metadata"]["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": "2"}
    return found


async def test_a_job_with_a_minimum_is_lowered_for_a_higher_priority() -> None:
    b = board(cpu="6")
    b.put("Job", elastic_job())
    await b.settle()
    await b.run_pods("elastic")
    b.api.log.clear()

    b.put("Job", job("high", "2", priority="high"))
    await b.settle()

    assert [step for step in b.api.log if step.split()[-1].startswith("elastic")] == [
        "patch Pod elastic-4",
        "delete Pod elastic-4",
        "patch Pod elastic-5",
        "delete Pod elastic-5",
        "patch Job elastic",
    ]
    assert b.get("Job", "default/elastic")["spec"]["parallelism"] == 4
    assert b.get("Job", "default/elastic")["spec"]["suspend"] is False
    victim = b.workload_of("elastic")
    assert victim["status"]["admission"]["podSetAssignments"] == [
        {
            "name": "main",
            "flavors": {"cpu": "default-flavor"},
            "resourceUsage": {"cpu": "4"},
            "count": 4,
        }
    ]
    assert b.condition(victim, "Evicted") == ("", "", "")
    assert b.condition(b.workload_of("high"), "Admitted")[0] == "True"
    note = b.told("Lowered")[0]
    assert note.startswith(
        "Lowered from 6 to 4 pods due to prioritization in the ClusterQueue; "
        "stopped: elastic-4, elastic-5; preemptor: default/job-high-"
    )
    (record,) = b.cluster.copy.all("Preemption")
    (named,) = record["spec"]["victims"]
    assert (named["loweredFrom"], named["loweredTo"], named["afterwards"]) == (6, 4, "Lowered")
    assert record["status"]["victimsText"].endswith("(6 to 4 pods)")


async def test_a_job_that_was_not_lowered_yet_is_lowered_from_the_record() -> None:
    b = board(cpu="6")
    b.put("Job", elastic_job())
    await b.settle()
    await b.run_pods("elastic")
    b.api.refuse = {"patch Job elastic"}
    b.put("Job", job("high", "2", priority="high"))
    await b.settle()
    assert b.condition(b.workload_of("high"), "Admitted")[0] != "True"
    for gone in ("elastic-4", "elastic-5"):
        b.drop("Pod", f"default/{gone}")
    b.api.refuse = set()

    fresh = b.restarted()
    await fresh.settle()

    assert fresh.get("Job", "default/elastic")["spec"]["parallelism"] == 4
    assert fresh.condition(fresh.workload_of("high"), "Admitted")[0] == "True"
    assert fresh.condition(fresh.workload_of("elastic"), "Evicted") == ("", "", "")


@pytest.mark.parametrize("writes", range(12))
async def test_killed_after_any_write_the_job_ends_up_lowered_and_nobody_else_falls(
    writes: int,
) -> None:
    b = board(cpu="6")
    b.put("Job", elastic_job())
    await b.settle()
    await b.run_pods("elastic")
    mortal = MortalApi(b.cluster, b.clock)
    mortal._numbers = b.api._numbers
    mortal.left = writes
    b.api = mortal
    b.cluster.writer = mortal  # type: ignore[assignment]
    b.put("Job", job("high", "2", priority="high"))
    with contextlib.suppress(Killed):
        await b.settle()
    b = b.restarted()
    await b.settle()
    for key in b.cluster.copy.keys("Pod"):  # those that were told end
        if "deletionTimestamp" in b.get("Pod", key)["metadata"]:
            b.drop("Pod", key)
    await b.settle()

    assert b.get("Job", "default/elastic")["spec"]["parallelism"] == 4
    assert len(list(b.cluster.copy.keys("Pod"))) == 4
    victim = b.workload_of("elastic")
    assert victim["status"]["admission"]["podSetAssignments"][0]["count"] == 4
    assert b.condition(victim, "Evicted") == ("", "", "")
    assert b.condition(b.workload_of("high"), "Admitted")[0] == "True"
    assert [r["status"]["phase"] for r in b.cluster.copy.all("Preemption")] == ["Placed"]


async def test_what_was_begun_is_finished_though_the_room_came_from_elsewhere() -> None:
    b = board(cpu="6")
    b.put("Job", elastic_job())
    await b.settle()
    await b.run_pods("elastic")
    b.api.refuse = {f"patch Workload {b.workload_of('elastic')['metadata']['name']}"}
    b.put("Job", job("high", "2", priority="high"))
    await b.settle()
    b.put("ClusterQueue", {**b.get("ClusterQueue", "cq"), **cluster_queue(cpu="20", **PREEMPTS)})
    await b.settle()
    assert b.condition(b.workload_of("high"), "Admitted")[0] == "True"
    assert b.get("Job", "default/elastic")["spec"]["parallelism"] == 4

    b.api.refuse = set()
    await b.wait(5)

    given = b.workload_of("elastic")["status"]["admission"]["podSetAssignments"][0]
    assert (given["count"], given["resourceUsage"]) == (4, {"cpu": "4"})
    assert [r["status"]["phase"] for r in b.cluster.copy.all("Preemption")] == ["Placed"]


async def test_a_lowered_job_is_whole_again_when_it_is_admitted_anew() -> None:
    b = board(cpu="6")
    b.put("Job", elastic_job())
    await b.settle()
    await b.run_pods("elastic")
    b.put("Job", job("high", "2", priority="high"))
    await b.settle()
    b.put("Job", job("higher", "4", priority="high"))
    await b.settle()
    await b.stop_pods("elastic")
    assert b.get("Job", "default/elastic")["spec"]["parallelism"] == 6

    for done in ("high", "higher"):
        b.patch("Job", f"default/{done}", {"status": {"conditions": [COMPLETE]}})
    await b.settle()

    assert b.get("Job", "default/elastic")["spec"]["parallelism"] == 6
    assert b.get("Job", "default/elastic")["spec"]["suspend"] is False


async def test_a_job_whose_completions_follow_its_parallelism_falls_whole() -> None:
    b = board(cpu="6")
    whole = elastic_job()
    whole["metadata"]["annotations"]["kueue.x-k8s.io/job-completions-equal-parallelism"] = "true"
    b.put("Job", whole)
    await b.settle()
    await b.run_pods("elastic")
    b.put("Job", job("high", "2", priority="high"))
    await b.settle()
    assert b.condition(b.workload_of("elastic"), "Evicted")[0] == "True"
