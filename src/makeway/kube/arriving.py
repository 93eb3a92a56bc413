"""What is looked at on its way into a cluster, whoever looks: policies of the API server or our webhook."""

from __future__ import annotations

from typing import Any, Final

from makeway.kinds.frameworks import JOB_KINDS

Object = dict[str, Any]
Resources = tuple[tuple[str, str], ...]  # group and plural of each

API: Final = "admissionregistration.k8s.io/v1"
PODS: Final[Resources] = (("", "pods"),)
JOBS: Final[Resources] = (("batch", "jobs"),)
ALL_JOBS: Final[Resources] = tuple((kind.group, kind.plural) for kind in JOB_KINDS.values())
STATEFUL_SETS: Final[Resources] = (("apps", "statefulsets"),)
DEPLOYMENTS: Final[Resources] = (("apps", "deployments"),)


def resource_rules(resources: Resources, operations: tuple[str, ...] = ("CREATE",)) -> list[Object]:
    """One rule for each group."""
    groups: dict[str, list[str]] = {}
    for group, plural in resources:
        groups.setdefault(group, []).append(plural)
    return [
        {
            "apiGroups": [group],
            "apiVersions": ["*"],
            "operations": list(operations),
            "resources": plurals,
        }
        for group, plurals in groups.items()
    ]


def unmanaged(namespace: str) -> Object:
    """All namespaces but those of the cluster itself and ours."""
    excluded = ["kube-system", "kueue-system", namespace]
    key = "kubernetes.io/metadata.name"
    return {"matchExpressions": [{"key": key, "operator": "NotIn", "values": excluded}]}
