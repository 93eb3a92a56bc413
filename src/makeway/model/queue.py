"""What a team owns, may borrow and must lend: queues, cohorts, flavors and quotas, in Kueue's meaning."""

from __future__ import annotations

from typing import Literal, NewType

import msgspec

from makeway.model.selectors import LabelSelector, Taint, Toleration

QueueName = NewType("QueueName", str)  # a ClusterQueue
CohortName = NewType("CohortName", str)
FlavorName = NewType("FlavorName", str)

WithinQueue = Literal["", "Never", "LowerPriority", "LowerOrNewerEqualPriority"]
Reclaim = Literal["", "Never", "LowerPriority", "Any"]
Stop = Literal["None", "Hold", "HoldAndDrain"]


class Flavor(msgspec.Struct, frozen=True, kw_only=True):
    name: FlavorName
    node_labels: dict[str, str] = {}
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology: str | None = None
    elastic: bool = False  # nodes come on demand: admission does not wait for them


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """Of one resource in one flavor. No borrowing limit: no limit; no lending limit: all may be lent."""

    resource: str
    nominal: int
    borrowing_limit: int | None = None
    lending_limit: int | None = None


class FlavorQuotas(msgspec.Struct, frozen=True, kw_only=True):
    flavor: FlavorName
    quotas: tuple[Quota, ...]


class ResourceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that get one flavor together; flavors in order of preference."""

    resources: tuple[str, ...]
    flavors: tuple[FlavorQuotas, ...]


class PreemptionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    # "" is an unset enum inside a present block: no candidates, like Never, but "not Never" where that is asked.
    within_queue: WithinQueue = "Never"
    reclaim: Reclaim = "Never"
    borrow: Literal["", "Never", "LowerPriority"] = "Never"
    borrow_max_priority: int | None = None


class Fungibility(msgspec.Struct, frozen=True, kw_only=True):
    when_can_borrow: Literal["MayStopSearch", "TryNextFlavor"] = "MayStopSearch"
    when_can_preempt: Literal["MayStopSearch", "TryNextFlavor"] = "TryNextFlavor"
    preference: Literal["", "BorrowingOverPreemption", "PreemptionOverBorrowing"] = ""


class QueueCheck(msgspec.Struct, frozen=True, kw_only=True):
    """An admission check this queue asks for; no flavors listed: for all of them."""

    name: str
    on_flavors: tuple[FlavorName, ...] = ()


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A ClusterQueue."""

    name: QueueName
    cohort: CohortName | None = None
    strategy: Literal["StrictFIFO", "BestEffortFIFO"] = "BestEffortFIFO"
    namespace_selector: LabelSelector | None = None  # None matches no namespace
    resource_groups: tuple[ResourceGroup, ...] = ()
    preemption: PreemptionPolicy = PreemptionPolicy()
    fungibility: Fungibility = Fungibility()
    checks: tuple[QueueCheck, ...] = ()
    stop: Stop = "None"
    weight: float = 1.0
    usage_based_fair_sharing: bool = False
    terminating: bool = False
    # What an admin grants here; see engine/protection.py.
    max_protection_s: float | None = None
    reserve_after_s: float | None = None
    preemptions_per_day: int | None = None  # of each workload; None: as the configuration says


class Cohort(msgspec.Struct, frozen=True, kw_only=True):
    name: CohortName
    parent: CohortName | None = None
    resource_groups: tuple[ResourceGroup, ...] = ()
    weight: float = 1.0


class LocalQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace's door to a queue."""

    namespace: str
    name: str
    queue: QueueName
    stop: Stop = "None"
    weight: float = 1.0
    terminating: bool = False
    # What its workloads have used, as of a moment: (resource, cores or bytes or devices). None: nobody has measured yet.
    consumed: tuple[tuple[str, float], ...] = ()
    sampled_at: float | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class AdmissionCheck(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    controller: str = ""
    active: bool = True
