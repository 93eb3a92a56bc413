"""Pod specs, as they stand in pods and in templates: what a pod asks for, and all that decides where it may run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from makeway.kinds.fields import Json, amount
from makeway.kinds.labels import (
    read_node_terms,
    read_pairs,
    read_preferred_terms,
    read_selector,
    read_tolerations,
)
from makeway.model.node import NodeName
from makeway.model.resources import Amounts, add, frozen, largest, total
from makeway.model.workload import HostPort, PodShape, PodTerm, Spread


def read_shape(
    obj: Json, spec: Json, *, path: str, namespace: str, labels: dict[str, str] | None = None
) -> PodShape:
    """`obj` and `path` say where `spec` was found, for error messages."""
    affinity = spec.get("affinity") or {}
    node = affinity.get("nodeAffinity") or {}
    return PodShape(
        requests=frozen(requests_of(obj, spec, path)),
        namespace=namespace,
        labels=read_pairs(labels),
        node_name=NodeName(spec["nodeName"]) if spec.get("nodeName") else None,
        node_selector=read_pairs(spec.get("nodeSelector")),
        required_terms=read_node_terms(node.get("requiredDuringSchedulingIgnoredDuringExecution")),
        preferred_terms=read_preferred_terms(
            node.get("preferredDuringSchedulingIgnoredDuringExecution")
        ),
        tolerations=read_tolerations(spec.get("tolerations")),
        host_ports=_host_ports(spec),
        affinity=_pod_terms(affinity.get("podAffinity"), namespace, labels),
        anti_affinity=_pod_terms(affinity.get("podAntiAffinity"), namespace, labels),
        spread=_spread(spec, labels),
        blocked="it uses resource claims, which are not supported yet"
        if spec.get("resourceClaims")
        else "",
    )


# -- requests --------------------------------------------------------------------------------------------------------


def requests_of(obj: Json, spec: Json, path: str = "spec") -> dict[str, int]:
    """The pod as a whole: its containers together, or the hungriest moment of starting up, plus overhead."""
    containers = [
        _container_requests(obj, container, f"{path}.containers[{index}]")
        for index, container in enumerate(spec.get("containers") or ())
    ]
    sidecars: dict[str, int] = {}
    peaks: list[Amounts] = []
    for index, container in enumerate(spec.get("initContainers") or ()):
        requests = _container_requests(obj, container, f"{path}.initContainers[{index}]")
        if container.get("restartPolicy") == "Always":
            # A sidecar runs on beside everything that starts after it.
            sidecars = total([sidecars, requests])
            peaks.append(sidecars)
        else:
            peaks.append(total([requests, sidecars]))
    result = largest([total([*containers, sidecars]), *peaks])
    result |= _pod_level(obj, spec, path)
    overhead = _amounts(obj, spec.get("overhead"), f"{path}.overhead")
    return {
        name: add(result.get(name, 0), overhead.get(name, 0)) for name in {**result, **overhead}
    }


def requests_above_limits(obj: Json, spec: Json, path: str) -> list[str]:
    """One sentence for each container that asks for more than it may use."""
    problems = []
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            where = f"{path}.{field}[{index}]"
            resources = container.get("resources") or {}
            limits = _amounts(obj, resources.get("limits"), f"{where}.resources.limits")
            requests = _amounts(obj, resources.get("requests"), f"{where}.resources.requests")
            above = sorted(name for name, most in limits.items() if requests.get(name, 0) > most)
            if above:
                listed = ", ".join(f'"{name}"' for name in above)
                problems.append(
                    f"{where}: Invalid value: [{listed}]: requests must not exceed its limits"
                )
    return problems


def _container_requests(obj: Json, container: Json, path: str) -> dict[str, int]:
    return _requests_with_limits(obj, container.get("resources") or {}, f"{path}.resources")


def _requests_with_limits(obj: Json, resources: Json, path: str) -> dict[str, int]:
    """A limit without a request is the request."""
    limits = _amounts(obj, resources.get("limits"), f"{path}.limits")
    return limits | _amounts(obj, resources.get("requests"), f"{path}.requests")


def _pod_level(obj: Json, spec: Json, path: str) -> dict[str, int]:
    """Requests of the pod itself replace the sum of its containers, for the resources that may stand there."""
    requests = _requests_with_limits(obj, spec.get("resources") or {}, f"{path}.resources")
    return {
        name: value
        for name, value in requests.items()
        if name in ("cpu", "memory") or name.startswith("hugepages-")
    }


def _amounts(obj: Json, quantities: Json | None, path: str) -> dict[str, int]:
    return {
        name: amount(obj, f"{path}[{name}]", name, quantity)
        for name, quantity in (quantities or {}).items()
    }


# -- constraints -----------------------------------------------------------------------------------------------------


def _host_ports(spec: Json) -> tuple[HostPort, ...]:
    """Ports of app containers and sidecars; those of ordinary init containers are gone before they could clash."""
    running = list(spec.get("containers") or ())
    running += [c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
    on_host = bool(spec.get("hostNetwork"))
    found = []
    for container in running:
        for port in container.get("ports") or ():
            number = port.get("hostPort") or (port.get("containerPort") if on_host else 0)
            if number:
                found.append(
                    HostPort(
                        port=int(number),
                        protocol=str(port.get("protocol") or "TCP"),
                        ip=str(port.get("hostIP") or "0.0.0.0"),
                    )
                )
    return tuple(found)


def _pod_terms(
    block: Json | None, namespace: str, labels: dict[str, str] | None
) -> tuple[PodTerm, ...]:
    block = block or {}
    required = block.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    preferred = block.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return (
        *(_pod_term(term, namespace, labels, 0) for term in required),
        *(
            _pod_term(item.get("podAffinityTerm") or {}, namespace, labels, int(item["weight"]))
            for item in preferred
        ),
    )


def _pod_term(term: Json, namespace: str, labels: dict[str, str] | None, weight: int) -> PodTerm:
    namespaces = tuple(sorted(str(name) for name in term.get("namespaces") or ()))
    by_selector = term.get("namespaceSelector")
    if not namespaces and by_selector is None:
        namespaces = (namespace,)
    return PodTerm(
        topology_key=str(term.get("topologyKey") or ""),
        selector=read_selector(_with_own_values(term, labels)),
        namespaces=namespaces,
        namespace_selector=read_selector(by_selector),
        weight=weight,
    )


def _spread(spec: Json, labels: dict[str, str] | None) -> tuple[Spread, ...]:
    return tuple(
        Spread(
            topology_key=str(item.get("topologyKey") or ""),
            max_skew=int(item.get("maxSkew") or 1),
            hard=item.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule",
            selector=read_selector(_with_own_values(item, labels)),
            min_domains=int(item.get("minDomains") or 1),
            honor_affinity=item.get("nodeAffinityPolicy", "Honor") == "Honor",
            honor_taints=item.get("nodeTaintsPolicy", "Ignore") == "Honor",
        )
        for item in spec.get("topologySpreadConstraints") or ()
    )


def _with_own_values(item: Json, labels: dict[str, str] | None) -> Json | None:
    """`matchLabelKeys` narrow the selector to pods that share this pod's values, `mismatchLabelKeys` to those that do not."""
    selector = item.get("labelSelector")
    same = [key for key in item.get("matchLabelKeys") or () if key in (labels or {})]
    different = [key for key in item.get("mismatchLabelKeys") or () if key in (labels or {})]
    if selector is None or not (same or different):
        return selector
    expressions: list[Any] = list(selector.get("matchExpressions") or ())
    expressions += _own_value(same, "In", labels or {})
    expressions += _own_value(different, "NotIn", labels or {})
    return {**selector, "matchExpressions": expressions}


def _own_value(keys: Iterable[str], operator: str, labels: dict[str, str]) -> list[Json]:
    return [{"key": key, "operator": operator, "values": [labels[key]]} for key in keys]
