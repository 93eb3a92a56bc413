"""Nodes that pretend: pods bound to them run nothing and only look as if they did.

A node with KWOK's annotation `kwok.x-k8s.io/node: fake` has no machine behind it. Its pods are Running
and Ready at once, and gone soon after they are deleted. Annotations on a pod tell it otherwise:

- `makeway.dev/pretend-grace: 8s`      stays terminating that long, at most the pod's own grace;
  `8s+1m` a minute longer than it may, as where a kubelet hangs
- `makeway.dev/pretend-ready: "false"` runs but does not become ready
- `makeway.dev/pretend-start: "false"` stays Pending, as when an image cannot be pulled
- `makeway.dev/pretend-exit-after: 3s` ends by itself; `makeway.dev/pretend-exit-code: "1"` says how
  (an exit code without a time ends the pod at once)

One watch on pods and one on nodes serve any number of nodes; there is no task per node or per pod.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Hashable
from typing import Protocol

import msgspec

from makeway.client import ApiError, Client, Reflector
from makeway.client.resource import NODES, PODS, Object
from makeway.client.watch import DELETED
from makeway.control.clock import SystemClock, parse_timestamp, timestamp
from makeway.embedded.mirror import Mirror
from makeway.embedded.podstatus import Address, ContainerState, Terminated, status_body
from makeway.embedded.workqueue import WorkQueue
from makeway.kinds.node import is_fake

PRETEND = "makeway.dev/pretend-"
WRITERS = 32
KILLED = 137
# Between two pretended restarts.
LEAST_RUN_S = 10.0
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


class Clock(Protocol):
    def now(self) -> float: ...


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod's annotations ask of the pretence."""

    start: bool = True
    ready: bool = True
    grace_s: float = 0.0
    exit_after_s: float | None = None
    exit_code: int = 0


def wishes_of(pod: Object) -> Wishes:
    given = pod["metadata"].get("annotations") or {}
    code = given.get(f"{PRETEND}exit-code")
    after = given.get(f"{PRETEND}exit-after")
    wanted, _, longer = given.get(f"{PRETEND}grace", "0s").partition("+")
    grace = duration_s(wanted)
    allowed = pod["metadata"].get("deletionGracePeriodSeconds")
    return Wishes(
        start=given.get(f"{PRETEND}start") != "false",
        ready=given.get(f"{PRETEND}ready") != "false",
        grace_s=(grace if allowed is None else min(grace, float(allowed))) + duration_s(longer),
        exit_after_s=duration_s(after) if after else (0.0 if code is not None else None),
        exit_code=int(code) if code and re.fullmatch(r"\d{1,3}", code) else 0,
    )


def duration_s(text: str) -> float:
    """`8s`, `1.5m`, `1h30m`, `250ms`; anything else counts as nothing."""
    parts = DURATION.findall(text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        return 0.0
    return sum(float(number) * SECONDS[unit] for number, unit in parts)


class PretendedNodes:
    def __init__(self, client: Client, clock: Clock | None = None) -> None:
        self._client = client
        self._clock: Clock = clock or SystemClock()
        self._nodes = Reflector[Object](client, NODES, self._on_node)
        self._pods = Mirror(client, PODS, "v1", "Pod")
        self._pods.listen(self._on_pod)
        self._addresses: dict[str, tuple[int, itertools.count[int]]] = {}
        self._by_node: dict[str, dict[str, tuple[str, str]]] = {}
        # Keys of pods, and of nodes as ("", name).
        self._queue = WorkQueue("pretend", WRITERS)
        # Times in objects have whole seconds; what was seen here is finer.
        self._started: dict[str, float] = {}
        self._told: dict[str, float] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            await self._nodes.synced.wait()
            group.create_task(self._pods.reflector.run())
            group.create_task(self._queue.run(self._work))

    # What is seen

    def _on_node(self, kind: str, node: Object) -> None:
        name = node["metadata"]["name"]
        if kind == DELETED or not is_fake(node):
            self._addresses.pop(name, None)
            return
        if name not in self._addresses:
            self._addresses[name] = (len(self._addresses) + 1, itertools.count())
        self._queue.add(("", name))
        for key in (self._by_node.get(name) or {}).values():
            self._queue.add(key)

    def _on_pod(self, kind: str, pod: Object) -> None:
        node = pod["spec"].get("nodeName")
        if not node:
            return
        metadata = pod["metadata"]
        key = (str(metadata["namespace"]), str(metadata["name"]))
        here = self._by_node.setdefault(node, {})
        if kind == DELETED:
            for known in (here, self._started, self._told):
                known.pop(metadata["uid"], None)
            return
        here[metadata["uid"]] = key
        if metadata.get("deletionTimestamp"):
            self._told.setdefault(metadata["uid"], self._clock.now())
        if node in self._addresses:
            self._queue.add(key)

    # What is done about it

    async def _work(self, key: Hashable) -> None:
        assert isinstance(key, tuple)
        try:
            await self._settle(key)
        except ApiError as error:
            # Gone, or its successor is there: the watch tells.
            if not error.not_found and not error.conflict:
                raise

    async def _settle(self, key: tuple[str, str]) -> None:
        if not key[0]:
            await self._settle_node(key[1])
            return
        pod = self._pods.objects.get(key)
        if pod is None or pod["spec"].get("nodeName") not in self._addresses:
            return
        wishes = wishes_of(pod)
        phase = (pod.get("status") or {}).get("phase", "Pending")
        if pod["metadata"].get("deletionTimestamp"):
            await self._end(key, pod, wishes, phase)
        elif phase == "Pending":
            if wishes.start:
                await self._start(key, pod, wishes)
        elif phase == "Running":
            await self._keep(key, pod, wishes)

    async def _settle_node(self, name: str) -> None:
        node = self._nodes.cache.get(("", name))
        if node is not None and (body := missing_node_status(node, self._clock.now())):
            await self._client.patch(NODES, name, body, kind="strategic", subresource="status")

    async def _start(self, key: tuple[str, str], pod: Object, wishes: Wishes) -> None:
        now = self._started[pod["metadata"]["uid"]] = self._clock.now()
        index, numbers = self._addresses[pod["spec"]["nodeName"]]
        number = next(numbers)
        address = Address(
            f"10.0.{index // 256}.{index % 256}",
            f"10.{244 + index // 256}.{index % 256}.{10 + number % 240}",
        )
        await self._write(key, pod, "Running", now, address, wishes)
        if wishes.exit_after_s is not None:
            self._queue.add_in(key, wishes.exit_after_s)

    async def _keep(self, key: tuple[str, str], pod: Object, wishes: Wishes) -> None:
        """A pod that runs: readiness may be asked otherwise, and its time may be over."""
        now = self._clock.now()
        if wishes.exit_after_s is not None:
            started = self._started.get(pod["metadata"]["uid"], _started(pod, now))
            left = started + wishes.exit_after_s - now
            if left <= 0:
                await self._exit(key, pod, wishes, now)
                return
            self._queue.add_in(key, left)
        if wishes.ready != _is_ready(pod):
            await self._write(key, pod, "Running", now, _address(pod), wishes)

    async def _exit(self, key: tuple[str, str], pod: Object, wishes: Wishes, now: float) -> None:
        policy = pod["spec"].get("restartPolicy", "Always")
        if policy == "Always" or (policy == "OnFailure" and wishes.exit_code):
            # A pod that is asked to exit at once, for ever, runs for a while in between.
            longer = max(0.0, LEAST_RUN_S - (wishes.exit_after_s or 0.0))
            self._started[pod["metadata"]["uid"]] = now + longer
            await self._write(key, pod, "Running", now, _address(pod), wishes, restarted=True)
            return
        phase = "Failed" if wishes.exit_code else "Succeeded"
        await self._write(key, pod, phase, now, _address(pod), wishes, code=wishes.exit_code)

    async def _end(self, key: tuple[str, str], pod: Object, wishes: Wishes, phase: str) -> None:
        now = self._clock.now()
        if phase == "Running" and wishes.grace_s:
            left = self._told.get(pod["metadata"]["uid"], now) + wishes.grace_s - now
            if left > 0:
                self._queue.add_in(key, left)
                return
        if phase == "Running":
            await self._write(key, pod, "Failed", now, _address(pod), wishes, code=KILLED)
        await self._client.delete(PODS, key[1], key[0], uid=pod["metadata"]["uid"], grace_s=0)

    async def _write(
        self,
        key: tuple[str, str],
        pod: Object,
        phase: str,
        now: float,
        address: Address,
        wishes: Wishes,
        *,
        code: int | None = None,
        restarted: bool = False,
    ) -> None:
        started = _started(pod, now)
        states = _containers(pod, phase, started, now, wishes, code, restarted=restarted)
        body = status_body(
            pod, init=(), main=states, phase=phase, address=address, start=started, now=now
        )
        patch = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": body}
        answer = await self._client.patch(
            PODS, key[1], patch, key[0], kind="strategic", subresource="status"
        )
        self._pods.note(answer)


def missing_node_status(node: Object, now: float) -> Object:
    """A pretended node is ready unless somebody says otherwise; what it offers can all be used."""
    status = node.get("status") or {}
    body: Object = {}
    if not any(condition["type"] == "Ready" for condition in status.get("conditions") or []):
        body["conditions"] = [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "this node pretends to be ready",
                "lastHeartbeatTime": timestamp(now),
                "lastTransitionTime": timestamp(now),
            }
        ]
    if status.get("capacity") and not status.get("allocatable"):
        body["allocatable"] = status["capacity"]
    if status.get("allocatable") and not status.get("capacity"):
        body["capacity"] = status["allocatable"]
    return {"status": body} if body else {}


def _containers(
    pod: Object,
    phase: str,
    started: float,
    now: float,
    wishes: Wishes,
    code: int | None,
    *,
    restarted: bool,
) -> list[ContainerState]:
    running = phase == "Running"
    before = (pod.get("status") or {}).get("containerStatuses") or []
    restarts = int(before[0].get("restartCount") or 0) if before else 0
    ended = Terminated(exit_code=code or 0, started_at=started, finished_at=now)
    last = msgspec.structs.replace(ended, exit_code=wishes.exit_code) if restarted else None
    return [
        ContainerState(
            name=container["name"],
            image=container.get("image", ""),
            running_since=started if running else None,
            terminated=None if running else ended,
            last=last,
            restarts=restarts + restarted,
            ready=running and wishes.ready,
            started=running,
            container_id=f"pretend://{pod['metadata']['uid']}/{container['name']}",
        )
        for container in pod["spec"]["containers"]
    ]


def _started(pod: Object, now: float) -> float:
    text = (pod.get("status") or {}).get("startTime")
    return parse_timestamp(text) if text else now


def _is_ready(pod: Object) -> bool:
    return any(
        condition["type"] == "ContainersReady" and condition["status"] == "True"
        for condition in (pod.get("status") or {}).get("conditions") or []
    )


def _address(pod: Object) -> Address:
    status = pod.get("status") or {}
    return Address(str(status.get("hostIP") or "10.0.0.1"), str(status.get("podIP") or ""))


async def run_pretended(client: Client, clock: Clock | None = None) -> None:
    """Pretend for every node with KWOK's annotation, until cancelled."""
    await PretendedNodes(client, clock).run()
