"""`makeway logs [-f] POD`: what a pod's process printed. A Job's or a cluster's name stands for its pods."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from makeway.cli.cluster import with_client
from makeway.cli.nearby import did_you_mean
from makeway.cli.output import out
from makeway.client import ApiError, Client
from makeway.client.resource import PODS
from makeway.errors import UserError

Object = dict[str, Any]
_SILENT_STREAM_S = 24 * 3600.0
_ENDED_WITHIN = 50  # tenths of a second between the last line and the pod's end


def logs(
    home: Path | None,
    name: str,
    namespace: str,
    container: str,
    *,
    following: bool,
    tail: int | None,
    previous: bool,
) -> None:
    params: dict[str, str] = {}
    if tail is not None:
        params["tailLines"] = str(tail)
    if previous:
        params["previous"] = "true"

    async def work(client: Client) -> None:
        pod = await find_pod(client, name, namespace)
        if following:
            await follow(client, namespace, pod, container, params=params)
        else:
            await show(client, namespace, pod, container, params)

    with_client(home, work)


async def find_pod(client: Client, said: str, namespace: str) -> str:
    """A pod by its name, or the newest pod of the job or cluster with that name."""
    said = (
        said.removeprefix("pod/")
        .removeprefix("pods/")
        .removeprefix("job/")
        .removeprefix("job.batch/")
    )
    pods = await client.list(PODS, namespace)
    if any(pod["metadata"]["name"] == said for pod in pods):
        return said
    of_owner = [pod for pod in pods if said in _owners(pod)]
    if of_owner:
        newest = max(of_owner, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        return str(newest["metadata"]["name"])
    known = [pod["metadata"]["name"] for pod in pods]
    known += [owner for pod in pods for owner in _owners(pod)]
    raise UserError(
        f'no pod or job called "{said}" in namespace {namespace}.',
        hint=did_you_mean(said, known) or "List them: makeway get pods -A",
    )


def _owners(pod: Object) -> set[str]:
    labels = pod["metadata"].get("labels") or {}
    found = {owner["name"] for owner in pod["metadata"].get("ownerReferences") or []}
    return found | {labels[key] for key in ("makeway.dev/cluster",) if key in labels}


async def show(
    client: Client, namespace: str, pod: str, container: str, params: dict[str, str]
) -> None:
    text = await client.raw(
        "GET",
        PODS.path(namespace, pod, "log"),
        params={**params, **({"container": container} if container else {})},
        accept="*/*",
    )
    if out.as_json:
        out.result({"pod": pod, "log": text.decode(errors="replace")})
        return
    sys.stdout.buffer.write(text)
    sys.stdout.flush()


async def follow(
    client: Client,
    namespace: str,
    pod: str,
    container: str,
    *,
    params: dict[str, str] | None = None,
    wait_for_start: bool = False,
) -> None:
    """Print as it is printed, until the pod ends."""
    if wait_for_start:
        await _until_started(client, namespace, pod)
    asked = {**(params or {}), "follow": "true"}
    if container:
        asked["container"] = container
    path = PODS.path(namespace, pod, "log")
    async for line in client.stream(path, asked, _SILENT_STREAM_S):
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.flush()


async def succeeded(client: Client, namespace: str, pod: str, task: str) -> None:
    """After its last line: a task that failed, or was stopped, is no success of the command that ran it."""
    found: Object = {}
    for _ in range(_ENDED_WITHIN):
        try:
            found = await client.get(PODS, pod, namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            break
        phase = found["status"].get("phase")
        if phase == "Succeeded":
            return
        if phase == "Failed" or found["metadata"].get("deletionTimestamp"):
            break
        await asyncio.sleep(0.1)
    raise UserError(_ending(found, task), hint="Who was evicted for whom: makeway get preemptions")


def _ending(pod: Object, task: str) -> str:
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (status.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode"):
            return f"{task} ended with exit code {ended['exitCode']}."
    return f"{task} was stopped before it ended."


async def _until_started(client: Client, namespace: str, pod: str) -> None:
    """A queued task may wait long: say why, whenever the reason changes."""
    told = ""
    with out.progress(f"waiting for {pod} to start…"):
        while True:
            found = await _pod(client, namespace, pod)
            if found["status"].get("phase") not in (None, "Pending"):
                return
            why = _why_pending(found)
            if why and why != told:
                out.say(f"{pod} waits: {why}")
                told = why
            await asyncio.sleep(0.2)


async def _pod(client: Client, namespace: str, pod: str) -> Object:
    try:
        return await client.get(PODS, pod, namespace)
    except ApiError as error:
        if error.not_found:
            raise UserError(f"{pod} was deleted before it started.") from error
        raise


def _why_pending(pod: Object) -> str:
    for condition in pod["status"].get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""
