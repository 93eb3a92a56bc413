"""Rows of Kubernetes' own kinds that something here acts on. One row a kind; what a row's rules do is in the module named there."""

from __future__ import annotations

from makeway.kinds.serving import printers
from makeway.kinds.serving.batch import CronJobRules, JobRules
from makeway.kinds.serving.cluster import (
    BudgetRules,
    ConfigMapRules,
    NamespaceRules,
    NodeRules,
    PriorityClassRules,
    SecretRules,
    ServiceRules,
)
from makeway.kinds.serving.columns import NAME_AND_AGE, Column
from makeway.kinds.serving.conversion import EventsGroup
from makeway.kinds.serving.custom import DefinitionRules
from makeway.kinds.serving.events import EventRules
from makeway.kinds.serving.kind import Kind, Scale, Version
from makeway.kinds.serving.limitranges import LimitRangeRules
from makeway.kinds.serving.pods import PodRules
from makeway.kinds.serving.replicas import (
    DaemonSetRules,
    DeploymentRules,
    ReplicaSetRules,
    StatefulSetRules,
)
from makeway.kinds.serving.storage import ClaimRules, VolumeRules

_CORE = "io.k8s.api.core.v1"
_REPLICAS = Scale()
_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def kinds() -> tuple[Kind, ...]:
    return (*_core(), *_apps(), *_batch(), *_around())


def _v1(definition: str, columns: tuple[Column, ...] = NAME_AND_AGE) -> tuple[Version, ...]:
    return (Version("v1", definition, columns),)


def _core() -> tuple[Kind, ...]:
    def core(kind: str, columns: tuple[Column, ...] = NAME_AND_AGE) -> tuple[Version, ...]:
        return _v1(f"{_CORE}.{kind}", columns)

    return (
        Kind("", "Binding", "bindings", core("Binding"), verbs=("create",)),
        Kind(
            "",
            "ConfigMap",
            "configmaps",
            core("ConfigMap", printers.CONFIG_MAP),
            short_names=("cm",),
            generation=False,
            rules=ConfigMapRules(),
        ),
        Kind(
            "",
            "Event",
            "events",
            core("Event", printers.EVENT),
            short_names=("ev",),
            generation=False,
            rules=EventRules(),
            fields={
                **{f"involvedObject.{f}": ("involvedObject", f) for f in _REFERENCE},
                "reason": ("reason",),
                "type": ("type",),
                "reportingComponent": ("reportingComponent",),
                "source": ("source", "component"),
            },
        ),
        Kind(
            "",
            "LimitRange",
            "limitranges",
            core("LimitRange", printers.LIMIT_RANGE),
            short_names=("limits",),
            generation=False,
            rules=LimitRangeRules(),
        ),
        Kind(
            "",
            "Namespace",
            "namespaces",
            core("Namespace", printers.NAMESPACE),
            namespaced=False,
            short_names=("ns",),
            status=True,
            generation=False,
            subresources=(("finalize", "Namespace", ("update",)),),
            rules=NamespaceRules(),
            fields={"status.phase": ("status", "phase")},
            verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
        ),
        Kind(
            "",
            "Node",
            "nodes",
            core("Node", printers.NODE),
            namespaced=False,
            short_names=("no",),
            status=True,
            generation=False,
            rules=NodeRules(),
            fields={"spec.unschedulable": ("spec", "unschedulable")},
        ),
        Kind(
            "",
            "PersistentVolumeClaim",
            "persistentvolumeclaims",
            core("PersistentVolumeClaim", printers.VOLUME_CLAIM),
            short_names=("pvc",),
            status=True,
            generation=False,
            rules=ClaimRules(),
        ),
        Kind(
            "",
            "PersistentVolume",
            "persistentvolumes",
            core("PersistentVolume", printers.VOLUME),
            namespaced=False,
            short_names=("pv",),
            status=True,
            generation=False,
            rules=VolumeRules(),
        ),
        Kind(
            "",
            "Pod",
            "pods",
            core("Pod", printers.POD),
            short_names=("po",),
            categories=("all",),
            status=True,
            rules=PodRules(),
            subresources=(
                ("binding", "Binding", ("create",)),
                ("eviction", "Eviction", ("create",)),
                ("log", "Pod", ("get",)),
                ("exec", "PodExecOptions", ("create", "get")),
                ("attach", "PodAttachOptions", ("create", "get")),
                ("portforward", "PodPortForwardOptions", ("create", "get")),
                ("ephemeralcontainers", "Pod", ("get", "patch", "update")),
            ),
            fields={
                "spec.nodeName": ("spec", "nodeName"),
                "spec.schedulerName": ("spec", "schedulerName"),
                "spec.restartPolicy": ("spec", "restartPolicy"),
                "spec.serviceAccountName": ("spec", "serviceAccountName"),
                "status.phase": ("status", "phase"),
                "status.podIP": ("status", "podIP"),
                "status.nominatedNodeName": ("status", "nominatedNodeName"),
            },
        ),
        Kind(
            "",
            "Secret",
            "secrets",
            core("Secret", printers.SECRET),
            generation=False,
            rules=SecretRules(),
            fields={"type": ("type",)},
        ),
        Kind(
            "",
            "ServiceAccount",
            "serviceaccounts",
            core("ServiceAccount", printers.SERVICE_ACCOUNT),
            short_names=("sa",),
            generation=False,
            subresources=(("token", "TokenRequest", ("create",)),),
        ),
        Kind(
            "",
            "Service",
            "services",
            core("Service", printers.SERVICE),
            short_names=("svc",),
            categories=("all",),
            status=True,
            generation=False,
            rules=ServiceRules(),
        ),
    )


def _apps() -> tuple[Kind, ...]:
    def apps(kind: str, columns: tuple[Column, ...]) -> tuple[Version, ...]:
        return _v1(f"io.k8s.api.apps.v1.{kind}", columns)

    return (
        Kind(
            "apps",
            "DaemonSet",
            "daemonsets",
            apps("DaemonSet", printers.DAEMONSET),
            short_names=("ds",),
            categories=("all",),
            status=True,
            rules=DaemonSetRules(),
        ),
        Kind(
            "apps",
            "Deployment",
            "deployments",
            apps("Deployment", printers.DEPLOYMENT),
            short_names=("deploy",),
            categories=("all",),
            status=True,
            scale=_REPLICAS,
            annotations_count=True,
            rules=DeploymentRules(),
        ),
        Kind(
            "apps",
            "ReplicaSet",
            "replicasets",
            apps("ReplicaSet", printers.REPLICASET),
            short_names=("rs",),
            categories=("all",),
            status=True,
            scale=_REPLICAS,
            rules=ReplicaSetRules(),
        ),
        Kind(
            "apps",
            "StatefulSet",
            "statefulsets",
            apps("StatefulSet", printers.STATEFULSET),
            short_names=("sts",),
            categories=("all",),
            status=True,
            scale=_REPLICAS,
            rules=StatefulSetRules(),
        ),
    )


def _batch() -> tuple[Kind, ...]:
    def batch(kind: str, columns: tuple[Column, ...]) -> tuple[Version, ...]:
        return _v1(f"io.k8s.api.batch.v1.{kind}", columns)

    return (
        Kind(
            "batch",
            "CronJob",
            "cronjobs",
            batch("CronJob", printers.CRONJOB),
            short_names=("cj",),
            categories=("all",),
            status=True,
            rules=CronJobRules(),
        ),
        Kind(
            "batch",
            "Job",
            "jobs",
            batch("Job", printers.JOB),
            categories=("all",),
            status=True,
            rules=JobRules(),
            fields={"status.successful": ("status", "succeeded")},
        ),
    )


def _around() -> tuple[Kind, ...]:
    measured = (Version("v1beta1"),)
    return (
        Kind(
            "scheduling.k8s.io",
            "PriorityClass",
            "priorityclasses",
            _v1("io.k8s.api.scheduling.v1.PriorityClass", printers.PRIORITY_CLASS),
            namespaced=False,
            short_names=("pc",),
            rules=PriorityClassRules(),
        ),
        Kind(
            "metrics.k8s.io",
            "NodeMetrics",
            "nodes",
            measured,
            namespaced=False,
            verbs=("get", "list"),
        ),
        Kind("metrics.k8s.io", "PodMetrics", "pods", measured, verbs=("get", "list")),
        Kind(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            _v1(
                "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
                printers.DEFINITION,
            ),
            namespaced=False,
            short_names=("crd", "crds"),
            categories=("api-extensions",),
            status=True,
            rules=DefinitionRules(),
        ),
        Kind(
            "events.k8s.io",
            "Event",
            "events",
            (Version("v1", "io.k8s.api.events.v1.Event", printers.EVENT, EventsGroup()),),
            short_names=("ev",),
            generation=False,
            stored_as="events",
            rules=EventRules(),
            fields={
                **{f"regarding.{f}": ("involvedObject", f) for f in _REFERENCE},
                "reason": ("reason",),
                "type": ("type",),
                "reportingController": ("reportingComponent",),
            },
        ),
        Kind(
            "policy",
            "PodDisruptionBudget",
            "poddisruptionbudgets",
            _v1("io.k8s.api.policy.v1.PodDisruptionBudget", printers.DISRUPTION_BUDGET),
            short_names=("pdb",),
            status=True,
            rules=BudgetRules(),
        ),
    )
