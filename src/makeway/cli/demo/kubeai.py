"""Seed 000: two models want the one GPU; the critical one gets it, and the other waits as a new pod."""

from __future__ import annotations

from typing import Any

from makeway.cli.demo.stage import Stage, is_running
from makeway.cli.demo.words import pod_why
from makeway.cli.examples import example
from makeway.cli.up import Options

TITLE = "Two models compete for one GPU. The critical one comes second, and gets it."
OPTIONS = Options(local_node=False)
NEXT = (
    "examples/kubeai/README.md       the same, command by command, with kubectl",
    "makeway demo skypilot           tasks that come back after an eviction",
)
Object = dict[str, Any]


async def tell(stage: Stage) -> None:
    at, files = stage.timeline, example("kubeai")
    await stage.apply(files / "node.yaml", files / "priority-classes.yaml")
    await stage.apply(files / "background-research-model.yaml")
    at.step("background", "applied: one L4, priority 10000")
    first = await stage.until(
        "the background model runs", lambda: _running(stage, "background-research-model")
    )
    at.step("background", f"{first['metadata']['name']} runs on {first['spec']['nodeName']}", "run")
    await stage.apply(files / "critical-service-model.yaml")
    at.step("critical", "applied: one L4, priority 1000000")
    record = await stage.until(
        "the background model is told to stop",
        lambda: stage.preemption_of(f"default/{first['metadata']['name']}"),
    )
    loss = record["spec"]["lossGPUSeconds"]
    at.step(
        "background",
        f"evicted; cost: {loss:.0f} GPU-seconds of work",
        "stop",
        loss_gpu_seconds=loss,
    )
    pod = await stage.until(
        "the critical model runs", lambda: _running(stage, "critical-service-model")
    )
    at.step("critical", f"{pod['metadata']['name']} runs on {pod['spec']['nodeName']}", "run")
    again = await stage.until("a new background pod waits", lambda: _successor(stage, first))
    at.step(
        "background", f"its model made a new pod, {again['metadata']['name']}, which waits", "stop"
    )
    sentence = await stage.until(
        "it says why it waits", lambda: pod_why(stage, "default", again["metadata"]["name"])
    )
    at.say(f"Why does background-research-model wait? {sentence}", "why")
    at.steps.append({"who": "background", "why": sentence})


async def _running(stage: Stage, model: str) -> Object | None:
    return await stage.running_pod("default", f"model={model}")


async def _successor(stage: Stage, first: Object) -> Object | None:
    for pod in await stage.pods_of("default", "model=background-research-model"):
        if pod["metadata"]["uid"] != first["metadata"]["uid"] and not is_running(pod):
            return pod
    return None
