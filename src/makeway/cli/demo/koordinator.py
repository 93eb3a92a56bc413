"""Seed 003: a gang of two takes two full nodes, both victims at once; a gang of three that could never fit evicts nobody."""

from __future__ import annotations

from typing import Any

from makeway.cli.demo.stage import DemoFailed, Stage, condition, is_running
from makeway.cli.demo.words import pod_why
from makeway.cli.examples import example
from makeway.cli.up import Options
from makeway.client.resource import PODS

TITLE = "A gang of two is placed whole or not at all, and evicts only when that lets all of it run."
OPTIONS = Options(local_node=False)
NEXT = (
    "examples/koordinator/README.md  the same, command by command, with kubectl",
    "makeway demo kubeai             models that compete for one GPU",
    "makeway demo training           a training run that saves, steps aside and resumes",
)
Object = dict[str, Any]
_LOW = ("lp-pod-1", "lp-pod-2")
_HIGH = ("hp-worker-1", "hp-worker-2")


async def tell(stage: Stage) -> None:
    files = example("koordinator")
    await stage.apply(files / "nodes.yaml", files / "priorityclasses.yaml")
    await _fill_nodes(stage)
    await _three_evict_nobody(stage)
    await _two_take_both(stage)


async def _pods(stage: Stage, names: tuple[str, ...]) -> list[Object]:
    found = {pod["metadata"]["name"]: pod for pod in await stage.client.list(PODS, "default")}
    return [found[name] for name in names if name in found]


async def _all_running(stage: Stage, names: tuple[str, ...]) -> list[Object] | None:
    pods = await _pods(stage, names)
    return pods if len(pods) == len(names) and all(map(is_running, pods)) else None


def _where(pods: list[Object]) -> str:
    return ", ".join(f"{pod['metadata']['name']} on {pod['spec']['nodeName']}" for pod in pods)


async def _fill_nodes(stage: Stage) -> None:
    await stage.apply(example("koordinator") / "low-priority-pods.yaml")
    pods = await stage.until("the low-priority pods run", lambda: _all_running(stage, _LOW))
    stage.timeline.step("low", f"{_where(pods)}: 4 CPUs each, both nodes are full", "run")


async def _three_evict_nobody(stage: Stage) -> None:
    at = stage.timeline
    await stage.apply(example("koordinator") / "three-workers.yaml")
    at.step("gang of 3", "submitted: 3 pods of 3 CPUs at once, priority 1000000 over 1000")
    sentence = await stage.until(
        "the gang of three says why it waits", lambda: pod_why(stage, "default", "three-worker-1")
    )
    pods = await _pods(stage, _LOW)
    if len(pods) != len(_LOW) or not all(map(is_running, pods)):
        raise DemoFailed("a pod was evicted for a gang that cannot run.")
    at.step(
        "low", "nobody is evicted: with both nodes empty the third pod would still not fit", "run"
    )
    at.say(f"Why does three-workers wait? {sentence}", "why")
    at.steps.append({"who": "three-workers", "why": sentence})
    for index in (1, 2, 3):
        await stage.client.delete(PODS, f"three-worker-{index}", "default", grace_s=0)


async def _two_take_both(stage: Stage) -> None:
    at = stage.timeline
    await stage.apply(example("koordinator") / "high-priority-job.yaml")
    at.step("gang of 2", "submitted: 2 pods of 3 CPUs at once")

    async def told() -> Object | None:
        records = [
            record
            for record in [await stage.preemption_of(f"default/{name}") for name in _LOW]
            if record is not None
        ]
        return records[0] if len(records) == len(_LOW) else None

    record = await stage.until("both low-priority pods are told to stop", told)
    loss = record["spec"]["lossGPUSeconds"]
    at.step(
        "low",
        f"lp-pod-1 and lp-pod-2 are evicted together; cost: {loss:.0f} GPU-seconds of work",
        "stop",
        loss_gpu_seconds=loss,
    )
    pods = await stage.until("the gang runs", lambda: _all_running(stage, _HIGH))
    at.step("gang of 2", f"runs whole: {_where(pods)}", "run")
    if condition(pods[0], "PodScheduled", "True") is None:
        raise DemoFailed("hp-worker-1 runs without having been scheduled.")
