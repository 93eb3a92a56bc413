"""Short ways to write queues and workloads: one flavor `f`, one resource `x`, quotas as "nominal/borrowing/lending"."""

from __future__ import annotations

from typing import Any

from makeway.engine.policy import Policy
from makeway.engine.state import State
from makeway.engine.victims import kueue
from makeway.engine.victims.candidates import Request
from makeway.model.event import Namespace, Upsert
from makeway.model.queue import (
    Cohort,
    CohortName,
    Flavor,
    FlavorName,
    FlavorQuotas,
    LocalQueue,
    PreemptionPolicy,
    Queue,
    QueueName,
    Quota,
    ResourceGroup,
)
from makeway.model.selectors import LabelSelector
from makeway.model.workload import Admission, Assignment, PodSet, PodShape, Workload, WorkloadId

KUEUE = Policy(victims="kueue", quota_only=True)
FAIR = Policy(victims="kueue", quota_only=True, fair_sharing=True)
FX = ("f", "x")


def quota(text: str, resource: str = "x") -> Quota:
    """`6/2/4`: nominal 6, borrow up to 2, lend up to 4; `-` where there is no limit."""
    nominal, borrowing, lending = (*text.split("/"), "-", "-")[:3]
    return Quota(
        resource=resource,
        nominal=int(nominal),
        borrowing_limit=None if borrowing == "-" else int(borrowing),
        lending_limit=None if lending == "-" else int(lending),
    )


def group(**flavors: str) -> ResourceGroup:
    """One resource `x`; flavors in order of preference."""
    return ResourceGroup(
        resources=("x",),
        flavors=tuple(
            FlavorQuotas(flavor=FlavorName(name), quotas=(quota(text),))
            for name, text in flavors.items()
        ),
    )


def queue(
    name: str, quotas: str | dict[str, str] = "0", cohort: str | None = None, **fields: Any
) -> Queue:
    flavors = {"f": quotas} if isinstance(quotas, str) else quotas
    preemption = {
        key: fields.pop(key)
        for key in ("within_queue", "reclaim", "borrow", "borrow_max_priority")
        if key in fields
    }
    return Queue(
        name=QueueName(name),
        cohort=CohortName(cohort) if cohort else None,
        namespace_selector=LabelSelector(),
        resource_groups=(group(**flavors),),
        preemption=PreemptionPolicy(**preemption),
        **fields,
    )


def cohort(name: str, quotas: str | None = None, parent: str | None = None) -> Cohort:
    groups = (group(f=quotas),) if quotas else ()
    return Cohort(
        name=CohortName(name), parent=CohortName(parent) if parent else None, resource_groups=groups
    )


def workload(
    name: str, size: int, priority: int = 0, created: float = 0.0, **fields: Any
) -> Workload:
    """One pod set of one pod that asks for `size`; waits in the local queue that is named like its queue."""
    queue = fields.pop("queue", None)
    pods = fields.pop("pods", 1)
    min_count = fields.pop("min_count", None)
    shape = PodShape(requests=(("x", size),))
    return Workload(
        id=WorkloadId(f"ns/{name}"),
        uid=name,
        local_queue=queue,
        needs="quota",
        priority=priority,
        created_at=created,
        pod_sets=(PodSet(name="main", count=pods, min_count=min_count, shape=shape),),
        **fields,
    )


def running(
    name: str,
    queue: str,
    size: int,
    priority: int = 0,
    reserved: float = 0.0,
    flavor: str = "f",
    **fields: Any,
) -> Workload:
    admission = Admission(
        queue=QueueName(queue),
        assignments=(
            Assignment(
                pod_set="main",
                flavors=(("x", FlavorName(flavor)),),
                usage=(("x", size),),
                count=1,
            ),
        ),
        reserved_at=reserved,
    )
    fields.setdefault("created", reserved)
    return workload(name, size, priority, queue=queue, admission=admission, **fields)


def state(*objects: Queue | Cohort | Workload | LocalQueue | Flavor) -> State:
    """With namespace, flavors and a local queue for each queue, so that workloads find their way in."""
    result = State()
    result.apply(Upsert(obj=Namespace(name="ns")))
    for obj in objects:
        if isinstance(obj, Queue):
            for flavor in (f.flavor for g in obj.resource_groups for f in g.flavors):
                result.apply(Upsert(obj=Flavor(name=flavor)))
            local = LocalQueue(namespace="ns", name=obj.name, queue=obj.name)
            result.apply(Upsert(obj=local))
    for obj in objects:
        result.apply(Upsert(obj=obj))
    return result


def victims(
    state: State, queue: str, size: int, priority: int = 0, policy: Policy = KUEUE, **fields: Any
) -> list[tuple[str, str]]:
    """Whom a newcomer of this size would displace, in the order found."""
    newcomer = workload("newcomer", size, priority, **fields)
    request = Request(
        workload=newcomer,
        queue=queue,
        usage={FX: size},
        need=frozenset({FX}),
        preemption=state.queues[QueueName(queue)].preemption,
        policy=policy,
        now=1000.0,
    )
    return [(v.held.workload.name, v.rule) for v in kueue.choose(state.ledger, request)]
