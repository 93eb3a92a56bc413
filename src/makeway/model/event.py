"""What can happen to the engine's state: objects that appear, change or vanish."""

from __future__ import annotations

import msgspec

from makeway.model.decision import Hold
from makeway.model.node import Node, NodeName, Topology
from makeway.model.queue import (
    AdmissionCheck,
    Cohort,
    CohortName,
    Flavor,
    FlavorName,
    LocalQueue,
    Queue,
    QueueName,
)
from makeway.model.workload import Budget, Pod, PodId, Workload, WorkloadId


class Namespace(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    labels: dict[str, str] = {}


Object = (
    Workload
    | Pod
    | Node
    | Queue
    | Cohort
    | LocalQueue
    | Flavor
    | Topology
    | AdmissionCheck
    | Budget
    | Namespace
    | Hold
)


class Upsert(msgspec.Struct, frozen=True, kw_only=True):
    """The object is now so."""

    obj: Object


class Remove(msgspec.Struct, frozen=True, kw_only=True):
    """The object of this type and key is gone; key as in the type's own id or name, `namespace/name` for LocalQueue."""

    type: type[Object]
    key: str


Event = Upsert | Remove

__all__ = [
    "AdmissionCheck",
    "Budget",
    "Cohort",
    "CohortName",
    "Event",
    "Flavor",
    "FlavorName",
    "Hold",
    "LocalQueue",
    "Namespace",
    "Node",
    "NodeName",
    "Object",
    "Pod",
    "PodId",
    "Queue",
    "QueueName",
    "Remove",
    "Topology",
    "Upsert",
    "Workload",
    "WorkloadId",
]
