"""Seed 001: two teams share a cohort's CPUs. Team B borrows, team A comes with higher priority, B steps aside and returns by itself.

The files are those of examples/kueue, with one change: team A's job sleeps five seconds instead of an hour, so that the demo
sees it end.
"""

from __future__ import annotations

import copy
from typing import Any

from makeway.cli.demo.stage import Stage, condition
from makeway.cli.demo.words import cost, process_line, why_sentence
from makeway.cli.examples import example
from makeway.cli.up import Options

TITLE = "Two teams share 10 CPUs. Team B borrows them; then team A comes with a higher priority."
OPTIONS = Options(capacity={"cpu": "10", "memory": "64Gi", "nvidia.com/gpu": "2"})
NEXT = (
    "makeway up --detach             a makeway of your own on this machine",
    "examples/kueue/README.md        the same, command by command, with kubectl",
    "makeway status                  who runs, who waits, and why",
    "makeway demo koordinator        a gang that is placed whole or not at all",
)
_TEAM_A_RUNS_S = 5
Object = dict[str, Any]


async def tell(stage: Stage) -> None:
    files = example("kueue")
    await stage.apply(
        *(
            files / f"{name}.yaml"
            for name in (
                "namespaces",
                "resource-flavors",
                "cluster-queues",
                "local-queues",
                "priorities",
            )
        )
    )
    first = await _team_b_runs(stage)
    await _team_a_arrives(stage, first)
    await _team_b_waits(stage)
    await _team_b_returns(stage)


async def _team_b_runs(stage: Stage) -> int:
    at = stage.timeline
    await stage.apply(example("kueue") / "team-b-job.yaml")
    at.step("team-b-job", "submitted: 5 CPUs; its queue owns none and borrows from cohort team-ab")
    pod = await stage.until(
        "team-b-job runs", lambda: stage.running_pod("team-b", "job-name=team-b-job")
    )
    pid = await stage.process(pod)
    at.step("team-b-job", f"runs: {process_line(pid)}", "run", pid=pid)
    return pid


async def _team_a_arrives(stage: Stage, first: int) -> None:
    at = stage.timeline
    await stage.apply(example("kueue") / "team-a-job.yaml", change=_shorter)
    at.step("team-a-job", "submitted: 7 CPUs and 2 GPUs, priority 1000 over team B's 100")
    told = await stage.until(
        "team-b-job is told to stop", lambda: stage.preempted("team-b", "team-b-job")
    )
    victim = await stage.workload("team-b", "team-b-job")
    assert victim is not None
    record = await stage.until(
        "the preemption is on record",
        lambda: stage.preemption_of(f"team-b/{victim['metadata']['name']}"),
    )
    at.step(
        "team-b-job",
        f"evicted for team-a-job ({told['reason']}); cost: {cost(record)}",
        "stop",
        reason=told["reason"],
        loss_gpu_seconds=record["spec"]["lossGPUSeconds"],
    )
    await stage.process_ended(first)
    at.step("team-b-job", f"its process {first} got SIGTERM and has ended", "stop", pid=first)
    pod = await stage.until(
        "team-a-job runs", lambda: stage.running_pod("team-a", "job-name=team-a-job")
    )
    pid = await stage.process(pod)
    at.step("team-a-job", f"runs: {process_line(pid)}", "run", pid=pid)


async def _team_b_waits(stage: Stage) -> None:
    async def waits() -> Object | None:
        return condition(await stage.workload("team-b", "team-b-job"), "QuotaReserved", "False")

    said = await stage.until("team-b-job says why it waits", waits)
    sentence = await why_sentence(stage, "team-b", "team-b-job")
    stage.timeline.steps.append({"who": "team-b-job", "why": sentence, "reason": said["reason"]})
    stage.timeline.say(f"Why does team-b-job wait? {sentence}", "why")


async def _team_b_returns(stage: Stage) -> None:
    at = stage.timeline
    await stage.until(
        "team-a-job has finished",
        lambda: stage.job_condition("team-a", "team-a-job", "Complete"),
        within_s=_TEAM_A_RUNS_S + 15,
    )
    at.step("team-a-job", "finished; its 7 CPUs are free again", "end")
    pod = await stage.until(
        "team-b-job runs again", lambda: stage.running_pod("team-b", "job-name=team-b-job")
    )
    pid = await stage.process(pod)
    at.step("team-b-job", f"is back by itself: {process_line(pid)}", "run", pid=pid)


def _shorter(obj: Object) -> Object:
    changed = copy.deepcopy(obj)
    changed["spec"]["template"]["spec"]["containers"][0]["command"] = ["sleep", str(_TEAM_A_RUNS_S)]
    return changed
