"""All that `makeway install` puts into a cluster, as objects: pure data, also written to `deploy/` as a kustomize base.

The ClusterRole is the whole list of what makeway may do. Reading follows from the kinds that the adapter watches;
writing is listed by hand, one line per thing that it does.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from makeway import __version__
from makeway.certificates import Pems
from makeway.kinds.crds import custom_resource_definitions
from makeway.kinds.frameworks import JOB_KINDS
from makeway.kube import webhook
from makeway.kube.neighbours import KUEUE_LEASE
from makeway.kube.policies import policies, validation
from makeway.kube.resources import KUEUE, MAKEWAY, RESOURCES

Object = dict[str, Any]

NAME: Final = "makeway"
NAMESPACE: Final = "makeway-system"
PORT: Final = 8080
LEASE: Final = "makeway"
WEBHOOK_PORT: Final = 9443
WEBHOOK_SECRET: Final = "makeway-webhook"
WEBHOOK_FOLDER: Final = "/etc/makeway-webhook"
PART_OF: Final = {"app.kubernetes.io/part-of": "makeway"}
SELECTOR: Final = {"app.kubernetes.io/name": "makeway"}
RBAC: Final = "rbac.authorization.k8s.io"

# What is written: group, resources, verbs.
WRITES: Final = (
    ("", ("pods",), ("patch", "delete")),  # gates, finalizers; whoever has to go
    ("", ("pods/status",), ("patch",)),  # why it waits, where it will run
    ("", ("pods/binding",), ("create",)),
    ("", ("persistentvolumeclaims",), ("patch",)),  # the chosen node of a volume that binds late
    ("", ("persistentvolumes",), ("patch",)),  # whose claim it is, where it is there already
    ("batch", ("jobs",), ("patch",)),  # suspend and resume
    (KUEUE, ("workloads",), ("create", "patch", "delete")),
    (
        KUEUE,
        ("clusterqueues", "resourceflavors", "admissionchecks", "topologies"),
        ("patch",),  # their finalizer
    ),
    (
        KUEUE,
        ("workloads/status", "clusterqueues/status", "localqueues/status", "cohorts/status"),
        ("patch",),
    ),
    ("scheduling.sigs.k8s.io", ("podgroups", "podgroups/status"), ("patch",)),
    ("scheduling.x-k8s.io", ("podgroups", "podgroups/status"), ("patch",)),
    ("scheduling.k8s.io", ("podgroups/status",), ("patch",)),
    (MAKEWAY, ("preemptions",), ("create", "delete")),
    (MAKEWAY, ("preemptions/status",), ("patch",)),
    ("events.k8s.io", ("events",), ("create", "patch")),
    ("authentication.k8s.io", ("tokenreviews",), ("create",)),  # which pod says that it saved
    # Models, where no KubeAI is there to make pods of them.
    ("apiextensions.k8s.io", ("customresourcedefinitions",), ("get",)),
    ("kubeai.org", ("models",), ("get", "list", "watch", "patch")),
    ("kubeai.org", ("models/status",), ("patch",)),
    ("", ("pods", "events"), ("create",)),
    ("", ("events",), ("patch",)),
)


DEFAULT_IMAGE: Final = f"makeway:{__version__}"
DEFAULT_REPLICAS: Final = 2
CONFIG_FILE: Final = "config.yaml"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is not said is as it was when makeway is there already, and the default when it is not."""

    namespace: str = NAMESPACE
    image: str = ""
    replicas: int | None = None
    config: str = ""  # text of the configuration file
    webhook: Pems | None = None  # for API servers without admission policies


def manifests(options: Options) -> list[Object]:
    """Everything, in the order in which it can be applied."""
    return [*custom_resource_definitions(), *cluster_objects(options)]


def cluster_objects(options: Options) -> list[Object]:
    """All but the definitions."""
    place = options.namespace
    objects = [
        _object("v1", "Namespace", place),
        _object("v1", "ServiceAccount", NAME, place),
        cluster_role(),
        _binding("ClusterRoleBinding", "ClusterRole", place),
        lease_role(place),
        _binding("RoleBinding", "Role", place),
        _priority_class(),
        _config_map(options),
        *(_webhook(options.webhook, place) if options.webhook else policies(place)),
        *validation(place),
        _service(options),
        _deployment(options),
    ]
    for one in objects:
        one["metadata"].setdefault("labels", {}).update(PART_OF)
    return objects


def webhook_names(namespace: str) -> list[str]:
    """What the API server calls the Service by."""
    return [f"{NAME}.{namespace}.svc", f"{NAME}.{namespace}.svc.cluster.local"]


def _webhook(pems: Pems, namespace: str) -> list[Object]:
    service = {"name": NAME, "namespace": namespace, "port": 443, "path": webhook.PATH}
    return [
        webhook.secret(pems, namespace, WEBHOOK_SECRET),
        webhook.configuration(pems.authority, {"service": service}, namespace),
    ]


def _object(api: str, kind: str, name: str, namespace: str = "", **more: Any) -> Object:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **more}


# ---- rights ----------------------------------------------------------------------------------------


def cluster_role() -> Object:
    # Whether Kueue runs beside it: that one lease and no other.
    kueue = _rule("coordination.k8s.io", ["leases"], ("get",)) | {"resourceNames": [KUEUE_LEASE]}
    return _object(f"{RBAC}/v1", "ClusterRole", NAME, rules=[*_reads(), *_writes(), kueue])


def _reads() -> list[Object]:
    by_group: dict[str, list[str]] = {}
    for resource in RESOURCES.values():
        plurals = by_group.setdefault(resource.group, [])
        if resource.plural not in plurals:
            plurals.append(resource.plural)
    return [
        _rule(group, sorted(plurals), ("get", "list", "watch"))
        for group, plurals in by_group.items()
    ]


def _writes() -> list[Object]:
    listed = [_rule(group, list(plurals), verbs) for group, plurals, verbs in WRITES]
    # Every kind of job is suspended and resumed; batch Jobs are in the list above.
    jobs: dict[str, list[str]] = {}
    for kind in JOB_KINDS:
        if RESOURCES[kind].group != "batch":
            jobs.setdefault(RESOURCES[kind].group, []).append(RESOURCES[kind].plural)
    return listed + [_rule(group, sorted(plurals), ("patch",)) for group, plurals in jobs.items()]


def _rule(group: str, plurals: list[str], verbs: tuple[str, ...]) -> Object:
    return {"apiGroups": [group], "resources": plurals, "verbs": list(verbs)}


def lease_role(namespace: str) -> Object:
    rules = [
        # A name cannot be asked for when the object is made: creating stands alone.
        _rule("coordination.k8s.io", ["leases"], ("create",)),
        _rule("coordination.k8s.io", ["leases"], ("get", "update")) | {"resourceNames": [LEASE]},
    ]
    return _object(f"{RBAC}/v1", "Role", NAME, namespace, rules=rules)


def _binding(kind: str, role: str, namespace: str) -> Object:
    return _object(
        f"{RBAC}/v1",
        kind,
        NAME,
        namespace if kind == "RoleBinding" else "",
        roleRef={"apiGroup": RBAC, "kind": role, "name": NAME},
        subjects=[{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
    )


# ---- the program -----------------------------------------------------------------------------------


def _priority_class() -> Object:
    return _object(
        "scheduling.k8s.io/v1",
        "PriorityClass",
        "makeway-critical",
        value=1_000_000_000,
        description="For makeway itself: whoever makes way for others must not be pushed aside.",
    )


def _config_map(options: Options) -> Object:
    config = options.config or (
        "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
        "makeway:\n  schedulerNames: [makeway]\n"
    )
    return _object("v1", "ConfigMap", NAME, options.namespace, data={CONFIG_FILE: config})


def _service(options: Options) -> Object:
    ports: list[Object] = [{"name": "http", "port": PORT, "targetPort": "http"}]
    if options.webhook:
        ports.append({"name": "webhook", "port": 443, "targetPort": "webhook"})
    return _object(
        "v1", "Service", NAME, options.namespace, spec={"selector": SELECTOR, "ports": ports}
    )


def _deployment(options: Options) -> Object:
    probes = {
        "livenessProbe": _probe("/healthz") | {"initialDelaySeconds": 15, "periodSeconds": 20},
        "readinessProbe": _probe("/readyz") | {"periodSeconds": 5},
    }
    container: Object = {
        "name": NAME,
        "image": options.image or DEFAULT_IMAGE,
        "args": [
            "run",
            f"--config=/etc/makeway/{CONFIG_FILE}",
            f"--listen=0.0.0.0:{PORT}",
            "--log-format=json",
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {
                "name": "POD_NAMESPACE",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}},
            },
        ],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": "/etc/makeway", "readOnly": True}],
        **probes,
    }
    volumes: list[Object] = [{"name": "config", "configMap": {"name": NAME}}]
    if options.webhook:
        container["args"] += [
            f"--webhook=0.0.0.0:{WEBHOOK_PORT}",
            f"--webhook-certificates={WEBHOOK_FOLDER}",
        ]
        container["ports"].append({"name": "webhook", "containerPort": WEBHOOK_PORT})
        container["volumeMounts"].append(
            {"name": "webhook", "mountPath": WEBHOOK_FOLDER, "readOnly": True}
        )
        volumes.append({"name": "webhook", "secret": {"secretName": WEBHOOK_SECRET}})
    spread = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": SELECTOR},
    }
    pod = {
        "serviceAccountName": NAME,
        "priorityClassName": "makeway-critical",
        # Placed by the cluster's own scheduler: nobody can start by placing himself.
        "schedulerName": "default-scheduler",
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 100, "podAffinityTerm": spread}
                ]
            }
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    return _object(
        "apps/v1",
        "Deployment",
        NAME,
        options.namespace,
        spec={
            "replicas": DEFAULT_REPLICAS if options.replicas is None else options.replicas,
            "selector": {"matchLabels": SELECTOR},
            "template": {"metadata": {"labels": SELECTOR | PART_OF}, "spec": pod},
        },
    )


def _probe(path: str) -> Object:
    return {"httpGet": {"path": path, "port": "http"}}
