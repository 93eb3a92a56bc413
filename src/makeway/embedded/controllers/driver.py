"""Runs the controllers: watches tell which objects changed, each is looked at, plans are carried out.

Level-triggered: a look depends on what is there, not on which event caused it, so that events may be
merged, lost or repeated. Each kind has a queue of keys; what belongs to an object (its pods) leads back
to it by the uid of the owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import partial
from typing import Any, Protocol

from makeway.client import Client
from makeway.client.resource import (
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOB_SETS,
    JOBS,
    LEADER_WORKER_SETS,
    MODELS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
    REPLICA_SETS,
    STATEFUL_SETS,
    STORAGE_CLASSES,
    Object,
    Resource,
)
from makeway.client.watch import DELETED
from makeway.control.clock import SystemClock
from makeway.embedded.controllers import (
    cronjobs,
    daemonsets,
    deployments,
    jobs,
    jobsets,
    leaderworkersets,
    models,
    operators,
    replicasets,
    statefulsets,
    training,
)
from makeway.embedded.controllers.apply import Applier
from makeway.embedded.controllers.budgets import BudgetKeeper
from makeway.embedded.controllers.garbage import GarbageCollector
from makeway.embedded.controllers.namespaces import NamespaceCleaner
from makeway.embedded.controllers.plan import Plan
from makeway.embedded.controllers.podgc import PodCollector
from makeway.embedded.controllers.serviceaccounts import AccountKeeper
from makeway.embedded.controllers.volumes import VolumeKeeper
from makeway.embedded.events import EventRecorder
from makeway.embedded.mirror import Mirror
from makeway.embedded.objects import (
    controller_ref,
    deleted,
    name_of,
    namespace_of,
    phase,
    uid_of,
)
from makeway.embedded.workqueue import WorkQueue
from makeway.kinds.frameworks import JOB_KINDS
from makeway.kinds.kubeflow import QueuedTraining
from makeway.kinds.queued import QueuedKind

# Pods of one owner change together; waiting this long makes one status of many changes.
GATHER_S = 0.05
# A pod on its way out is often gone in a moment: a Job then counts it once instead of twice.
GATHER_ENDING_S = 0.25


OPERATED = tuple(operators.OPERATORS)


def _home(kind: QueuedKind) -> Resource:
    return Resource(kind.group, kind.api_version.rsplit("/", 1)[-1], kind.plural)


class Clock(Protocol):
    def now(self) -> float: ...


class Controllers:
    def __init__(
        self,
        client: Client,
        clock: Clock | None = None,
        profiles: Mapping[str, Any] | None = None,
        without: Collection[str] = (),
        pods: str = "",
    ) -> None:
        """`without` names kinds that somebody else runs; `pods` are the labels of pods to look at, without it all."""
        self._clock: Clock = clock or SystemClock()
        self._client = client
        self._profiles = profiles or {}
        self.mirrors: dict[Resource, Mirror] = {
            resource: Mirror(
                client, resource, resource.api_version, kind, pods if resource == PODS else ""
            )
            for resource, kind in (
                (PODS, "Pod"),
                (JOBS, "Job"),
                (CRON_JOBS, "CronJob"),
                (REPLICA_SETS, "ReplicaSet"),
                (DEPLOYMENTS, "Deployment"),
                (STATEFUL_SETS, "StatefulSet"),
                (DAEMON_SETS, "DaemonSet"),
                (JOB_SETS, "JobSet"),
                (LEADER_WORKER_SETS, "LeaderWorkerSet"),
                *((_home(JOB_KINDS[kind]), kind) for kind in (*training.RUN_HERE, *OPERATED)),
                (MODELS, "Model"),
                (NAMESPACES, "Namespace"),
                (NODES, "Node"),
                (PRIORITY_CLASSES, "PriorityClass"),
                (POD_DISRUPTION_BUDGETS, "PodDisruptionBudget"),
                (PERSISTENT_VOLUME_CLAIMS, "PersistentVolumeClaim"),
                (PERSISTENT_VOLUMES, "PersistentVolume"),
                (STORAGE_CLASSES, "StorageClass"),
            )
        }
        self._backoffs: dict[str, jobs.Backoff] = {}
        self._models = self._kind("model-controller", MODELS, PODS, "Model", self._look_at_model)
        self.mirrors[PRIORITY_CLASSES].listen(self._on_priority_class)
        self._daemons = self._kind(
            "daemonset-controller", DAEMON_SETS, PODS, "DaemonSet", self._look_at_daemons
        )
        self.mirrors[NODES].listen(self._on_node)
        self._kinds: list[_Kind] = [
            self._kind("job-controller", JOBS, PODS, "Job", self._look_at_job),
            self._kind(
                "replicaset-controller", REPLICA_SETS, PODS, "ReplicaSet", self._look_at_replicas
            ),
            self._kind(
                "deployment-controller",
                DEPLOYMENTS,
                REPLICA_SETS,
                "Deployment",
                self._look_at_deployment,
            ),
            self._models,
            self._daemons,
            self._kind(
                "statefulset-controller",
                STATEFUL_SETS,
                PODS,
                "StatefulSet",
                self._look_at_stateful_set,
            ),
            self._simple("cronjob-controller", CRON_JOBS, JOBS, cronjobs.reconcile),
            self._simple("jobset-controller", JOB_SETS, JOBS, jobsets.reconcile),
            self._simple(
                "leaderworkerset-controller", LEADER_WORKER_SETS, PODS, leaderworkersets.reconcile
            ),
            *(self._training(kind) for kind in training.RUN_HERE.values()),
            *(self._operated(kind) for kind in OPERATED),
        ]
        self._kinds = [kind for kind in self._kinds if kind.kind not in without]
        self._garbage = GarbageCollector(client, self.mirrors)
        self._namespaces = NamespaceCleaner(client, self.mirrors[NAMESPACES])
        self._accounts = AccountKeeper(client, self.mirrors[NAMESPACES])
        self._budget_events = EventRecorder(client, "controllermanager", self._clock)
        self._budgets = BudgetKeeper(
            self.mirrors[POD_DISRUPTION_BUDGETS],
            self.mirrors[PODS],
            Applier(client, self.mirrors, self._budget_events),
            self._size_of_owner,
            self._clock.now,
        )
        self._volume_events = EventRecorder(client, "persistentvolume-controller", self._clock)
        self._volumes = VolumeKeeper(
            self.mirrors, Applier(client, self.mirrors, self._volume_events)
        )
        self._podgc = PodCollector(client, self.mirrors[PODS], self.mirrors[NODES], self._clock)

    def _kind(
        self,
        name: str,
        resource: Resource,
        children: Resource,
        kind: str,
        look: Callable[[Object | None, list[Object]], Plan],
    ) -> _Kind:
        events = EventRecorder(self._client, name, self._clock)
        applier = Applier(self._client, self.mirrors, events)
        return _Kind(
            name,
            self.mirrors[resource],
            self.mirrors[children],
            kind,
            look,
            applier,
            events,
            self._clock,
        )

    def _simple(
        self,
        name: str,
        resource: Resource,
        children: Resource,
        reconcile: Callable[[Object, list[Object], float], Plan],
    ) -> _Kind:
        """A kind whose look needs nothing but the owner, what it owns, and the time."""

        def look(owner: Object | None, owned: list[Object]) -> Plan:
            return Plan() if owner is None else reconcile(owner, owned, self._clock.now())

        return self._kind(name, resource, children, self.mirrors[resource].kind, look)

    def _training(self, kind: QueuedTraining) -> _Kind:
        home = _home(kind)
        name = f"{kind.kind.lower()}-controller"
        return self._simple(name, home, PODS, partial(training.reconcile, kind, home))

    def _operated(self, kind: str) -> _Kind:
        home = _home(JOB_KINDS[kind])

        def reconcile(owner: Object, _: list[Object], now: float) -> Plan:
            return operators.reconcile(home, owner, now)

        return self._simple("makeway", home, PODS, reconcile)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for mirror in self.mirrors.values():
                group.create_task(mirror.reflector.run())
            # A controller that has not seen all pods would make those again that it missed.
            for mirror in self.mirrors.values():
                if mirror.resource != MODELS:
                    await mirror.reflector.synced.wait()
            for kind in self._kinds:
                group.create_task(kind.run())
            group.create_task(self._garbage.run())
            group.create_task(self._namespaces.run())
            group.create_task(self._podgc.run())
            group.create_task(self._budgets.run())
            group.create_task(self._budget_events.run())
            group.create_task(self._volumes.run())
            group.create_task(self._volume_events.run())
            group.create_task(self._accounts.run())

    async def run_models(self) -> None:
        """Only Models: on a cluster whose own controllers do the rest."""
        watched = [self.mirrors[resource] for resource in (PODS, PRIORITY_CLASSES, MODELS)]
        async with asyncio.TaskGroup() as group:
            for mirror in watched:
                group.create_task(mirror.reflector.run())
            for mirror in watched:
                await mirror.reflector.synced.wait()
            group.create_task(self._models.run())

    def _look_at_job(self, job: Object | None, pods: list[Object]) -> Plan:
        if job is None:
            return jobs.release_orphans(pods)
        uid = uid_of(job)
        plan, self._backoffs[uid] = jobs.reconcile(
            job, pods, self._clock.now(), self._backoffs.get(uid, jobs.Backoff())
        )
        if self._backoffs[uid] == jobs.Backoff():
            del self._backoffs[uid]
        return plan

    def _look_at_replicas(self, owner: Object | None, pods: list[Object]) -> Plan:
        return Plan() if owner is None else replicasets.reconcile(owner, pods, self._clock.now())

    def _look_at_deployment(self, owner: Object | None, sets: list[Object]) -> Plan:
        return Plan() if owner is None else deployments.reconcile(owner, sets, self._clock.now())

    def _look_at_stateful_set(self, owner: Object | None, pods: list[Object]) -> Plan:
        if owner is None:
            return Plan()
        claims = self.mirrors[PERSISTENT_VOLUME_CLAIMS]
        return statefulsets.reconcile(
            owner, pods, lambda name: claims.get(namespace_of(owner), name)
        )

    def _look_at_daemons(self, owner: Object | None, pods: list[Object]) -> Plan:
        nodes = list(self.mirrors[NODES].all())
        return Plan() if owner is None else daemonsets.reconcile(owner, pods, nodes)

    def _on_node(self, _: str, __: Object) -> None:
        """It may be one more place, or one less."""
        for owner in self.mirrors[DAEMON_SETS].all():
            self._daemons.enqueue(owner)

    def _size_of_owner(self, pod: Object) -> int | None:
        """How many pods the pod's owner wants, where it is of a kind that has a size."""
        reference = controller_ref(pod) or {}
        for resource in (REPLICA_SETS, STATEFUL_SETS, MODELS):
            mirror = self.mirrors[resource]
            owner = mirror.get(namespace_of(pod), str(reference.get("name")))
            if mirror.kind == reference.get("kind") and owner is not None:
                return int(owner["spec"].get("replicas") or 0)
        return None

    def _look_at_model(self, model: Object | None, pods: list[Object]) -> Plan:
        if model is None:
            return Plan()
        classes = {name for _, name in self.mirrors[PRIORITY_CLASSES].objects}
        return models.reconcile(model, pods, self._clock.now(), self._profiles, classes)

    def _on_priority_class(self, kind: str, _: Object) -> None:
        """A Model may have waited for this class."""
        for model in self.mirrors[MODELS].all():
            self._models.enqueue(model)


class _Kind:
    """One kind of owner, what it owns, and the queue of owners to look at."""

    def __init__(
        self,
        name: str,
        owners: Mirror,
        children: Mirror,
        kind: str,
        look: Callable[[Object | None, list[Object]], Plan],
        applier: Applier,
        events: EventRecorder,
        clock: Clock,
    ) -> None:
        self.queue = WorkQueue(name)
        self._owners = owners
        self._children = children
        self.kind = kind
        self._look = look
        self._applier = applier
        self._events = events
        self._clock = clock
        owners.listen(self._on_owner)
        children.listen(self._on_child)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run())
            group.create_task(self.queue.run(self._work))

    def _on_owner(self, kind: str, owner: Object) -> None:
        self.enqueue(owner)

    def enqueue(self, owner: Object) -> None:
        self.queue.add((namespace_of(owner), name_of(owner), uid_of(owner)))

    def _on_child(self, kind: str, child: Object) -> None:
        reference = controller_ref(child)
        if reference is None or reference["kind"] != self.kind:
            return
        key = (namespace_of(child), str(reference["name"]), str(reference["uid"]))
        if kind == DELETED or phase(child) in ("Succeeded", "Failed"):
            self.queue.add(key)
        elif not deleted(child):
            self.queue.add_in(key, GATHER_S)
        else:
            self.queue.add_in(key, GATHER_ENDING_S if self.kind == "Job" else 0.0)

    async def _work(self, key: Hashable) -> None:
        assert isinstance(key, tuple)
        namespace, name, uid = key
        owner = self._owners.get(namespace, name)
        if owner is not None and uid_of(owner) != uid:
            owner = None
        plan = self._look(owner, self._children.owned(uid))
        await self._applier.apply(plan)
        if plan.look_again_at is not None:
            self.queue.add_in(key, max(plan.look_again_at - self._clock.now(), 0.01))


async def run_controllers(
    client: Client,
    clock: Clock | None = None,
    profiles: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
) -> None:
    """What a cluster's controller-manager would do, until cancelled."""
    await Controllers(client, clock, profiles, without).run()


async def run_models(client: Client, profiles: Mapping[str, Any] | None = None) -> None:
    """Pods for Models on a cluster without KubeAI, until cancelled."""
    await Controllers(client, None, profiles, pods=models.LABEL).run_models()
