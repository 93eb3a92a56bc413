"""v1 Node and PodDisruptionBudget: what exists, as the engine sees it."""

from __future__ import annotations

from typing import Final

from makeway.kinds import conditions
from makeway.kinds.labels import read_selector
from makeway.kinds.metadata import (
    Json,
    annotations_of,
    key,
    labels,
    name,
    namespace,
    spec,
    status,
)
from makeway.model.node import Node, NodeName
from makeway.model.resources import amounts_of, frozen
from makeway.model.selectors import Taint
from makeway.model.workload import Budget

FAKE: Final = ("kwok.x-k8s.io/node", "fake")


def node_from(node: Json) -> Node:
    said = status(node)
    return Node(
        name=NodeName(name(node)),
        labels=labels(node),
        taints=tuple(
            Taint(key=t["key"], value=t.get("value") or "", effect=t.get("effect") or "NoSchedule")
            for t in spec(node).get("taints") or []
        ),
        unschedulable=bool(spec(node).get("unschedulable")),
        # A node that never said so is taken at its word: kube-scheduler, too, looks at taints only.
        ready=not conditions.is_false(node, "Ready"),
        allocatable=frozen(amounts_of(said.get("allocatable") or said.get("capacity"))),
    )


def is_fake(node: Json) -> bool:
    """Without a machine behind it, by KWOK's annotation: it pretends."""
    return annotations_of(node).get(FAKE[0]) == FAKE[1]


def budget_from(obj: Json) -> Budget:
    said = status(obj)
    return Budget(
        id=key(obj),
        namespace=namespace(obj),
        selector=read_selector(spec(obj).get("selector")),
        allowed=int(said.get("disruptionsAllowed") or 0),
        disrupted=tuple(sorted(said.get("disruptedPods") or {})),
    )
