"""The Harness: the engine, an in-memory cluster and a clock you move. Public: tests, dry runs and simulations share it.

h = Harness()
h.nodes(3, gpus=8)
h.queue("research", gpus=32)
h.submit("train", queue="research", pods=4, gpus=8)
h.cycle()
assert h.admitted == []
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from makeway.control.sentences import sentence
from makeway.engine.admission import required_checks
from makeway.engine.assume import assume, lowered, released
from makeway.engine.cycle import decide
from makeway.engine.invariants import check
from makeway.engine.ledger import counted_pods
from makeway.engine.policy import Policy
from makeway.engine.state import State
from makeway.model.decision import Admit, Evict, Plan
from makeway.model.event import Event, Namespace, Object, Remove, Upsert
from makeway.model.history import Eviction, Past, owner_of
from makeway.model.node import Node, NodeName
from makeway.model.queue import (
    AdmissionCheck,
    Cohort,
    CohortName,
    Flavor,
    FlavorName,
    FlavorQuotas,
    LocalQueue,
    PreemptionPolicy,
    Queue,
    QueueCheck,
    QueueName,
    Quota,
    ResourceGroup,
)
from makeway.model.resources import FrozenAmounts, frozen
from makeway.model.selectors import LabelSelector
from makeway.model.workload import (
    Checkpoint,
    CheckState,
    Gang,
    Pod,
    PodId,
    PodSet,
    PodShape,
    TopologyRequest,
    Workload,
    WorkloadId,
)

GPU = "nvidia.com/gpu"
START = 1_000_000.0


def amounts(*, gpus: int = 0, cpus: float = 0, memory: int = 0) -> FrozenAmounts:
    asked = {GPU: gpus, "cpu": round(cpus * 1000), "memory": memory}
    return frozen({name: amount for name, amount in asked.items() if amount})


class Harness:
    """A cluster in memory. Pods that are bound run at once; pods that are evicted leave when the clock says so."""

    def __init__(self, policy: Policy | None = None, now: float = START) -> None:
        self.state = State()
        self.policy = policy or Policy()
        self.now = now
        self.last = Plan()
        self.timeline: list[str] = []
        self.evictions: list[tuple[str, str]] = []  # who fell for whom, in order
        self._waits: dict[str, str] = {}
        self._submitted: dict[WorkloadId, Workload] = {}
        self._grace: dict[WorkloadId, float] = {}
        self._lowering: dict[WorkloadId, int] = {}  # jobs told to go on with fewer pods
        self.put(Namespace(name="default", labels={"kubernetes.io/metadata.name": "default"}))

    # --- given ---

    def put(self, *objects: Object) -> None:
        for obj in objects:
            self.state.apply(Upsert(obj=obj))

    def nodes(
        self,
        count: int,
        *,
        gpus: int = 0,
        cpus: float = 64,
        prefix: str = "node-",
        labels: dict[str, str] | None = None,
        **more: dict[str, str],
    ) -> None:
        first = len(self.state.nodes)
        for i in range(first, first + count):
            name = NodeName(f"{prefix}{i}")
            where = {"kubernetes.io/hostname": name, **(labels or {})}
            room = (*amounts(gpus=gpus, cpus=cpus), ("memory", 2**40), ("pods", 110))
            self.put(Node(name=name, labels=where, allocatable=frozen(dict(room))))

    def queue(
        self,
        name: str,
        *,
        gpus: int = 0,
        cpus: float | None = None,
        cohort: str | None = None,
        within: str = "LowerPriority",
        reclaim: str = "Any",
        borrow: str = "Never",
        threshold: int | None = None,
        strategy: str = "BestEffortFIFO",
        borrowing_limit: int | None = None,
        weight: float = 1.0,
        checks: Sequence[str] = (),
        doors: dict[str, float] | None = None,
    ) -> None:
        """A ClusterQueue and a LocalQueue of the same name; one flavor, called "default".

        `doors`: instead, local queues of these names and weights, told apart by what they have used.
        """
        resources = {GPU: gpus, "cpu": round((cpus if cpus is not None else 10_000) * 1000)}
        group = ResourceGroup(
            resources=tuple(resources),
            flavors=(
                FlavorQuotas(
                    flavor=FlavorName("default"),
                    quotas=tuple(
                        Quota(
                            resource=r,
                            nominal=n,
                            borrowing_limit=borrowing_limit if r == GPU else None,
                        )
                        for r, n in resources.items()
                    ),
                ),
            ),
        )
        preemption = PreemptionPolicy(
            within_queue=within,  # type: ignore[arg-type]  # tests write plain text
            reclaim=reclaim,  # type: ignore[arg-type]
            borrow=borrow,  # type: ignore[arg-type]
            borrow_max_priority=threshold,
        )
        if FlavorName("default") not in self.state.flavors:
            self.put(Flavor(name=FlavorName("default")))
        self.put(*(AdmissionCheck(name=check) for check in checks))
        self.put(
            Queue(
                name=QueueName(name),
                cohort=CohortName(cohort) if cohort else None,
                strategy=strategy,  # type: ignore[arg-type]
                namespace_selector=LabelSelector(),
                resource_groups=(group,),
                preemption=preemption,
                weight=weight,
                checks=tuple(QueueCheck(name=check) for check in checks),
                usage_based_fair_sharing=doors is not None,
            ),
            *(
                LocalQueue(namespace="default", name=door, queue=QueueName(name), weight=weight)
                for door, weight in (doors or {name: 1.0}).items()
            ),
        )

    def cohort(self, name: str, parent: str | None = None) -> None:
        self.put(Cohort(name=CohortName(name), parent=CohortName(parent) if parent else None))

    def submit(
        self,
        name: str,
        *,
        queue: str | None = None,
        priority: int = 0,
        pods: int = 1,
        gpus: int = 0,
        cpus: float = 0,
        gang: bool | int = True,
        preempts: bool = True,
        grace: float = 0.0,
        topology: str | None = None,
        shape: PodShape | None = None,
        checkpoint: Checkpoint | None = None,
        protected: str = "",
        lowers_to: int | None = None,
    ) -> None:
        """`gang`: True: all pods at once; a number: at least so many; False: each for itself."""
        key = WorkloadId(f"default/{name}")
        template = shape or PodShape(namespace="default", requests=amounts(gpus=gpus, cpus=cpus))
        minimums = (("main", int(gang)),) if gang is not True and gang else ()
        workload = Workload(
            id=key,
            uid=name,
            local_queue=queue,
            needs="both" if queue else "nodes",
            priority=priority,
            pod_priority=priority,
            preempts=preempts,
            created_at=self.now + len(self._submitted) * 1e-6,
            pod_sets=(
                PodSet(
                    name="main",
                    count=pods,
                    shape=template,
                    topology=TopologyRequest(level=topology) if topology else None,
                ),
            ),
            gang=Gang(minimums=minimums, gives_up_surplus=bool(minimums))
            if gang and pods > 1
            else None,
            checkpoint=checkpoint or Checkpoint(),
            protected=protected,
            lowers_to=lowers_to,
        )
        self._submitted[key] = workload
        self._grace[key] = grace
        self.put(workload)
        if queue is None:
            self._create_pods(workload)

    def _create_pods(self, workload: Workload) -> None:
        for pod_set in workload.pod_sets:
            # A job that was lowered makes no new pods for those that it gave up.
            wanted = pod_set.count if workload.admission is None else counted_pods(workload)
            missing = wanted - len(self.state.occupancy.members(workload.id))
            for i in range(pod_set.count):
                pod = PodId(f"{workload.id}-{i}")
                if pod in self.state.pods or missing <= 0:
                    continue
                missing -= 1
                self.put(
                    Pod(
                        id=pod,
                        uid=pod,
                        workload=workload.id,
                        pod_set=pod_set.name,
                        shape=pod_set.shape,
                        priority=workload.rank,
                        created_at=workload.created_at + i * 1e-9,
                        grace_s=self._grace.get(workload.id, 0.0),
                        owned=True,
                    )
                )

    # --- when ---

    def cycle(self, rounds: int | None = None) -> Plan:
        """Decide once and carry it out; the invariants are checked on the way."""
        plan = decide(self.state, self.now, self.policy, rounds)
        check(self.state, plan, self.policy, self.now)
        self.last = plan
        self._remember(plan)
        self._write_samples()
        assume(self.state, plan, self.now)
        self._start_pods(plan)
        return plan

    def _write_samples(self) -> None:
        """What local queues have used, as the adapter writes it to their status."""
        for door, sample in list(self.state.usage.due()):
            local = self.state.local_queues[door]
            self.put(msgspec.structs.replace(local, consumed=sample.consumed, sampled_at=sample.at))

    def settle(self, most: int = 50) -> None:
        """Cycles, and victims leaving, until nothing happens any more."""
        for _ in range(most):
            plan = self.cycle()
            left = self.let_them_leave()
            if (
                not left
                and not plan.admits
                and not plan.evicts
                and not self._waiting_pods_of_admitted(plan)
            ):
                return
        raise AssertionError(f"still busy after {most} cycles")

    def _waiting_pods_of_admitted(self, plan: Plan) -> bool:
        return any(admit.placement for admit in plan.admits)

    def put_started(self, name: str, when: float) -> None:
        """Its pods (re)started then."""
        for pod in self.state.occupancy.members(WorkloadId(f"default/{name}")):
            self.put(msgspec.structs.replace(pod, started_at=when))

    def answer_checks(self, state: Literal["Ready", "Retry", "Rejected"] = "Ready") -> None:
        """Every admission check that a reservation waits for says this."""
        for held in list(self.state.workloads.values()):
            if held.admission is None or held.admission.admitted:
                continue
            names = required_checks(held.admission, self.state.queues[held.admission.queue])
            said = tuple(CheckState(name=name, state=state) for name in sorted(names))
            self.put(msgspec.structs.replace(held, checks=said))

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def finish(self, name: str) -> None:
        key = WorkloadId(f"default/{name}")
        for pod in self.state.occupancy.members(key):
            self.state.apply(Remove(type=Pod, key=pod.id))
        self.state.apply(Remove(type=Workload, key=key))

    def remove_node(self, name: str) -> None:
        for pod in list(self.state.pods.values()):
            if pod.node == name:
                self.state.apply(Remove(type=Pod, key=pod.id))
        self.state.apply(Remove(type=Node, key=name))

    # --- then ---

    @property
    def admitted(self) -> list[str]:
        """Workloads with all their pods (or quota) in place, by name."""
        return sorted(w.name for w in self.state.workloads.values() if self._runs(w))

    @property
    def waiting(self) -> list[str]:
        return sorted(w.name for w in self.state.workloads.values() if not self._runs(w))

    def _runs(self, workload: Workload) -> bool:
        if workload.evicted_at is not None:
            return False
        if workload.admission is not None:
            return True
        return any(
            p.node is not None and p.gone_by is None
            for p in self.state.occupancy.members(workload.id)
        )

    def placed(self, name: str) -> list[str]:
        """The nodes of its pods, sorted."""
        pods = self.state.occupancy.members(WorkloadId(f"default/{name}"))
        return sorted(pod.node for pod in pods if pod.node is not None)

    def why(self, name: str) -> str:
        return self._waits.get(f"default/{name}", "")

    @property
    def preempted(self) -> list[str]:
        """Who fell so far, by name, in order; each once."""
        return list(dict.fromkeys(victim.split("/", 1)[1] for victim, _ in self.evictions))

    def submitted(self, workload: str) -> Workload:
        """As it was asked for."""
        return self._submitted[WorkloadId(workload)]

    def is_on_its_way(self, name: str) -> bool:
        """Admitted, or told to stop: neither runs nor waits for a decision."""
        workload = self.state.workloads[WorkloadId(f"default/{name}")]
        return workload.admission is not None or any(
            pod.gone_by is not None for pod in self.state.occupancy.members(workload.id)
        )

    def rebuilt(self, shuffle: Callable[[list[Event]], None] | None = None) -> State:
        """A fresh state with the same objects, in any order."""
        old = self.state
        objects: list[Object] = [
            *old.namespaces.values(),
            *old.nodes.values(),
            *old.topologies.values(),
            *old.checks.values(),
            *old.budgets.values(),
            *old.flavors.values(),
            *old.cohorts.values(),
            *old.queues.values(),
            *old.local_queues.values(),
            *old.workloads.values(),
            *old.pods.values(),
            *old.holds.values(),
        ]
        events: list[Event] = [Upsert(obj=obj) for obj in objects]
        if shuffle is not None:
            shuffle(events)
        fresh = State()
        for event in events:
            fresh.apply(event)
        fresh.history = dict(old.history)
        return fresh

    # --- the cluster's part ---

    def _remember(self, plan: Plan) -> None:
        for decision in plan.decisions:
            if isinstance(decision, Evict) and not decision.already:
                self.evictions.append((decision.workload, decision.preemptor))
                self._remember_loss(decision)
                if decision.keeps is not None:
                    self._lowering[decision.workload] = decision.keeps
                self.timeline.append(f"evict {decision.workload} for {decision.preemptor}")
            elif isinstance(decision, Admit):
                self._waits.pop(decision.workload, None)
                self.timeline.append(f"admit {decision.workload}")
        for wait in plan.waits:
            self._waits[wait.workload] = sentence(wait.reason)

    def _remember_loss(self, evict: Evict) -> None:
        workloads = self.state.workloads
        owner = owner_of(workloads[evict.workload])
        preemptor = workloads.get(evict.preemptor)
        loss = Eviction(at=self.now, by=owner_of(preemptor) if preemptor is not None else "")
        past = self.state.history.get(owner, Past())
        past = msgspec.structs.replace(past, evictions=(*past.evictions, loss))
        self.state.history = {**self.state.history, owner: past}

    def _start_pods(self, plan: Plan) -> None:
        for admit in plan.admits:
            workload = self.state.workloads[admit.workload]
            if admit.admission is not None and admit.admission.admitted:
                self._create_pods(workload)
            for bind in admit.binds:
                pod = self.state.pods[bind.pod]
                self.put(msgspec.structs.replace(pod, phase="Running", started_at=self.now))

    def let_them_leave(self) -> bool:
        """Pods whose grace is over vanish; whoever owned them is recreated and waits again, unless its job was lowered."""
        for key, keeps in self._lowering.items():
            found = self.state.workloads.get(key)
            if found is not None and found.admission is not None and found.evicted_at is None:
                fewer = lowered(found.admission, keeps)
                self.put(msgspec.structs.replace(found, admission=fewer))
        self._lowering.clear()
        gone = [
            p for p in self.state.pods.values() if p.gone_by is not None and p.gone_by <= self.now
        ]
        for pod in gone:
            self.state.apply(Remove(type=Pod, key=pod.id))
        stopped = [
            w
            for w in list(self.state.workloads.values())
            if w.evicted_at is not None and not self.state.occupancy.members(w.id)
        ]
        for workload in stopped:
            self.put(released(workload))
        for key in {pod.workload for pod in gone}:
            workload = self.state.workloads[key]
            runs_on = workload.admission is not None and workload.evicted_at is None
            if workload.needs == "nodes" or runs_on:
                self._create_pods(workload)
        return bool(gone or stopped)


def names(workloads: Sequence[str]) -> list[str]:
    return sorted(workload.split("/", 1)[-1] for workload in workloads)
