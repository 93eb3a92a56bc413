"""SkyPilot tasks by the real command line: evicted, one is over and the other comes back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from makeway.client.resource import PODS
from tests.e2e.cli import EXAMPLES, PREEMPTIONS, WORKLOADS, Makeway, alive, machine_of_its_own

SKYPILOT = EXAMPLES / "skypilot"


@pytest.fixture
def makeway() -> Iterator[Makeway]:
    with machine_of_its_own("--capacity", "cpu=16,memory=64Gi,nvidia.com/gpu=4") as found:
        found("apply", "-f", str(SKYPILOT / "queues.yaml"))
        yield found


def test_launch_is_not_requeued(makeway: Makeway) -> None:
    answer = makeway("launch", "-y", "-d", "-c", "low", "task.yaml", code=1, cwd=SKYPILOT)
    assert 'Did you mean "low.yaml"?' in answer

    said = makeway.run("launch", "-y", "-d", "-c", "low", "low.yaml", cwd=SKYPILOT)
    assert "Job submitted, ID: 1" in said.stdout
    assert "do not say which accelerator" in said.stderr
    low = makeway.until("low runs", lambda: makeway.running("makeway.dev/cluster=low"))
    pid = makeway.pid_of(low)
    (workload,) = makeway.items(WORKLOADS)
    assert workload["metadata"]["name"].startswith("low-")
    assert "hi i'm a low priority job" in makeway.until("it prints", lambda: makeway.log_of(low))
    assert "already runs" in makeway(
        "launch", "-y", "-d", "-c", "low", "low.yaml", code=1, cwd=SKYPILOT
    )

    makeway("launch", "-y", "-d", "-c", "high", "high.yaml", cwd=SKYPILOT)
    makeway.until("high runs", lambda: makeway.running("makeway.dev/cluster=high"))

    assert not alive(pid)
    names = [one["metadata"]["name"] for one in makeway.items(WORKLOADS)]
    assert [name.split("-")[0] for name in names] == ["high"]
    (record,) = makeway.items(PREEMPTIONS)
    assert record["spec"]["victims"][0]["workload"].startswith("default/low-")
    assert record["spec"]["lossGPUSeconds"] >= 4 * 60  # four GPUs, a minute to restart
    assert record["spec"]["victims"][0]["afterwards"] == "Preempted"
    assert re.search(r"default/low-\S+ .* Preempted +\d+s", makeway("status"))


def test_a_managed_job_recovers(makeway: Makeway) -> None:
    def low(status: str) -> dict[str, Any] | None:
        (row,) = makeway.json("jobs", "queue")
        return row if row["status"] == status else None

    launched = makeway.json("jobs", "launch", "-n", "low", str(SKYPILOT / "low.yaml"))
    assert launched["job_id"] == 1
    makeway.until("low runs", lambda: low("RUNNING"))
    before = task_id(makeway)

    makeway("launch", "-y", "-d", "-c", "high", str(SKYPILOT / "high.yaml"))
    waiting = makeway.until("low recovers", lambda: low("RECOVERING"))
    assert "more needed" in makeway.until(
        "it says why", lambda: waiting["why"] or (low("RECOVERING") or {}).get("why")
    )
    makeway("delete", "pods", "-l", "makeway.dev/cluster=high")
    again = makeway.until("low runs again", lambda: low("RUNNING"))

    assert again["recoveries"] == 1
    assert task_id(makeway) == before
    assert "ID   TASK   NAME   REQUESTED" in makeway("jobs", "queue")
    assert "Managed job 1 (low) is cancelled" in makeway("jobs", "cancel", "low")


def test_the_nodes_of_a_task_start_together_and_know_each_other(
    makeway: Makeway, tmp_path: Path
) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(
        "num_nodes: 2\n"
        "resources: {cpus: 2, memory: 2}\n"
        "workdir: .\n"
        "envs: {GREETING: hello}\n"
        "setup: echo setup $SKYPILOT_SETUP_NODE_RANK\n"
        "run: echo $GREETING $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES in $PWD\n"
    )
    makeway("launch", "-y", "-d", "-c", "two", "--env", "GREETING=hi", str(file), cwd=tmp_path)

    def ended() -> list[dict[str, Any]] | None:
        pods = [p for p in makeway.items(PODS) if p["status"]["phase"] == "Succeeded"]
        return pods if len(pods) == 2 else None

    pods = makeway.until("both end", ended)
    logs = sorted(makeway("logs", pod["metadata"]["name"]) for pod in pods)
    assert logs == [
        f"setup 0\nhi 0 of 2 in {tmp_path}\n",
        f"setup 1\nhi 1 of 2 in {tmp_path}\n",
    ]


def test_a_task_that_fails_is_no_success_of_its_launch(makeway: Makeway, tmp_path: Path) -> None:
    file = tmp_path / "fails.yaml"
    file.write_text("resources: {cpus: 1}\nrun: echo before; exit 3\n")

    done = makeway.run("launch", "-c", "fails", str(file))

    assert done.returncode == 1
    assert "before" in done.stdout
    assert "fails ended with exit code 3" in done.stderr


def task_id(makeway: Makeway) -> str:
    pod = makeway.until("low runs", lambda: makeway.running("makeway.dev/cluster=low"))
    variables = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    return str(variables["SKYPILOT_TASK_ID"])
