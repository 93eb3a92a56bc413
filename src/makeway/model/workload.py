"""What a user asked for: workloads made of pod sets, the pods that exist of them, and what they said about saving.

A **workload** is the unit that queues, runs and is evicted. Its **pod sets** are a shape and a count. Pods are known one by
one only once they exist; what was decided for pods to come is the workload's `placement`.
"""

from __future__ import annotations

from typing import Literal, NewType

import msgspec

from makeway.model.node import NodeName
from makeway.model.queue import FlavorName, QueueName
from makeway.model.resources import FrozenAmounts
from makeway.model.selectors import LabelSelector, NodeTerm, PreferredTerm, Toleration

WorkloadId = NewType(
    "WorkloadId", str
)  # "namespace/name"; gangs named together: their sorted names joined by ","
PodId = NewType("PodId", str)  # "namespace/name"


class HostPort(msgspec.Struct, frozen=True, kw_only=True):
    port: int
    protocol: str = "TCP"
    ip: str = "0.0.0.0"


class PodTerm(msgspec.Struct, frozen=True, kw_only=True):
    """Pod affinity or anti-affinity: pods that `selector` picks, counted per value of a node label."""

    topology_key: str
    selector: LabelSelector | None = None  # None matches no pod
    namespaces: tuple[str, ...] = ()  # resolved: both empty in the API means the pod's own
    namespace_selector: LabelSelector | None = None
    weight: int = 0  # 0: required


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A topology spread constraint."""

    topology_key: str
    max_skew: int = 1
    hard: bool = True  # DoNotSchedule
    selector: LabelSelector | None = None
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False


class PodShape(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides where a pod may run. Equal shapes are placed together."""

    requests: FrozenAmounts = ()  # of one pod, without the "pods" slot
    namespace: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    node_name: NodeName | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    required_terms: tuple[NodeTerm, ...] | None = None  # OR-ed; None: no requirement
    preferred_terms: tuple[PreferredTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    volume_terms: tuple[
        tuple[NodeTerm, ...], ...
    ] = ()  # where bound volumes are: one OR-ed list each, all must hold
    late_volume_terms: tuple[
        tuple[NodeTerm, ...], ...
    ] = ()  # where claims that are not bound yet can get their volumes, likewise
    blocked: str = (
        ""  # why no node can take it at all (an unbound claim, a resource claim), as a sentence
    )


class TopologyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Keep the pods of a set (or a whole gang) inside one domain of a level."""

    level: str  # the node label
    required: bool = True


class PodSet(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    count: int
    min_count: int | None = None  # partial admission may go down to this
    shape: PodShape = PodShape()
    topology: TopologyRequest | None = None
    group: str | None = None  # pod sets of one group get the same flavor
    gang: str = ""  # which of the gangs named together it belongs to


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """Whole or not at all: per member gang its minimum. A workload without a Gang is independent pods."""

    # (member gang, or pod set where none is named; minimum). Empty: every pod of every pod set.
    minimums: tuple[tuple[str, int], ...] = ()
    gives_up_surplus: bool = False  # pods above the minimum can be taken one by one


SAVE_MARGIN_S = 5.0  # of notice, on top of the time that a program says it needs to save


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner said, or what was measured, about saving and restarting. Seconds."""

    every_s: float | None = None
    on_term_s: float | None = None
    last_at: float | None = None
    restart_s: float = 60.0
    expected_runtime_s: float | None = None
    patience_s: float = 0.0
    min_runtime_s: float = 0.0


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Quota given to one pod set: a flavor for each resource, and the total amounts."""

    pod_set: str
    flavors: tuple[tuple[str, FlavorName], ...]  # resource -> flavor
    usage: FrozenAmounts  # totals for `count` pods
    count: int


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Quota reserved in a queue."""

    queue: QueueName
    assignments: tuple[Assignment, ...]
    reserved_at: float
    admitted: bool = True  # False while admission checks are open
    admitted_at: float | None = None


class CheckState(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: Literal["Pending", "Ready", "Retry", "Rejected"] = "Pending"
    message: str = ""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """`count` pods of a pod set belong on this node, whether they exist yet or not."""

    pod_set: str
    node: NodeName
    count: int


Needs = Literal["quota", "nodes", "both"]
Victims = Literal["workload", "pods"]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    id: WorkloadId
    uid: str = ""
    owner_uid: str = ""  # of the job it stands for
    top_owner: str = ""  # who stands above that job, if anybody does; history follows it
    owner: str = ""  # "Job/team-a/train", for people
    local_queue: str | None = None
    needs: Needs = "nodes"
    priority: int = 0  # as it counts, boost included
    boost: int = 0  # the part of it that a controller added
    pod_priority: int | None = None  # of its pods, where that is another one than its own
    preempts: bool = True  # False: preemptionPolicy Never
    preemption_gated: bool = False  # may not preempt until another controller opens its gate
    created_at: float = 0.0
    queued_at: float | None = None  # of the last return to the queue; None: since its creation
    pod_sets: tuple[PodSet, ...] = ()
    gang: Gang | None = None
    checkpoint: Checkpoint = Checkpoint()
    protected: str = ""  # an exemption label, as a sentence; "" when there is none
    foreign: bool = False  # another scheduler's: occupies room, is not ours to place
    # Its job goes on with so many pods: those above can be taken for good, and their quota with them. None: it falls whole.
    lowers_to: int | None = None
    active: bool = True
    finished: bool = False
    held_back: str = (
        ""  # why it may not be queued yet (an admission gate, missing pods), as a sentence
    )
    invalid: str = ""  # why its pods would be refused by the API, as a sentence
    admission: Admission | None = None
    placement: tuple[Placed, ...] = ()
    reclaimable: tuple[tuple[str, int], ...] = ()  # pods per set that need no quota any more
    checks: tuple[CheckState, ...] = ()
    evicted_at: float | None = None  # told to stop, has not given back its quota yet
    evicted_reason: str = ""
    last_eviction_at: float | None = None  # of the newest Evicted condition, also after it returned
    last_eviction_reason: str = ""
    last_preemption_at: float | None = None
    last_preemption_reason: str = ""
    requeue_at: float | None = None
    requeue_blocked: bool = False  # Requeued=False: waits for something other than room

    @property
    def rank(self) -> int:
        """The priority that counts where no queue is between two workloads."""
        return self.priority if self.pod_priority is None else self.pod_priority

    @property
    def namespace(self) -> str:
        return self.id.split("/", 1)[0]

    @property
    def door(self) -> str:
        """Its local queue, as `LocalQueue.key` names it."""
        return f"{self.namespace}/{self.local_queue}"

    @property
    def name(self) -> str:
        return self.id.split("/", 1)[-1]


PodPhase = Literal["Pending", "Running", "Succeeded", "Failed"]


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    id: PodId
    uid: str = ""
    workload: WorkloadId
    pod_set: str = "main"
    shape: PodShape = PodShape()
    priority: int = 0
    phase: PodPhase = "Pending"
    node: NodeName | None = None
    nominated: NodeName | None = None
    gated: bool = False
    created_at: float = 0.0
    started_at: float | None = None
    gone_by: float | None = None  # terminating: when its grace ends
    disrupted: bool = False  # DisruptionTarget by a scheduler
    grace_s: float = 30.0
    checkpoint: Checkpoint | None = None  # what this pod says, where it differs from its workload
    owned: bool = False  # somebody recreates it
    warmup_s: float | None = None  # measured: from its start until it was ready to work


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A PodDisruptionBudget."""

    id: str
    namespace: str
    selector: LabelSelector | None
    allowed: int
    disrupted: tuple[str, ...] = ()  # pods already counted
