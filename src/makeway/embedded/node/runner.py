"""This machine as a node: registers it, and keeps a worker for every pod that is bound to it."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

from makeway.client import ApiError, Client, Reflector
from makeway.client.resource import LEASES, NODES, PODS, Object
from makeway.client.watch import DELETED
from makeway.control.clock import SystemClock, micro_timestamp
from makeway.embedded.events import EventRecorder
from makeway.embedded.node.host import Clock, Host
from makeway.embedded.node.machine import (
    GPU,
    Devices,
    NodeOptions,
    capacity,
    gpu_names,
    node_object,
)
from makeway.embedded.node.pod import PodWorker
from makeway.embedded.node.process import Run
from makeway.embedded.node.storage import LocalStorage
from makeway.errors import UserError

log = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
LEASE_TIMES = 4
# Logs of pods that are gone are kept for a while: somebody may want to know why they went.
KEPT_LOGS = 500


class LocalNode:
    """`run()` until cancelled: processes go on without it. `stop_pods()` ends them with their grace."""

    def __init__(
        self, client: Client, home: Path, options: NodeOptions, clock: Clock | None = None
    ) -> None:
        self._client = client
        self._home = home
        self._options = options
        self._clock: Clock = clock or SystemClock()
        self._gpus = gpu_names()
        self._offered = capacity(home, options, self._gpus)
        self._host = Host(
            client=client,
            home=home,
            options=options,
            clock=self._clock,
            events=EventRecorder(client, "makeway-node", self._clock),
            devices=Devices(int(self._offered.get(GPU, "0"))),
            allocatable=self._offered,
        )
        self._storage = LocalStorage(client, home, self._host.events)
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._stopping = False
        # Seen to their end here; a finalizer may keep the object for a while.
        self._done: set[str] = set()
        self._pods = Reflector[Object](
            client, PODS, self._on_pod, field_selector=f"spec.nodeName={options.node_name}"
        )
        self.ready = asyncio.Event()

    async def run(self) -> None:
        for folder in ("pods", "logs"):
            (self._home / folder).mkdir(parents=True, exist_ok=True)
        await self._register()
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._host.events.run())
            group.create_task(self._pods.run())
            group.create_task(self._beat())
            group.create_task(self._storage.run())
            await self._pods.synced.wait()
            self._end_strangers()
            self._forget_old_logs()
            self.ready.set()

    async def stop_pods(self) -> None:
        """End every process here with its pod's grace; returns when all have ended."""
        self._stopping = True
        for worker in self._workers.values():
            worker.shut_down()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # Pods

    def _on_pod(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        worker = self._workers.get(uid)
        if kind == DELETED:
            self._done.discard(uid)
            if worker is not None:
                worker.vanish()
        elif worker is not None:
            worker.update(pod)
        elif uid not in self._done and not self._stopping:
            self._take_on(uid, pod)

    def _take_on(self, uid: str, pod: Object) -> None:
        assert self._group is not None
        worker = self._workers[uid] = PodWorker(self._host, pod)
        self._tasks[uid] = self._group.create_task(self._work(uid, worker))

    async def _work(self, uid: str, worker: PodWorker) -> None:
        try:
            while True:
                try:
                    await worker.run()
                    return
                except* (ApiError, UserError, OSError) as errors:
                    log.warning("pod %s: %s; trying again", uid, errors.exceptions[0])
                await asyncio.sleep(1.0)
        except Exception:
            # A bug about one pod must not take the other pods' worker away.
            log.exception("pod %s is no longer looked after", uid)
        finally:
            self._done.add(uid)
            self._workers.pop(uid, None)
            self._tasks.pop(uid, None)

    def _end_strangers(self) -> None:
        """Processes whose pods were removed while nobody looked."""
        for folder in (self._home / "pods").iterdir():
            if folder.name in self._workers:
                continue
            for attempt in folder.glob("containers/*/*"):
                run = Run(attempt)
                if run.alive:
                    log.info("ending a process of a pod that is gone: %s", attempt)
                    run.kill()
            shutil.rmtree(folder, ignore_errors=True)

    def _forget_old_logs(self) -> None:
        kept = [each for each in (self._home / "logs").iterdir() if each.name not in self._workers]
        by_age = sorted(kept, key=lambda each: each.stat().st_mtime, reverse=True)
        for folder in by_age[KEPT_LOGS:]:
            shutil.rmtree(folder, ignore_errors=True)

    # The node object

    async def _register(self) -> None:
        wanted = node_object(self._options, self._offered, self._gpus, self._clock.now())
        name = self._options.node_name
        try:
            await self._client.create(NODES, wanted)
        except ApiError as error:
            if not error.already_exists:
                raise
            metadata = {key: wanted["metadata"][key] for key in ("labels", "annotations")}
            await self._client.patch(NODES, name, {"metadata": metadata})
        # Whether or not a create takes the status along, it says what is there now.
        body = {"status": wanted["status"]}
        await self._client.patch(NODES, name, body, kind="strategic", subresource="status")

    async def _beat(self) -> None:
        while True:
            try:
                await self._renew_lease()
            except (ApiError, UserError) as error:
                log.debug("heartbeat: %s", error)
            await asyncio.sleep(self._options.heartbeat_s)

    async def _renew_lease(self) -> None:
        name = self._options.node_name
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": int(self._options.heartbeat_s * LEASE_TIMES),
            "renewTime": micro_timestamp(self._clock.now()),
        }
        try:
            await self._client.patch(LEASES, name, {"spec": spec}, LEASE_NAMESPACE)
        except ApiError as error:
            if not error.not_found:
                raise
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": LEASE_NAMESPACE},
                "spec": spec,
            }
            await self._client.create(LEASES, lease)


async def run_node(
    client: Client, home: Path, options: NodeOptions | None = None, clock: Clock | None = None
) -> None:
    """This machine as a node until cancelled; processes that run go on without it."""
    await LocalNode(client, home, options or NodeOptions(), clock).run()


def parse_amounts(text: str) -> Mapping[str, str]:
    """`cpu=16,memory=64Gi,nvidia.com/gpu=4` as a mapping."""
    amounts: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, separator, amount = part.partition("=")
        if not separator or not name.strip() or not amount.strip():
            raise UserError(
                f'"{part}" is not NAME=AMOUNT.', hint="Write for example cpu=16,memory=64Gi."
            )
        amounts[name.strip()] = amount.strip()
    return amounts
