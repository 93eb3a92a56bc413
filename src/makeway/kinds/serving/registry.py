"""The table of served kinds. One row a kind; what a row's rules do is in the module named there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from makeway.kinds.serving import jobs, printers
from makeway.kinds.serving.batch import CronJobRules, JobRules
from makeway.kinds.serving.cluster import (
    BudgetRules,
    ClaimRules,
    ConfigMapRules,
    NamespaceRules,
    NodeRules,
    PriorityClassRules,
    SecretRules,
    ServiceRules,
    VolumeRules,
)
from makeway.kinds.serving.columns import (
    AGE,
    NAME,
    NAME_AND_AGE,
    Column,
    condition_column,
    path_column,
)
from makeway.kinds.serving.conversion import (
    ClusterQueueV1Beta1,
    EventsGroup,
    LocalQueueV1Beta1,
    PodGroupV1Alpha2,
    WorkloadV1Beta1,
)
from makeway.kinds.serving.custom import DefinitionRules
from makeway.kinds.serving.events import EventRules
from makeway.kinds.serving.kind import Conversion, Kind, Scale, Version
from makeway.kinds.serving.kueue import (
    AdmissionCheckRules,
    ClusterQueueRules,
    CohortRules,
    FlavorRules,
    LocalQueueRules,
    TopologyRules,
    WorkloadPriorityClassRules,
    WorkloadRules,
)
from makeway.kinds.serving.models import ModelRules
from makeway.kinds.serving.own_schemas import KUEUE
from makeway.kinds.serving.pods import PodRules
from makeway.kinds.serving.replicas import (
    DaemonSetRules,
    DeploymentRules,
    ReplicaSetRules,
    StatefulSetRules,
)

_CORE = "io.k8s.api.core.v1"
_KUEUE_DEPRECATED = "This version is deprecated. Use v1beta2 instead."
_REPLICAS = Scale()


class Registry:
    """Kinds by resource key (`plural` or `plural.group`) and by the path of a request."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self._by_resource = {kind.resource: kind for kind in kinds}
        self._by_path: dict[tuple[str, str], Kind] = {}
        for kind in kinds:
            self._by_path[kind.group, kind.plural] = kind

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._by_resource.values())

    def __getitem__(self, resource: str) -> Kind:
        return self._by_resource[resource]

    def get(self, group: str, plural: str) -> Kind | None:
        return self._by_path.get((group, plural))

    def of(self, group: str, kind: str) -> Kind | None:
        return next((one for one in self if one.group == group and one.kind == kind), None)

    def add(self, kind: Kind) -> None:
        """A kind that came by CustomResourceDefinition."""
        self._by_resource[kind.resource] = kind
        self._by_path[kind.group, kind.plural] = kind

    def remove(self, resource: str) -> None:
        kind = self._by_resource.pop(resource, None)
        if kind:
            self._by_path.pop((kind.group, kind.plural), None)


def build() -> Registry:
    return Registry(
        (*_core(), *_apps(), *_batch(), *_own(), *_kueue(), *_gangs(), *jobs.kinds(), *_rest())
    )


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
            "Endpoints",
            "endpoints",
            core("Endpoints", printers.ENDPOINTS),
            short_names=("ep",),
            singular="endpoints",
            generation=False,
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
                **{
                    f"involvedObject.{f}": ("involvedObject", f)
                    for f in (
                        "kind",
                        "namespace",
                        "name",
                        "uid",
                        "apiVersion",
                        "resourceVersion",
                        "fieldPath",
                    )
                },
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
            "ReplicationController",
            "replicationcontrollers",
            core("ReplicationController"),
            short_names=("rc",),
            categories=("all",),
            status=True,
            scale=_REPLICAS,
        ),
        Kind(
            "",
            "ResourceQuota",
            "resourcequotas",
            core("ResourceQuota", printers.RESOURCE_QUOTA),
            short_names=("quota",),
            status=True,
            generation=False,
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


def _own() -> tuple[Kind, ...]:
    columns = (
        NAME,
        path_column("Preemptor", ".spec.preemptor"),
        path_column("Victims", ".status.victimsText"),
        path_column("Phase", ".status.phase"),
        path_column("Loss", ".status.lossText"),
        path_column("Rule", ".spec.rule"),
        AGE,
    )
    return (
        Kind(
            "makeway.dev",
            "Preemption",
            "preemptions",
            (Version("v1alpha1", "dev.makeway.v1alpha1.Preemption", columns),),
            short_names=("preempt",),
            categories=("makeway",),
            status=True,
            builtin=False,
        ),
        Kind(
            "kubeai.org",
            "Model",
            "models",
            _v1("org.kubeai.v1.Model"),
            status=True,
            builtin=False,
            rules=ModelRules(),
            scale=Scale(("spec", "replicas"), ("status", "replicas", "all"), ()),
        ),
    )


def _kueue() -> tuple[Kind, ...]:
    def both(
        kind: str,
        columns: tuple[Column, ...] = NAME_AND_AGE,
        old_columns: tuple[Column, ...] = (),
        conversion: Conversion | None = None,
    ) -> tuple[Version, ...]:
        old = f"{KUEUE}.v1beta1.{kind}"
        return (
            Version("v1beta2", f"{KUEUE}.v1beta2.{kind}", columns),
            Version("v1beta1", old, old_columns or columns, conversion, _KUEUE_DEPRECATED),
        )

    def kueue(
        kind: str, plural: str, short: tuple[str, ...], versions: tuple[Version, ...], **more: Any
    ) -> Kind:
        return Kind(
            "kueue.x-k8s.io", kind, plural, versions, short_names=short, builtin=False, **more
        )

    def queue_columns(cohort: str) -> tuple[Column, ...]:
        return (
            NAME,
            path_column("Cohort", cohort),
            path_column("Strategy", ".spec.queueingStrategy", wide=True),
            path_column("Pending Workloads", ".status.pendingWorkloads", "integer"),
            path_column("Admitted Workloads", ".status.admittedWorkloads", "integer", wide=True),
        )

    local_columns = (
        NAME,
        path_column("ClusterQueue", ".spec.clusterQueue"),
        path_column("Pending Workloads", ".status.pendingWorkloads", "integer"),
        path_column("Admitted Workloads", ".status.admittedWorkloads", "integer"),
    )
    workload_columns = (
        NAME,
        path_column("Queue", ".spec.queueName"),
        path_column("Reserved in", ".status.admission.clusterQueue"),
        condition_column("Admitted", "Admitted"),
        condition_column("Finished", "Finished"),
        AGE,
    )
    return (
        kueue(
            "AdmissionCheck",
            "admissionchecks",
            ("ac",),
            both("AdmissionCheck"),
            namespaced=False,
            status=True,
            rules=AdmissionCheckRules(),
        ),
        kueue(
            "ClusterQueue",
            "clusterqueues",
            ("cq",),
            both(
                "ClusterQueue",
                queue_columns(".spec.cohortName"),
                queue_columns(".spec.cohort"),
                ClusterQueueV1Beta1(),
            ),
            namespaced=False,
            status=True,
            rules=ClusterQueueRules(),
        ),
        kueue(
            "Cohort",
            "cohorts",
            ("co",),
            both("Cohort"),
            namespaced=False,
            status=True,
            rules=CohortRules(),
        ),
        kueue(
            "LocalQueue",
            "localqueues",
            ("queue", "queues", "lq"),
            both("LocalQueue", local_columns, conversion=LocalQueueV1Beta1()),
            status=True,
            rules=LocalQueueRules(),
        ),
        kueue(
            "MultiKueueCluster",
            "multikueueclusters",
            ("mkc",),
            both("MultiKueueCluster", (NAME, condition_column("Connected", "Active"), AGE)),
            namespaced=False,
            status=True,
        ),
        kueue(
            "MultiKueueConfig",
            "multikueueconfigs",
            ("mkconf",),
            both("MultiKueueConfig"),
            namespaced=False,
        ),
        kueue(
            "ProvisioningRequestConfig",
            "provisioningrequestconfigs",
            ("prc",),
            both("ProvisioningRequestConfig"),
            namespaced=False,
        ),
        kueue(
            "ResourceFlavor",
            "resourceflavors",
            ("flavor", "flavors", "rf"),
            both("ResourceFlavor"),
            namespaced=False,
            rules=FlavorRules(),
        ),
        kueue(
            "Topology",
            "topologies",
            ("topo",),
            both("Topology"),
            namespaced=False,
            rules=TopologyRules(),
        ),
        kueue(
            "WorkloadPriorityClass",
            "workloadpriorityclasses",
            ("wpc",),
            both("WorkloadPriorityClass", (NAME, path_column("Value", ".value", "integer"))),
            namespaced=False,
            rules=WorkloadPriorityClassRules(),
        ),
        kueue(
            "Workload",
            "workloads",
            ("kwl", "kueueworkload", "kueueworkloads"),
            both("Workload", workload_columns, conversion=WorkloadV1Beta1()),
            status=True,
            rules=WorkloadRules(),
            fields={"status.admission.clusterQueue": ("status", "admission", "clusterQueue")},
        ),
    )


def _gangs() -> tuple[Kind, ...]:
    scheduling = "io.k8s.api.scheduling"
    return (
        Kind(
            "scheduling.sigs.k8s.io",
            "PodGroup",
            "podgroups",
            (Version("v1alpha1", "io.k8s.sigs.scheduling.v1alpha1.PodGroup"),),
            short_names=("pg", "pgs"),
            status=True,
            builtin=False,
        ),
        Kind(
            "scheduling.x-k8s.io",
            "PodGroup",
            "podgroups",
            (Version("v1alpha1", "io.x-k8s.scheduling.v1alpha1.PodGroup"),),
            short_names=("pg", "pgs"),
            status=True,
            builtin=False,
        ),
        Kind(
            "scheduling.k8s.io",
            "PriorityClass",
            "priorityclasses",
            _v1(f"{scheduling}.v1.PriorityClass", printers.PRIORITY_CLASS),
            namespaced=False,
            short_names=("pc",),
            rules=PriorityClassRules(),
        ),
        Kind(
            "scheduling.k8s.io",
            "PodGroup",
            "podgroups",
            (
                Version("v1beta1", f"{scheduling}.v1beta1.PodGroup"),
                Version(
                    "v1alpha2", f"{scheduling}.v1alpha2.PodGroup", conversion=PodGroupV1Alpha2()
                ),
            ),
            status=True,
        ),
        Kind(
            "scheduling.k8s.io",
            "Workload",
            "workloads",
            (
                Version("v1beta1", f"{scheduling}.v1beta1.Workload"),
                Version("v1alpha2", f"{scheduling}.v1alpha2.Workload"),
            ),
        ),
    )


def _rest() -> tuple[Kind, ...]:
    storage = "io.k8s.api.storage.v1"
    measured = (Version("v1beta1"),)
    return (
        Kind(
            "metrics.k8s.io",
            "NodeMetrics",
            "nodes",
            measured,
            namespaced=False,
            verbs=("get", "list"),
        ),
        Kind("metrics.k8s.io", "PodMetrics", "pods", measured, verbs=("get", "list")),
        # kube-scheduler does not start before it has listed these; nobody here hands out devices.
        *(
            Kind(
                "resource.k8s.io",
                kind,
                f"{kind.lower()}{'es' if kind.endswith('s') else 's'}",
                (Version("v1"),),
                namespaced=kind in ("ResourceClaim", "ResourceClaimTemplate"),
                status=kind == "ResourceClaim",
            )
            for kind in ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")
        ),
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
            "coordination.k8s.io",
            "Lease",
            "leases",
            _v1("io.k8s.api.coordination.v1.Lease", printers.LEASE),
            generation=False,
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
                **{
                    f"regarding.{f}": ("involvedObject", f)
                    for f in (
                        "kind",
                        "namespace",
                        "name",
                        "uid",
                        "apiVersion",
                        "resourceVersion",
                        "fieldPath",
                    )
                },
                "reason": ("reason",),
                "type": ("type",),
                "reportingController": ("reportingComponent",),
            },
        ),
        Kind(
            "node.k8s.io",
            "RuntimeClass",
            "runtimeclasses",
            _v1("io.k8s.api.node.v1.RuntimeClass", printers.RUNTIME_CLASS),
            namespaced=False,
            generation=False,
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
        Kind(
            "storage.k8s.io",
            "CSIDriver",
            "csidrivers",
            _v1(f"{storage}.CSIDriver"),
            namespaced=False,
            generation=False,
        ),
        Kind(
            "storage.k8s.io",
            "CSINode",
            "csinodes",
            _v1(f"{storage}.CSINode", printers.CSI_NODE),
            namespaced=False,
            generation=False,
        ),
        Kind(
            "storage.k8s.io",
            "CSIStorageCapacity",
            "csistoragecapacities",
            _v1(f"{storage}.CSIStorageCapacity"),
            generation=False,
        ),
        Kind(
            "storage.k8s.io",
            "StorageClass",
            "storageclasses",
            _v1(f"{storage}.StorageClass", printers.STORAGE_CLASS),
            namespaced=False,
            short_names=("sc",),
            generation=False,
        ),
        Kind(
            "storage.k8s.io",
            "VolumeAttachment",
            "volumeattachments",
            _v1(f"{storage}.VolumeAttachment"),
            namespaced=False,
            status=True,
            generation=False,
        ),
    )
