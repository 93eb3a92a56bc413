"""A real training loop: evicted, it gets SIGTERM, saves within its notice, waits, resumes from its checkpoint and finishes.

The files are those of examples/training, made shorter: 300 steps instead of 3000, and urgent work of 3 s instead of 15.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from makeway.cli.demo.stage import DemoFailed, Stage
from makeway.cli.demo.words import cost, process_line, why_sentence
from makeway.cli.examples import example
from makeway.cli.up import Options

TITLE = "A training run steps aside for urgent work, and loses nothing, because it saves."
OPTIONS = Options(capacity={"cpu": "4", "memory": "8Gi"})
NEXT = (
    "examples/training/README.md     the same, command by command",
    "docs/how-to/say-when-you-saved.md  one line in your own training script",
)
Object = dict[str, Any]
_TRAIN = "job-name=train"


async def tell(stage: Stage) -> None:
    at, files = stage.timeline, example("training")
    await stage.apply(files / "queue.yaml", files / "script.yaml")
    folder = str(stage.home.path / "checkpoints")
    await stage.apply(files / "train.yaml", change=lambda obj: _shorter(obj, folder))
    pod = await stage.until("train runs", lambda: stage.running_pod("default", _TRAIN))
    pid = await stage.process(pod)
    at.step(
        "train",
        f"runs: {process_line(pid).split(' (')[0]}, saves every 2 s and on SIGTERM",
        "run",
        pid=pid,
    )
    saved = await stage.until(
        "it has saved once", lambda: _said(stage, pod, r"saved at step (\d+)")
    )
    at.step("train", f"saved at step {saved}", "run")
    await stage.apply(files / "urgent.yaml", change=_sooner_done)
    at.step("urgent", "submitted: all 4 CPUs, priority 100 over 10")
    told = await stage.until("train is told to stop", lambda: stage.preempted("default", "train"))
    workload = await stage.workload("default", "train")
    assert workload is not None
    record = await stage.until(
        "the preemption is on record",
        lambda: stage.preemption_of(f"default/{workload['metadata']['name']}"),
    )
    at.step(
        "train",
        f"evicted ({told['reason']}); cost: {cost(record)}",
        "stop",
        loss_gpu_seconds=record["spec"]["lossGPUSeconds"],
    )
    await stage.process_ended(pid)
    at.step("train", f"process {pid} saved within its notice and has ended", "stop")
    sentence = await why_sentence(stage, "default", "train")
    at.say(f"Why does train wait? {sentence}", "why")
    at.steps.append({"who": "train", "why": sentence})
    again = await stage.until("train runs again", lambda: _other(stage, pod))
    found = await stage.until(
        "it resumes",
        lambda: _said(stage, again, r"resumed at step (\d+; \d+ steps \([\d.]+ s\) were lost)"),
    )
    if not re.search(r"; 0 steps", found):
        raise DemoFailed(f"the training run lost work although it saved: resumed at step {found}.")
    at.step("train", f"is back by itself: resumed at step {found}", "run")
    ended = await stage.until(
        "train finishes", lambda: _said(stage, again, r"finished at (step .*)"), within_s=20
    )
    at.step("train", f"finished at {ended}", "end")


async def _said(stage: Stage, pod: Object, pattern: str) -> str | None:
    found = re.search(pattern, await stage.log_of(pod))
    return found[1] if found else None


async def _other(stage: Stage, first: Object) -> Object | None:
    for pod in await stage.pods_of("default", _TRAIN):
        if (
            pod["metadata"]["uid"] != first["metadata"]["uid"]
            and pod["status"].get("phase") != "Pending"
        ):
            return pod
    return None


def _sooner_done(obj: Object) -> Object:
    changed = copy.deepcopy(obj)
    changed["spec"]["template"]["spec"]["containers"][0]["command"] = ["sleep", "3"]
    return changed


def _shorter(obj: Object, folder: str) -> Object:
    """Fewer steps; and checkpoints in the demo's own folder, so that nothing is left behind."""
    changed = copy.deepcopy(obj)
    (container,) = changed["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "STEPS", "value": "300"}, *container["env"][1:]]
    for volume in changed["spec"]["template"]["spec"]["volumes"]:
        if "hostPath" in volume:
            volume["hostPath"]["path"] = folder
    return changed
