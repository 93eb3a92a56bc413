"""Which labels a selector picks: label selectors, node affinity terms, taints and tolerations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Labels = Mapping[str, str]
Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return _compare(value, self.operator, self.values)


def _compare(value: str | None, operator: str, bounds: tuple[str, ...]) -> bool:
    try:
        left, right = int(value or ""), int(bounds[0])
    except (ValueError, IndexError):
        return False
    return left > right if operator == "Gt" else left < right


class LabelSelector(msgspec.Struct, frozen=True, kw_only=True):
    """All requirements must hold; none at all matches everything. "Matches nothing" is None where it is allowed."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)


class NodeTerm(msgspec.Struct, frozen=True, kw_only=True):
    """One OR-ed term of a node affinity; an empty term matches no node."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()  # only metadata.name

    def matches(self, node_name: str, labels: Labels) -> bool:
        if not self.labels and not self.fields:
            return False
        return all(r.matches(labels) for r in self.labels) and all(
            r.matches({"metadata.name": node_name}) for r in self.fields
        )


class PreferredTerm(msgspec.Struct, frozen=True, kw_only=True):
    weight: int
    term: NodeTerm


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Toleration(msgspec.Struct, frozen=True, kw_only=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


HARD_EFFECTS = ("NoSchedule", "NoExecute")


def untolerated(
    taints: tuple[Taint, ...],
    tolerations: tuple[Toleration, ...],
    effects: tuple[str, ...] = HARD_EFFECTS,
) -> Taint | None:
    """The first taint with one of `effects` that nothing tolerates."""
    for taint in taints:
        if taint.effect in effects and not any(t.tolerates(taint) for t in tolerations):
            return taint
    return None
