"""The phrases that demos share: what an eviction cost, which process runs, why somebody waits."""

from __future__ import annotations

from typing import Any

import psutil

from makeway.cli.demo.stage import Stage, condition
from makeway.cli.waiting import why
from makeway.client.resource import PODS

Object = dict[str, Any]


def cost(record: Object) -> str:
    """The loss of a Preemption, in words."""
    return f"{record['spec']['lossGPUSeconds']:.3g} GPU-seconds of work"


def process_line(pid: int) -> str:
    """The process as the machine itself shows it."""
    try:
        command = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        command = ""
    return f"process {pid}" + (f" ({command})" if command else "")


async def why_sentence(stage: Stage, namespace: str, owner: str) -> str:
    """Why it waits now: the eviction itself, which its condition tells first, is not the answer."""

    async def waiting() -> Object | None:
        workload = await stage.workload(namespace, owner)
        said = condition(workload, "QuotaReserved", "False") or {}
        return None if said.get("reason") in (None, "Preempted", "Pending") else workload

    workload = await stage.until(f"{owner} says why it waits", waiting)
    return await why(stage.client, workload)


async def pod_why(stage: Stage, namespace: str, name: str) -> str | None:
    """Why a pod is not on a node, in the server's words."""
    pod = await stage.client.get(PODS, name, namespace)
    found = condition(pod, "PodScheduled", "False")
    return str(found.get("message") or "") or None if found else None
