"""One case through the engine and through the solver."""

from __future__ import annotations

import msgspec

from makeway.engine.policy import Policy
from makeway.model.node import NodeName
from makeway.model.queue import QueueName
from makeway.model.resources import frozen
from makeway.model.workload import (
    Admission,
    Assignment,
    Checkpoint,
    Gang,
    Pod,
    PodId,
    PodSet,
    PodShape,
    Workload,
    WorkloadId,
)
from makeway.testing import GPU, Harness, amounts
from tests.optimum import exact
from tests.optimum.clusters import Case, Running


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    case: Case
    victims: tuple[str, ...] | None  # None: the engine evicts nobody
    ceiling: int
    loss_gpu_s: float
    optimum: exact.Answer | None
    proven: bool

    @property
    def problem(self) -> str:
        if self.victims is None or self.optimum is None:
            if self.victims is None and self.optimum is None:
                return ""
            return f"engine {self.victims}, solver {self.optimum}"
        if self.ceiling != self.optimum.ceiling:
            return f"ceiling {self.ceiling}, solver {self.optimum.ceiling}"
        if self.optimum.loss_gpu_s == 0 and self.loss_gpu_s > 0:
            return f"loses {self.loss_gpu_s}, solver nothing"
        if self.loss_gpu_s < self.optimum.loss_gpu_s - 0.5:
            return f"loses {self.loss_gpu_s}, less than the solver's {self.optimum.loss_gpu_s}: illegal?"
        return ""

    @property
    def ratio(self) -> float:
        if self.optimum is None or not self.optimum.loss_gpu_s:
            return 1.0
        return self.loss_gpu_s / self.optimum.loss_gpu_s


def compare(case: Case) -> Outcome | None:
    """None when nobody has to fall."""
    if exact.needs_nobody(case):
        return None
    h = cluster(case)
    plan = h.cycle()
    evicts = [evict for evict in plan.evicts if not evict.already]
    by_name = {r.name: r for r in case.running}
    victims = tuple(sorted({evict.workload.split("/", 1)[1] for evict in evicts}))
    hold = plan.holds[0] if plan.holds else None
    return Outcome(
        case=case,
        victims=victims or None,
        ceiling=max((by_name[name].priority for name in victims), default=0),
        loss_gpu_s=sum(evict.loss for evict in evicts),
        optimum=exact.solve(case),
        proven=hold is not None and hold.bound is not None and hold.bound >= hold.loss,
    )


def cluster(case: Case) -> Harness:
    h = Harness(Policy())
    h.nodes(case.node_count, gpus=case.gpus_per_node, cpus=case.cpus_per_node)
    for queue, nominal in case.nominal.items():
        h.queue(queue, gpus=nominal, cohort="all", within="LowerPriority", reclaim="Any")
    for running in case.running:
        _run(h, running)
    _submit(h, case)
    return h


def _run(h: Harness, running: Running) -> None:
    key = WorkloadId(f"default/{running.name}")
    shape = PodShape(namespace="default", requests=amounts(gpus=running.gpus, cpus=running.cpus))
    pods = len(running.nodes)
    usage = frozen({GPU: running.total_gpus, "cpu": running.cpus * pods * 1000})
    admission = None
    if running.queue is not None:
        flavors = ((("cpu"), "default"), (GPU, "default"))
        assignment = Assignment(pod_set="main", flavors=flavors, usage=usage, count=pods)  # type: ignore[arg-type]
        admission = Admission(
            queue=QueueName(running.queue), assignments=(assignment,), reserved_at=h.now - 1
        )
    h.put(
        Workload(
            id=key,
            uid=running.name,
            local_queue=running.queue,
            needs="both" if running.queue else "nodes",
            priority=running.priority,
            pod_priority=running.priority,
            pod_sets=(PodSet(name="main", count=pods, shape=shape),),
            gang=Gang() if pods > 1 else None,
            # Unsaved since its start, and free to restart: the loss is what the case says.
            checkpoint=Checkpoint(restart_s=0.0),
            admission=admission,
        )
    )
    for i, node in enumerate(running.nodes):
        h.put(
            Pod(
                id=PodId(f"{key}-{i}"),
                workload=key,
                shape=shape,
                priority=running.priority,
                phase="Running",
                node=NodeName(f"node-{node}"),
                started_at=h.now - running.loss_s,
            )
        )


def _submit(h: Harness, case: Case) -> None:
    key = WorkloadId("default/preemptor")
    pod_sets = tuple(
        PodSet(
            name=f"set-{i}",
            count=wanted.pods,
            shape=PodShape(
                namespace="default", requests=amounts(gpus=wanted.gpus, cpus=wanted.cpus)
            ),
        )
        for i, wanted in enumerate(case.wanted)
    )
    pods = sum(wanted.pods for wanted in case.wanted)
    workload = Workload(
        id=key,
        uid="preemptor",
        local_queue=case.queue,
        needs="both" if case.queue else "nodes",
        priority=case.priority,
        pod_priority=case.priority,
        created_at=h.now,
        pod_sets=pod_sets,
        gang=Gang() if pods > 1 else None,
    )
    h.put(workload)
    if case.queue is None:
        for pod_set in pod_sets:
            for i in range(pod_set.count):
                h.put(
                    Pod(
                        id=PodId(f"{key}-{pod_set.name}-{i}"),
                        workload=key,
                        pod_set=pod_set.name,
                        shape=pod_set.shape,
                        priority=case.priority,
                        created_at=h.now,
                    )
                )
