"""`makeway launch [-c NAME] FILE`: a SkyPilot task as a group of pods. When it is evicted it is over; `jobs launch` comes back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from makeway.cli.cluster import with_client
from makeway.cli.output import out
from makeway.cli.podlogs import follow, succeeded
from makeway.cli.tasks import (
    chosen_name,
    moment,
    place_for,
    read_task,
    show_request,
    user_name,
    warn,
    workdir_of,
)
from makeway.client import ApiError, Client
from makeway.client.resource import PODS
from makeway.errors import UserError
from makeway.kinds.skypilot import Launch, cluster_objects
from makeway.kinds.skypilot.objects import CLUSTER
from makeway.kinds.skypilot.task import Task

Object = dict[str, Any]
_ENDED = ("Succeeded", "Failed")
_GONE_WITHIN_S = 60.0


def launch(
    home: Path | None,
    file: Path,
    cluster: str | None,
    namespace: str,
    env: list[str],
    *,
    detach: bool,
) -> None:
    task = read_task(file, env, cluster)
    name = chosen_name(cluster, task, file, "-c")
    workdir = workdir_of(task, file)

    async def work(client: Client) -> None:
        found = await place_for(client, task)
        asked = Launch(
            name=name,
            namespace=namespace,
            user=user_name(),
            at=moment(),
            place=found,
            workdir=workdir,
        )
        show_request(task)
        warn(found)
        await _make_room_for_name(client, asked)
        pods = cluster_objects(task, asked)
        for pod in pods:
            await client.create(PODS, pod, namespace)
        _tell(task, asked, pods)
        if not detach:
            head = pods[0]["metadata"]["name"]
            await follow(client, namespace, head, "", wait_for_start=True)
            await succeeded(client, namespace, head, name)

    with_client(home, work)


async def _make_room_for_name(client: Client, asked: Launch) -> None:
    """Pods of an earlier launch that have ended make way for the new ones; pods that still run do not."""
    old = await client.list(PODS, asked.namespace, label_selector=f"{CLUSTER}={asked.name}")
    old = [pod for pod in old if not pod["metadata"].get("ownerReferences")]
    for pod in old:
        leaving = pod["metadata"].get("deletionTimestamp")
        if (pod.get("status") or {}).get("phase") not in _ENDED and not leaving:
            raise UserError(
                f'the cluster "{asked.name}" already runs.',
                hint=f"Stop it first: makeway delete pods -l {CLUSTER}={asked.name}; or choose another name with -c.",
            )
    for pod in old:
        try:
            await client.delete(PODS, pod["metadata"]["name"], asked.namespace)
        except ApiError as error:
            if not error.not_found:
                raise
    with out.progress(f"waiting until the earlier pods of {asked.name} are gone…"):
        await _until_gone(client, asked, [pod["metadata"]["name"] for pod in old])


async def _until_gone(client: Client, asked: Launch, names: list[str]) -> None:
    deadline = time.monotonic() + _GONE_WITHIN_S
    for name in names:
        while await _exists(client, name, asked.namespace):
            if time.monotonic() > deadline:
                raise UserError(
                    f"the earlier pod {name} of {asked.name} does not end.",
                    hint=f"Look at it: makeway describe pod {name}",
                )
            await asyncio.sleep(0.1)


async def _exists(client: Client, name: str, namespace: str) -> bool:
    try:
        await client.get(PODS, name, namespace)
    except ApiError as error:
        if error.not_found:
            return False
        raise
    return True


def _tell(task: Task, asked: Launch, pods: list[Object]) -> None:
    names = [pod["metadata"]["name"] for pod in pods]
    if out.as_json:
        facts = {"cluster": asked.name, "job_id": asked.job_id, "pods": names}
        out.result({**facts, "namespace": asked.namespace, "requested": task.requested})
        return
    select = f"{CLUSTER}={asked.name}"
    where = "" if asked.namespace == "default" else f" -n {asked.namespace}"
    out.say(f"\nJob submitted, ID: {asked.job_id}\n")
    out.say("Useful Commands")
    out.say(f"Cluster name: {asked.name}")
    out.say(f"├── To see how it is:   makeway get pods -l {select}{where}")
    out.say(f"├── To see its queue:   makeway get workloads{where}")
    out.say(f"├── To see its output:  makeway logs {names[0]}{where}")
    out.say(f"└── To stop it:         makeway delete pods -l {select}{where}")
    out.say("\nWhen it is evicted it is not started again; makeway jobs launch is.")
