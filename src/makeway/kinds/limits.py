"""LimitRanges and runtime classes: what a pod will ask for once its namespace and its runtime have had their say.

A Workload is counted by what its pods will really request, so the defaults that the API will write into them are applied here
first; and pods that the API would refuse must not be admitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from makeway.kinds.metadata import Json, Object, spec
from makeway.model.resources import amount_of

Quantities = dict[str, Any]


class Limits(msgspec.Struct, kw_only=True):
    """All LimitRanges of a namespace in one: the smallest maximum, the largest minimum, the first default."""

    default: Quantities = {}
    default_request: Quantities = {}
    most: Quantities = {}
    least: Quantities = {}


def summarize(ranges: Iterable[Json]) -> Limits:
    found = Limits()
    for item in (item for obj in ranges for item in spec(obj).get("limits") or []):
        if item.get("type") != "Container":
            continue
        most, least = item.get("max") or {}, item.get("min") or {}
        # The API fills these in when a LimitRange is written: no default means the maximum.
        default = {**most, **(item.get("default") or {})}
        request = {**default, **(item.get("defaultRequest") or {})}
        found.default = {**default, **found.default}
        found.default_request = {**request, **found.default_request}
        found.most = _closest(found.most, most, smaller=True)
        found.least = _closest(found.least, least, smaller=False)
    return found


def _closest(known: Quantities, more: Mapping[str, Any], *, smaller: bool) -> Quantities:
    result = dict(known)
    for resource, quantity in more.items():
        if resource in result:
            pick = min if smaller else max
            result[resource] = pick(
                result[resource], quantity, key=lambda q: amount_of(resource, q)
            )
        else:
            result[resource] = quantity
    return result


def limited(pod_spec: Json, limits: Limits, runtime: Json | None = None) -> Object:
    """The pod spec with the defaults of its namespace, and the overhead of its runtime class."""
    result = dict(pod_spec)
    for field in ("initContainers", "containers"):
        if result.get(field):
            result[field] = [_limited_container(c, limits) for c in result[field]]
    overhead = ((runtime or {}).get("overhead") or {}).get("podFixed")
    if overhead and not result.get("overhead"):
        result["overhead"] = overhead
    return result


def _limited_container(container: Json, limits: Limits) -> Object:
    resources = container.get("resources") or {}
    bounds = {**limits.default, **(resources.get("limits") or {})}
    # What the container itself limits is also what it requests, before any default is.
    own = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    requests = {**limits.default_request, **own}
    made: Object = {}
    if bounds:
        made["limits"] = bounds
    if requests:
        made["requests"] = requests
    return {**container, "resources": {**resources, **made}}


def refusal(workload: Json, limits: Limits) -> str:
    """Of the first pod set whose pods the API would refuse."""
    for index, pod_set in enumerate(spec(workload).get("podSets") or []):
        path = f"spec.podSets[{index}].template.spec"
        said = trouble(pod_set["template"].get("spec") or {}, limits, path)
        if said:
            return said
    return ""


def trouble(pod_spec: Json, limits: Limits, path: str) -> str:
    """Why the API would refuse such a pod, in Kueue's words; empty when it would not."""
    checks = (
        ("resources validation failed", "requests must not exceed its limits", _over_limits),
        (
            "resources didn't satisfy LimitRange constraints",
            "requests must not be above the limitRange max",
            lambda r: _beyond(r, limits.most, above=True),
        ),
        (
            "resources didn't satisfy LimitRange constraints",
            "requests must not be below the limitRange min",
            lambda r: _beyond(r, limits.least, above=False),
        ),
    )
    for head, rule, find in checks:
        for field in ("initContainers", "containers"):
            for index, container in enumerate(pod_spec.get(field) or []):
                names = find(container.get("resources") or {})
                if names:
                    where = f"{path}.{field}[{index}]"
                    return f"{head}: {where}: Invalid value: {json.dumps(names)}: {rule}"
    return ""


def _over_limits(resources: Json) -> list[str]:
    bounds = resources.get("limits") or {}
    asked = resources.get("requests") or {}
    return sorted(
        r for r in asked if r in bounds and amount_of(r, asked[r]) > amount_of(r, bounds[r])
    )


def _beyond(resources: Json, bounds: Quantities, *, above: bool) -> list[str]:
    asked = resources.get("requests") or {}
    known = [r for r in asked if r in bounds]
    if above:
        return sorted(r for r in known if amount_of(r, asked[r]) > amount_of(r, bounds[r]))
    return sorted(r for r in known if amount_of(r, asked[r]) < amount_of(r, bounds[r]))
