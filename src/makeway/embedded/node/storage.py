"""Volumes of this machine: the storage class `local`, whose volumes are folders in the home.

The class is the default one and waits for its first consumer. A claim that a scheduler has given a node gets a folder `volumes/pvc-<uid>`
and a PersistentVolume that names it. When the claim is gone and the class says so (it does), the folder goes, too. How much is written to
a folder is not limited.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Hashable
from pathlib import Path

from makeway.client import ApiError, Client, Reflector
from makeway.client.resource import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    Object,
)
from makeway.client.watch import DELETED
from makeway.embedded.events import EventRecorder
from makeway.embedded.objects import deleted, name_of, namespace_of, status_of, uid_of
from makeway.embedded.workqueue import WorkQueue
from makeway.kinds.serving.storage import DEFAULT_CLASS
from makeway.kinds.volumes import PROVISIONER, SELECTED_NODE, WAITS_FOR_POD

log = logging.getLogger(__name__)

CLASS = "local"
OURSELVES = "makeway.dev/local"
PROVISIONED = "pv.kubernetes.io/provisioned-by"


class LocalStorage:
    def __init__(self, client: Client, home: Path, events: EventRecorder) -> None:
        self._client = client
        self._folder = home / "volumes"
        self._events = events
        self._queue = WorkQueue("local-storage", workers=4)
        self._claims: dict[tuple[str, str], Object] = {}
        self._volumes: dict[str, Object] = {}

    async def run(self) -> None:
        self._folder.mkdir(exist_ok=True)
        await self._offer_class()
        claims = Reflector[Object](self._client, PERSISTENT_VOLUME_CLAIMS, self._on_claim)
        volumes = Reflector[Object](self._client, PERSISTENT_VOLUMES, self._on_volume)
        async with asyncio.TaskGroup() as group:
            group.create_task(claims.run())
            group.create_task(volumes.run())
            group.create_task(self._queue.run(self._work))

    async def _offer_class(self) -> None:
        body = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": CLASS, "annotations": {DEFAULT_CLASS: "true"}},
            "provisioner": OURSELVES,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": WAITS_FOR_POD,
        }
        try:
            await self._client.create(STORAGE_CLASSES, body)
        except ApiError as error:
            if not error.already_exists:
                raise

    def _on_claim(self, kind: str, claim: Object) -> None:
        key = (namespace_of(claim), name_of(claim))
        if kind == DELETED:
            self._claims.pop(key, None)
        else:
            self._claims[key] = claim
            if _ours_to_make(claim):
                self._queue.add(key)

    def _on_volume(self, kind: str, volume: Object) -> None:
        if kind == DELETED:
            self._volumes.pop(name_of(volume), None)
        else:
            self._volumes[name_of(volume)] = volume
            if _ours_to_clear(volume):
                self._queue.add(name_of(volume))

    async def _work(self, key: Hashable) -> None:
        if isinstance(key, tuple):
            claim = self._claims.get(key)
            if claim is not None and _ours_to_make(claim):
                await self._make(claim)
            return
        volume = self._volumes.get(str(key))
        if volume is not None and _ours_to_clear(volume):
            await self._clear(volume)

    async def _make(self, claim: Object) -> None:
        name = f"pvc-{uid_of(claim)}"
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)  # whoever the pod runs as may write; the home keeps others out
        storage_class = await self._client.get(
            STORAGE_CLASSES, str(claim["spec"]["storageClassName"])
        )
        try:
            await self._client.create(
                PERSISTENT_VOLUMES, _volume(claim, name, folder, storage_class)
            )
        except ApiError as error:
            if not error.already_exists:
                raise
            return
        claimed = {**claim, "apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        said = f"Successfully provisioned volume {name}"
        self._events.record(claimed, "Normal", "ProvisioningSucceeded", said)

    async def _clear(self, volume: Object) -> None:
        """The data first: without its object nobody would look for it any more."""
        await asyncio.to_thread(shutil.rmtree, self._folder / name_of(volume), ignore_errors=True)
        try:
            await self._client.delete(PERSISTENT_VOLUMES, name_of(volume), uid=uid_of(volume))
        except ApiError as error:
            if not error.not_found and not error.conflict:
                raise


def _ours_to_make(claim: Object) -> bool:
    asked = (claim["metadata"].get("annotations") or {}).get(PROVISIONER) == OURSELVES
    return asked and not claim["spec"].get("volumeName") and not deleted(claim)


def _ours_to_clear(volume: Object) -> bool:
    made = (volume["metadata"].get("annotations") or {}).get(PROVISIONED) == OURSELVES
    released = status_of(volume).get("phase") == "Released"
    goes = volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
    return made and released and goes and not deleted(volume)


def _volume(claim: Object, name: str, folder: Path, storage_class: Object) -> Object:
    node = (claim["metadata"].get("annotations") or {}).get(SELECTED_NODE)
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED: OURSELVES}},
        "spec": {
            "capacity": dict(claim["spec"]["resources"]["requests"]),
            "accessModes": claim["spec"].get("accessModes") or [],
            "volumeMode": "Filesystem",
            "storageClassName": name_of(storage_class),
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy") or "Delete",
            "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": namespace_of(claim),
                "name": name_of(claim),
                "uid": uid_of(claim),
            },
            **({"nodeAffinity": affinity} if node else {}),
        },
    }
