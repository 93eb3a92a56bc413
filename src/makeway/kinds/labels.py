"""LabelSelector, node selector terms, taints and tolerations: the small shapes that many kinds share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from makeway.kinds.fields import Json
from makeway.model.selectors import (
    LabelSelector,
    NodeTerm,
    PreferredTerm,
    Requirement,
    Taint,
    Toleration,
)


def read_selector(obj: Json | None) -> LabelSelector | None:
    """Absent matches nothing (None), `{}` matches everything."""
    if obj is None:
        return None
    exact = [
        Requirement(key=key, operator="In", values=(str(value),))
        for key, value in sorted((obj.get("matchLabels") or {}).items())
    ]
    return LabelSelector(requirements=(*exact, *read_requirements(obj.get("matchExpressions"))))


def read_requirements(items: Iterable[Json] | None) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(
            key=str(item.get("key", "")),
            operator=item.get("operator", "In"),
            values=tuple(str(value) for value in item.get("values") or ()),
        )
        for item in items or ()
    )


def read_node_term(obj: Json) -> NodeTerm:
    return NodeTerm(
        labels=read_requirements(obj.get("matchExpressions")),
        fields=read_requirements(obj.get("matchFields")),
    )


def read_node_terms(selector: Json | None) -> tuple[NodeTerm, ...] | None:
    """A NodeSelector: OR-ed terms. None: no requirement at all."""
    if selector is None:
        return None
    return tuple(read_node_term(term) for term in selector.get("nodeSelectorTerms") or ())


def read_preferred_terms(items: Iterable[Json] | None) -> tuple[PreferredTerm, ...]:
    return tuple(
        PreferredTerm(
            weight=int(item.get("weight", 0)), term=read_node_term(item.get("preference") or {})
        )
        for item in items or ()
    )


def read_taints(items: Iterable[Json] | None) -> tuple[Taint, ...]:
    return tuple(
        Taint(
            key=str(item.get("key", "")),
            value=str(item.get("value") or ""),
            effect=str(item.get("effect", "NoSchedule")),
        )
        for item in items or ()
    )


def read_tolerations(items: Iterable[Json] | None) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(
            key=str(item.get("key") or ""),
            operator=str(item.get("operator") or "Equal"),
            value=str(item.get("value") or ""),
            effect=str(item.get("effect") or ""),
        )
        for item in items or ()
    )


def read_pairs(mapping: dict[str, Any] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, str(value)) for key, value in (mapping or {}).items()))
