"""The one adapter for a cluster, real or embedded: watches into the local copy, reconciles, and plans into calls.

A change in the copy marks what has to be looked at: jobs, pods, workloads, queues (the job framework), and what the engine
must hear of. `settle` lets the framework take its steps until nothing is left to do; `apply` carries out a plan. Nothing is kept
here that the API does not hold, except what costs only a second look.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from makeway.client import ApiError, Client, Reflector, UnreachableError
from makeway.client.watch import DELETED
from makeway.control.config import Configuration, notes, policy_of
from makeway.control.loop import Loop, OnCycle
from makeway.control.ports import Clock
from makeway.control.record import Recorder
from makeway.engine.fairness import share
from makeway.engine.state import State
from makeway.errors import UserError
from makeway.kinds import pod
from makeway.kinds.frameworks import JOB_KINDS, RUNTIMES
from makeway.kinds.gated import GATED_KINDS
from makeway.kinds.metadata import Object, key, namespace, owners, spec, uid
from makeway.kinds.podgroup import gang_of
from makeway.kube import gated, jobs, podgroups, pods, queues, standing, workloads
from makeway.kube.actions import Chain, Steps
from makeway.kube.apply import Applier
from makeway.kube.copy import Listener, LocalCopy
from makeway.kube.gangs import GangKeeper
from makeway.kube.history import History
from makeway.kube.preempting import reconcile_preemption, unfinished
from makeway.kube.projection import Projection
from makeway.kube.reading import decoder_of
from makeway.kube.resources import POD_GROUPS, REQUIRED, RESOURCES
from makeway.kube.world import World, pod_parties
from makeway.kube.writer import Writer
from makeway.model.decision import Plan
from makeway.model.event import Event
from makeway.model.history import Past
from makeway.model.queue import QueueName
from makeway.model.workload import WorkloadId

log = logging.getLogger(__name__)

GATHER_S: Final = 0.003  # changes that come together are looked at together
QUEUE_STATUS_EVERY_S: Final = 0.2
# Counting takes as long as there are workloads: with more than this, in proportion less often.
CROWD: Final = 200
LONGEST_QUEUE_PAUSE: Final = 10
SOON_S: Final = 0.25
SAMPLE_EVERY_S: Final = 1.0
LOOK_FOR_KINDS_EVERY_S: Final = 15.0
ASK_AGAIN_S: Final = 1.0
MOST_REFUSALS: Final = 10_000
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 10.0
QUEUES: Final = ("ClusterQueue", "LocalQueue")
NOT_QUEUED: Final = frozenset({"Preemption", *POD_GROUPS})  # ours also where Kueue runs
MOST_IN_A_PASS: Final = 256  # so that decisions do not wait for a flood of steps

Task = tuple[str, str]  # what to reconcile: kind of reconcile, key


class KubeCluster:
    def __init__(
        self, client: Client, config: Configuration, clock: Clock, *, queues_are_ours: bool = True
    ) -> None:
        self.copy = LocalCopy()
        self.world = World(self.copy, config, queues_are_ours=queues_are_ours)
        names = frozenset(config.makeway.scheduler_names)
        self.projection = Projection(self.world, lambda scheduler: not names or scheduler in names)
        self.writer = Writer(client, self.copy, clock)
        self.applier = Applier(self.world, self.projection)
        self.gangs = GangKeeper(self.world, self.projection)
        self._client = client
        self._clock = clock
        self._changed = asyncio.Event()
        self._tasks: dict[Task, None] = {}
        self._timers: list[tuple[float, Task]] = []
        self._due: dict[Task, float] = {}
        self._troubles: dict[Task, int] = {}
        self._written: dict[Task, float] = {}  # when a queue's status was written last
        self._refusals: dict[WorkloadId, tuple[int, float]] = {}  # how often, and not before when
        self._samples = policy_of(config).usage_order is not None
        self._said_of: set[QueueName] = set()  # that their wish is not fulfilled
        self._sampled = 0.0  # when the usage of local queues was looked at last
        self._sample_at: float | None = None  # and when it is to be looked at again
        self._history = History(self.copy)
        self.served: set[str] = set()
        self.copy.listen(self._note)

    # Watching

    async def follow(self, group: asyncio.TaskGroup, synced: asyncio.Event) -> None:
        """Watch all kinds that the API serves; the others when they appear."""
        while True:
            try:
                fresh = await self._newly_served()
            except (ApiError, UnreachableError) as error:
                log.warning("the API does not say what it serves: %s; trying again", error)
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            missing = REQUIRED - self.served - set(fresh)
            if missing:
                raise UserError(f"the API does not serve {', '.join(sorted(missing))}.")
            reflectors = {kind: self._watch(kind, group) for kind in fresh}
            for kind, reflector in reflectors.items():
                await reflector.synced.wait()
                self.world.watched.add(kind)
            synced.set()
            await asyncio.sleep(LOOK_FOR_KINDS_EVERY_S)

    async def load(self) -> None:
        """All that the API holds, once: for who asks a question and decides nothing."""
        kinds = await self._newly_served()
        lists = await asyncio.gather(*(self._client.list(RESOURCES[kind]) for kind in kinds))
        for kind, objects in zip(kinds, lists, strict=True):
            for obj in objects:
                self.copy.take(kind, obj)
            self.world.watched.add(kind)

    async def _newly_served(self) -> list[str]:
        """Kinds that the API serves and that are not watched yet."""
        unwatched = [kind for kind in RESOURCES if kind not in self.served]
        homes = {(RESOURCES[kind].group, RESOURCES[kind].version) for kind in unwatched}
        answers = await asyncio.gather(*(self._names(*home) for home in homes))
        names = dict(zip(homes, answers, strict=True))
        fresh: list[str] = []
        for kind in unwatched:
            resource = RESOURCES[kind]
            served = names[resource.group, resource.version]
            if f"{resource.plural}/status" in served:
                self.world.subresources.add(f"{kind}/status")
            if resource.plural in served:
                fresh.append(kind)
        return fresh

    async def _names(self, group: str, version: str) -> set[str]:
        root = f"/apis/{group}" if group else "/api"
        try:
            answer = await self._client.request("GET", f"{root}/{version}")
        except ApiError as error:
            if error.not_found:
                return set()
            raise
        return {str(r.get("name")) for r in answer.get("resources") or []}

    def _watch(self, kind: str, group: asyncio.TaskGroup) -> Reflector[Object]:
        reflector: Reflector[Object] = Reflector(
            self._client,
            RESOURCES[kind],
            partial(self._hear, kind),
            decode=decoder_of(kind),
            known=lambda meta: self.copy.knows(kind, meta.key, meta.uid, meta.resource_version),
        )
        group.create_task(reflector.run(), name=f"watch {kind}")
        self.served.add(kind)
        return reflector

    def _hear(self, kind: str, change: str, obj: Object) -> None:
        if change == DELETED:
            self.copy.drop(kind, obj)
        else:
            self.copy.take(kind, obj)

    # What a change asks to be looked at

    def _note(self, kind: str, key_: str, before: Object | None, after: Object | None) -> None:
        self._changed.set()
        if kind in JOB_KINDS or kind in GATED_KINDS:
            self._mark(kind, key_)
            if after is None and before is not None:
                self._mark_workloads(self.copy.by("workloads by owner", uid(before)))
            return
        if kind in RUNTIMES:
            self._mark_all("TrainJob")
            return
        match kind:
            case "Pod":
                self._note_pod(before, after)
            case "Workload":
                self._note_workload(key_, before, after)
            case "ClusterQueue":
                self._mark("ClusterQueue", key_)
                for door in self.copy.by("local queues by cluster queue", key_):
                    self._note_door(key(door))
                self._mark_workloads(self.copy.by("workloads by cluster queue", key_))
                self._mark_all("ResourceFlavor")
                self._mark_all("AdmissionCheck")
            case "LocalQueue":
                self._note_door(key_)
                self._mark("ClusterQueue", str(spec(after or before or {}).get("clusterQueue", "")))
            case "ResourceFlavor" | "AdmissionCheck" | "Topology" | "Cohort":
                self._mark(kind, key_)
                self._mark_all("Topology")
                self._mark_all("ClusterQueue")
                self._mark_all("LocalQueue")
                self._mark_workloads(
                    w for w in self.copy.all("Workload") if not standing.has_quota(w)
                )
            case "LimitRange":
                space = key_.split("/", 1)[0]
                self._mark_workloads(self.copy.by("workloads by namespace", space))
            case "PriorityClass" | "WorkloadPriorityClass":
                for owners_kind in (*JOB_KINDS, *GATED_KINDS):
                    self._mark_all(owners_kind)
                for one in self.copy.all("Pod"):
                    self._mark_pod(one)
                self._mark_workloads(self.copy.all("Workload"))
            case "Preemption" | "PodGroup" | "PodGroup.x-k8s.io" | "PodGroup.k8s.io":
                self._mark(kind, key_)

    def _note_pod(self, before: Object | None, after: Object | None) -> None:
        for state in (before, after):
            if state is not None:
                self._mark_pod(state)
                gang = gang_of(state)
                if gang is not None:
                    for kind in POD_GROUPS:
                        self._mark(kind, gang)
        if after is None and before is not None and pod.queued(before):
            self._mark_workloads(self.copy.by("workloads by owner", uid(before)))
        self._mark_preemptions_of(*pod_parties(after or before or {}))

    def _mark_pod(self, one: Object) -> None:
        parent = self.world.gated_parent(one)
        if parent is not None:
            self._mark(parent[0].kind, key(parent[1]))
            return
        group = pod.group_of(one)
        if group is not None:
            self._mark("Group", f"{group.namespace}/{group.name}")
        elif pod.queued(one):
            self._mark("Pod", key(one))

    def _note_workload(self, key_: str, before: Object | None, after: Object | None) -> None:
        self._mark("Workload", key_)
        if before is not None and standing.unready(before):
            # Somebody may wait for just this one to be ready, or gone.
            for waiting in self.applier.blocked:
                self.projection.remark(waiting)
        for state in (before, after):
            if state is None:
                continue
            for owner in owners(state):
                self._mark_owner(namespace(state), str(owner.get("kind")), str(owner.get("name")))
            door = f"{namespace(state)}/{spec(state).get('queueName', '')}"
            self._mark("LocalQueue", door)
            local = self.copy.get("LocalQueue", door)
            for queue in {
                standing.cluster_queue(state),
                str(spec(local or {}).get("clusterQueue", "")),
            }:
                if queue:
                    self._mark("ClusterQueue", queue)
        self._mark_preemptions_of(key_)

    def _mark_owner(self, space: str, kind: str, owner: str) -> None:
        if kind in JOB_KINDS or kind in GATED_KINDS:
            self._mark(kind, f"{space}/{owner}")
        elif kind == "Pod":
            found = self.copy.get("Pod", f"{space}/{owner}")
            if found is not None:
                self._mark_pod(found)

    def _note_door(self, key_: str) -> None:
        self._mark("LocalQueue", key_)
        self._mark_workloads(self.copy.by("workloads by local queue", key_))

    def _mark_workloads(self, found: Iterable[Object]) -> None:
        for workload in found:
            self._mark("Workload", key(workload))

    def _mark_all(self, kind: str) -> None:
        for key_ in self.copy.keys(kind):
            self._mark(kind, key_)

    def _mark_preemptions_of(self, *parties: str) -> None:
        """Those under way in which one of these is the preemptor or a victim."""
        for party in parties:
            for record in self.copy.keys_by("preemptions by party", party):
                self._mark("Preemption", record)

    def _mark(self, what: str, key_: str) -> None:
        self._tasks[what, key_] = None

    # Settling

    async def settle(self) -> bool:
        """One pass over everything marked; the changes it makes mark the next."""
        now = self._clock.now()
        self._ring(now)
        marked, self._tasks = self._tasks, {}
        work: list[tuple[Task, Chain]] = []
        for task in marked:
            if len(work) >= MOST_IN_A_PASS:
                self._tasks[task] = None
                continue
            if task[0] in QUEUES and self._too_soon(task, now):
                continue
            steps = self._steps(task, now)
            if steps.again_at is not None:
                self._at(max(steps.again_at, now + FIRST_PAUSE_S), task)
            if steps.actions:
                work.append((task, Chain(actions=steps.actions)))
        if not work:
            return bool(self._tasks)
        done = await self.writer.run_all(chain for _, chain in work)
        well = {id(chain) for chain, well in done if well}
        for task, chain in work:
            if task[0] in QUEUES:
                self._written[task] = now
            self._judge(task, id(chain) in well)
        return True

    def _steps(self, task: Task, now: float) -> Steps:
        what, key_ = task
        try:
            return self._reconcile(what, key_, now)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("%s %s cannot be reconciled: %r", what, key_, error)
            return Steps()

    def _reconcile(self, what: str, key_: str, now: float) -> Steps:
        if not self.world.queues_are_ours and what not in NOT_QUEUED:
            return Steps()
        if what == "Group":
            space, group = key_.split("/", 1)
            return pods.reconcile_group(space, group, self.world, now)
        found = self.copy.get(what, key_)
        if found is None:
            return Steps()
        if what in JOB_KINDS:
            return self._reconcile_job(what, found, now)
        if what in GATED_KINDS:
            managed = self.world.manages_gated(found)
            return (
                gated.reconcile(GATED_KINDS[what], found, self.world, now) if managed else Steps()
            )
        match what:
            case "Pod":
                return pods.reconcile_one(found, self.world, now)
            case "Workload":
                return workloads.reconcile(found, self.world, now)
            case "ClusterQueue":
                return queues.reconcile_cluster_queue(found, self.world, now)
            case "LocalQueue":
                return queues.reconcile_local_queue(found, self.world, now)
            case "ResourceFlavor" | "AdmissionCheck" | "Topology":
                return queues.reconcile_used(what, found, self.world)
            case "Cohort":
                return queues.reconcile_cohort(found, self.world)
            case "PodGroup" | "PodGroup.x-k8s.io" | "PodGroup.k8s.io":
                return podgroups.reconcile(what, found, self.world, now)
            case "Preemption":
                steps = reconcile_preemption(found, self.world, now)
                if unfinished(found, self.world, now):
                    steps.actions += self.applier.evictor.resume(found, now)
                return steps
            case _:
                return Steps()

    def _reconcile_job(self, what: str, found: Object, now: float) -> Steps:
        kind = JOB_KINDS[what]
        if not kind.queues(found) or not self.world.manages(found):
            return Steps()
        return jobs.reconcile(kind, found, self.world, now)

    def _too_soon(self, task: Task, now: float) -> bool:
        """Counts of a queue change with every workload: write them a few times a second, not a thousand."""
        crowd = min(self.copy.count("Workload") / CROWD, LONGEST_QUEUE_PAUSE)
        next_at = self._written.get(task, 0.0) + QUEUE_STATUS_EVERY_S * max(1.0, crowd)
        if now < next_at:
            self._at(next_at, task)
            return True
        return False

    def _judge(self, task: Task, well: bool) -> None:
        if well:
            self._troubles.pop(task, None)
            return
        failures = self._troubles[task] = self._troubles.get(task, 0) + 1
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 12))
        self._at(self._clock.now() + pause, task)

    def _at(self, when: float, task: Task) -> None:
        if self._due.get(task, float("inf")) <= when:
            return
        self._due[task] = when
        heapq.heappush(self._timers, (when, task))

    def _ring(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            when, task = heapq.heappop(self._timers)
            if self._due.get(task) == when:
                del self._due[task]
                self._tasks[task] = None

    # The port

    async def wait(self, until: float | None) -> None:
        pause = None if until is None else max(0.0, until - self._clock.now())
        try:
            # Not `wait_for`: in Python 3.11 it loses a cancellation that meets the change it waits for.
            async with asyncio.timeout(pause):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(GATHER_S)
        self._changed.clear()

    def changes(self) -> Sequence[Event]:
        return self.projection.drain()

    def history(self) -> dict[str, Past]:
        return dict(self._history.past)

    def wake_at(self) -> float | None:
        return self._timers[0][0] if self._timers else None

    def decide_at(self) -> float | None:
        now = self._clock.now()
        times = [until for _, until in self._refusals.values() if until > now]
        put_off = (self.applier.publisher.later, self.applier.later, self.gangs.later)
        times += [at for at in (*put_off, self._sample_at) if at is not None]
        return min(times, default=None)

    def ring_soon(self) -> bool:
        """Something is put off for a moment only."""
        return bool(self._timers) and self._timers[0][0] <= self._clock.now() + SOON_S

    @property
    def idle(self) -> bool:
        waiting = self._tasks or self.projection.pending or self._changed.is_set()
        return not waiting and not self.ring_soon()

    async def apply(self, plan: Plan) -> None:
        now = self._clock.now()
        on_record = "Preemption" in self.served
        await self._carry_out(self.applier.chains(plan, now, on_record=on_record), now)
        await self._carry_out(self.applier.nominations(plan, now), now)
        await self.writer.run_all(self.gangs.look(plan.decisions, now))

    async def _carry_out(self, asked: list[Chain], now: float) -> None:
        for chain, well in await self.writer.run_all(
            chain for chain in asked if self._may_try(chain.workload, now)
        ):
            for workload in (chain.workload, *chain.others):
                if well:
                    self._refusals.pop(workload, None)
                else:
                    self._refused(workload)

    def _may_try(self, workload: WorkloadId, now: float) -> bool:
        """Whoever was refused waits a while before it is tried again, and keeps nobody else."""
        return now >= self._refusals.get(workload, (0, 0.0))[1]

    def _refused(self, workload: WorkloadId) -> None:
        if len(self._refusals) > MOST_REFUSALS:
            self._refusals.clear()  # costs an attempt each
        count = self._refusals.get(workload, (0, 0.0))[0] + 1
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(count - 1, 12))
        self._refusals[workload] = (count, self._clock.now() + pause)
        self.projection.remark(workload)  # the engine is told how it really is

    def observe(self, state: State, now: float) -> None:
        """After a cycle: what queues and cohorts show of their shares, and local queues of what they have used."""
        self._observe_shares(state)
        self._observe_usage(state, now)

    def _observe_usage(self, state: State, now: float) -> None:
        """At most once a second, since samples are of whole seconds."""
        if not self._samples:
            self._say_that_usage_does_not_count(state.local_usage.queues)
            return
        if now < self._sampled + SAMPLE_EVERY_S:
            self._sample_at = self._sampled + SAMPLE_EVERY_S
            return
        self._sampled = now
        self.world.samples = dict(state.usage.due())  # who was not written yet is due again
        for door in self.world.samples:
            self._mark("LocalQueue", door)
        self._sample_at = state.usage.next_due_at()

    def _say_that_usage_does_not_count(self, queues: set[QueueName]) -> None:
        """Asked for by a queue, and not configured: nobody should wait for its effect."""
        for queue in sorted(queues - self._said_of):
            log.warning(
                "ClusterQueue %s asks for UsageBasedAdmissionFairSharing, and the configuration does not switch it on"
                " (admissionFairSharing): there, priority and age decide",
                queue,
            )
        self._said_of |= queues

    def _observe_shares(self, state: State) -> None:
        if self.world.config.fair_sharing is None:
            return
        tree = state.ledger.tree
        nodes = [("ClusterQueue", node) for node in tree.queues.values()]
        nodes += [("Cohort", node) for node in tree.cohorts.values()]
        for kind, node in nodes:
            value = share(node).rounded()
            if self.world.shares.get((kind, node.name)) != value:
                self.world.shares[kind, node.name] = value
                self._mark(kind, node.name)


async def run_scheduler(
    client: Client,
    config: Configuration,
    clock: Clock,
    ready: asyncio.Event,
    *,
    queues_are_ours: bool = True,
    on_cycle: OnCycle | None = None,
    record: Path | None = None,
    started: asyncio.Future[Loop] | None = None,
    on_change: Listener | None = None,
) -> None:
    """Schedule until cancelled; `ready` is set when everything that exists was seen and decided on once."""
    cluster = KubeCluster(client, config, clock, queues_are_ours=queues_are_ours)
    if on_change is not None:
        cluster.copy.listen(on_change)
    for note in notes(config):
        log.warning("%s", note)

    def watch(state: State, plan: Plan, now: float) -> None:
        cluster.observe(state, now)
        if on_cycle is not None:
            on_cycle(state, plan, now)

    policy = policy_of(config)
    recorder = Recorder(record, policy) if record is not None else None
    loop = Loop(cluster, clock, policy, on_cycle=watch, recorder=recorder)
    synced = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(cluster.writer.tell_all(), name="events")
        group.create_task(cluster.follow(group, synced), name="watches")
        await synced.wait()
        await loop.once()
        if started is not None:
            started.set_result(loop)
        ready.set()
        await loop.run()
