"""Seed 002: a managed SkyPilot task steps aside for one with higher priority and recovers; files as in examples/skypilot, with
one change: the high-priority task sleeps four seconds, so that the demo sees it end."""

from __future__ import annotations

from typing import Any

import msgspec

from makeway.cli.demo.stage import Stage
from makeway.cli.demo.words import process_line, why_sentence
from makeway.cli.examples import example
from makeway.cli.jobs import ManagedJob, managed_jobs
from makeway.cli.tasks import moment, place_for, user_name
from makeway.cli.up import Options
from makeway.client.resource import JOBS, PODS
from makeway.kinds.skypilot import Launch, Task, cluster_objects, managed_job, parse_task

TITLE = "SkyPilot tasks on one machine: the managed job comes back after its eviction."
OPTIONS = Options(capacity={"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "4"})
NEXT = (
    "examples/skypilot/README.md     the same, command by command",
    "makeway demo training           a training run that saves, steps aside and resumes",
)
Object = dict[str, Any]


async def tell(stage: Stage) -> None:
    at, files = stage.timeline, example("skypilot")
    await stage.apply(files / "queues.yaml")
    low = _task("low")
    await stage.client.create(JOBS, managed_job(low, await _launch(stage, low, "low")), "default")
    at.step("low", f"makeway jobs launch -n low low.yaml: {low.requested}, 16 CPUs, 64 GB")
    pod = await stage.until(
        "low runs", lambda: stage.running_pod("default", "makeway.dev/cluster=low")
    )
    pid = await stage.process(pod)
    at.step("low", f"RUNNING: {process_line(pid)[:60]}", "run", pid=pid)

    high = _shorter(_task("high"))
    for one in cluster_objects(high, await _launch(stage, high, "high")):
        await stage.client.create(PODS, one, "default")
    at.step("high", f"makeway launch -c high high.yaml: {high.requested}, priority 1000 over 100")
    await stage.process_ended(pid)
    waiting = await stage.until("low recovers", lambda: _in_state(stage, "RECOVERING"))
    at.step(
        "low", f"evicted: its process {pid} got SIGTERM and has ended; now {waiting.status}", "stop"
    )
    pod = await stage.until(
        "high runs", lambda: stage.running_pod("default", "makeway.dev/cluster=high")
    )
    at.step("high", "RUNNING", "run", pid=await stage.process(pod))
    sentence = await why_sentence(stage, "default", waiting.job)
    at.say(f"Why does low wait? {sentence}", "why")
    at.steps.append({"who": "low", "why": sentence})
    again = await stage.until("low runs again", lambda: _in_state(stage, "RUNNING"))
    at.step("low", f"{again.status} again, by itself; #RECOVERIES {again.recoveries}", "run")


def _task(name: str) -> Task:
    file = example("skypilot") / f"{name}.yaml"
    return parse_task(file.read_text(), str(file))


def _shorter(task: Task) -> Task:
    return msgspec.structs.replace(task, run=task.run.replace("sleep 1000000", "sleep 4"))


async def _launch(stage: Stage, task: Task, name: str) -> Launch:
    found = await place_for(stage.client, task)
    return Launch(name=name, user=user_name(), at=moment(), place=found)


async def _in_state(stage: Stage, status: str) -> ManagedJob | None:
    for job in await managed_jobs(stage.client):
        if job.status == status:
            return job
    return None
