"""All the engine may ask for: Admit, Evict, Hold, Wait, gathered in a Plan."""

from __future__ import annotations

import msgspec

from makeway.model.node import NodeName
from makeway.model.queue import QueueName
from makeway.model.reason import Alternative, Reason
from makeway.model.workload import Admission, Placed, PodId, WorkloadId


class Bind(msgspec.Struct, frozen=True, kw_only=True):
    pod: PodId
    node: NodeName


class Considered(msgspec.Struct, frozen=True, kw_only=True):
    """A flavor that was looked at for a pod set, for the QuotaReserved event."""

    pod_set: str
    flavor: str
    mode: str
    borrow: int = 0
    reasons: tuple[str, ...] = ()


class Admit(msgspec.Struct, frozen=True, kw_only=True, tag="admit"):
    """Quota, nodes or both: `admission` is None when quota is not asked for or was reserved before."""

    workload: WorkloadId
    admission: Admission | None = None
    considered: tuple[Considered, ...] = ()
    placement: tuple[Placed, ...] = ()  # for pods that do not exist yet
    binds: tuple[Bind, ...] = ()  # for pods that do
    borrowing: int = 0


class Evict(msgspec.Struct, frozen=True, kw_only=True, tag="evict"):
    """`pods` empty: the whole workload."""

    workload: WorkloadId
    pods: tuple[PodId, ...] = ()
    keeps: int | None = None  # `pods` are not replaced: its job is lowered to so many
    preemptor: WorkloadId
    reason: Reason
    loss: float = 0.0  # GPU-seconds
    notice_s: float = 0.0
    already: bool = False  # told before; counted, not told again


# Rules of holds that no victim falls for.
PATIENCE = "patience"  # others will end by themselves
RESERVATION = "reservation"  # it has waited long, and keeps what falls free


class Lowered(msgspec.Struct, frozen=True, kw_only=True):
    """A job that gives up some of its pods for good. Their quota is free when its admission counts what it keeps."""

    workload: WorkloadId
    gives: int
    keeps: int


class Hold(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
    """Room kept for `workload` while its victims leave: nominated nodes, and quota in its queue."""

    workload: WorkloadId
    queue: QueueName | None = None
    admission: Admission | None = None  # what it will get
    placement: tuple[Placed, ...] = ()
    nominations: tuple[Bind, ...] = ()
    victims: tuple[WorkloadId, ...] = ()
    lowered: tuple[Lowered, ...] = ()  # those of them that go on with fewer pods
    until: float = 0.0
    loss: float = 0.0
    bound: float | None = None  # proven lower bound of the loss; equal to loss: optimal
    steps: int = 0
    alternatives: tuple[Alternative, ...] = ()  # what else was looked at, the next best first
    rule: str = ""


class Wait(msgspec.Struct, frozen=True, kw_only=True, tag="wait"):
    workload: WorkloadId
    reason: Reason
    parked: bool = False


Decision = Admit | Evict | Hold | Wait


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    decisions: tuple[Decision, ...] = ()
    rounds: int = 0
    skipped_preemptions: dict[str, int] = {}  # by queue, as Kueue's metric counts them
    ended_holds: tuple[
        WorkloadId, ...
    ] = ()  # whose victims did not leave in time, or whose room came otherwise
    lost_holds: tuple[
        tuple[WorkloadId, WorkloadId], ...
    ] = ()  # those of them whose room somebody of higher priority took, and who
    wake_at: float | None = None  # look again then, even if nothing happens

    @property
    def admits(self) -> tuple[Admit, ...]:
        return tuple(d for d in self.decisions if isinstance(d, Admit))

    @property
    def evicts(self) -> tuple[Evict, ...]:
        return tuple(d for d in self.decisions if isinstance(d, Evict))

    @property
    def holds(self) -> tuple[Hold, ...]:
        return tuple(d for d in self.decisions if isinstance(d, Hold))

    @property
    def waits(self) -> tuple[Wait, ...]:
        return tuple(d for d in self.decisions if isinstance(d, Wait))
