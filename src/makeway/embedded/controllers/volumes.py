"""Keeps claims and volumes bound: listens to both, to their classes and to the pods that use them. `storage.py` decides."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from makeway.client.resource import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
    Object,
    Resource,
)
from makeway.client.watch import DELETED
from makeway.embedded.controllers.apply import Applier
from makeway.embedded.controllers.plan import Plan, plan
from makeway.embedded.controllers.storage import (
    Storage,
    claims_for,
    reconcile_claim,
    reconcile_volume,
)
from makeway.embedded.mirror import Mirror
from makeway.embedded.objects import deleted, name_of, namespace_of, phase
from makeway.embedded.workqueue import WorkQueue
from makeway.kinds.volumes import claim_names


class VolumeKeeper:
    def __init__(self, mirrors: Mapping[Resource, Mirror], applier: Applier) -> None:
        self._claims = mirrors[PERSISTENT_VOLUME_CLAIMS]
        self._volumes = mirrors[PERSISTENT_VOLUMES]
        self._classes = mirrors[STORAGE_CLASSES]
        self._pods = mirrors[PODS]
        self._applier = applier
        # One at a time, so that no two claims choose the same volume.
        self._queue = WorkQueue("persistentvolume-controller", workers=1)
        self._claims.listen(self._on_claim)
        self._volumes.listen(self._on_volume)
        self._classes.listen(self._on_class)
        self._pods.listen(self._on_pod)

    async def run(self) -> None:
        await self._queue.run(self._work)

    # What changed

    def _on_claim(self, kind: str, claim: Object) -> None:
        if kind != DELETED:
            self._queue.add((PERSISTENT_VOLUME_CLAIMS, namespace_of(claim), name_of(claim)))
        volume = claim["spec"].get("volumeName")
        if volume:
            self._queue.add((PERSISTENT_VOLUMES, "", str(volume)))

    def _on_volume(self, kind: str, volume: Object) -> None:
        self._queue.add((PERSISTENT_VOLUMES, "", name_of(volume)))
        reference = volume["spec"].get("claimRef") or {}
        if reference:
            key = (str(reference.get("namespace")), str(reference.get("name")))
            self._queue.add((PERSISTENT_VOLUME_CLAIMS, *key))
        elif kind != DELETED:
            self._look_at_waiting()

    def _on_class(self, _: str, __: Object) -> None:
        self._look_at_waiting()

    def _look_at_waiting(self) -> None:
        for claim in self._claims.all():
            if phase(claim) == "Pending":
                self._queue.add((PERSISTENT_VOLUME_CLAIMS, namespace_of(claim), name_of(claim)))

    def _on_pod(self, kind: str, pod: Object) -> None:
        volumes = pod["spec"].get("volumes") or []
        if any(volume.get("ephemeral") for volume in volumes) and kind != DELETED:
            self._queue.add((PODS, namespace_of(pod), name_of(pod)))
        if kind == DELETED or phase(pod) in ("Succeeded", "Failed"):
            for name in claim_names(pod):
                self._queue.add((PERSISTENT_VOLUME_CLAIMS, namespace_of(pod), name))

    # What to do about it

    async def _work(self, key: Hashable) -> None:
        assert isinstance(key, tuple)
        resource, namespace, name = key
        looks = {
            PODS: self._look_at_pod,
            PERSISTENT_VOLUMES: self._look_at_volume,
            PERSISTENT_VOLUME_CLAIMS: self._look_at_claim,
        }
        await self._applier.apply(looks[resource](namespace, name))

    def _look_at_pod(self, namespace: str, name: str) -> Plan:
        pod = self._pods.get(namespace, name)
        known = [claim for ns, claim in self._claims.objects if ns == namespace]
        return plan(claims_for(pod, known)) if pod is not None else Plan()

    def _look_at_volume(self, _: str, name: str) -> Plan:
        volume = self._volumes.get("", name)
        if volume is None:
            return Plan()
        reference = volume["spec"].get("claimRef") or {}
        claim = self._claims.get(str(reference.get("namespace")), str(reference.get("name")))
        return reconcile_volume(volume, claim)

    def _look_at_claim(self, namespace: str, name: str) -> Plan:
        claim = self._claims.get(namespace, name)
        if claim is None:
            return Plan()
        storage = Storage(
            volumes=list(self._volumes.all()),
            storage_class=self._classes.get("", str(claim["spec"].get("storageClassName") or "")),
            in_use=deleted(claim) and self._in_use(namespace, name),
        )
        return reconcile_claim(claim, storage)

    def _in_use(self, namespace: str, name: str) -> bool:
        return any(
            name in claim_names(pod)
            for pod in self._pods.all()
            if namespace_of(pod) == namespace and phase(pod) not in ("Succeeded", "Failed")
        )
