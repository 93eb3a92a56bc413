"""Rows of the kinds that queue and group work: Kueue's, the three PodGroups, our own."""

from __future__ import annotations

from typing import Any

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
    LocalQueueV1Beta1,
    PodGroupV1Alpha2,
    WorkloadV1Beta1,
)
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

_KUEUE_DEPRECATED = "This version is deprecated. Use v1beta2 instead."


def kinds() -> tuple[Kind, ...]:
    return (*_own(), *_kueue(), *_gangs())


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
            (Version("v1", "org.kubeai.v1.Model"),),
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


def _pod_group(group: str, definitions: str) -> Kind:
    """Koordinator's and scheduler-plugins', which are alike."""
    return Kind(
        group,
        "PodGroup",
        "podgroups",
        (Version("v1alpha1", f"{definitions}.v1alpha1.PodGroup"),),
        short_names=("pg", "pgs"),
        status=True,
        builtin=False,
    )


def _gangs() -> tuple[Kind, ...]:
    scheduling = "io.k8s.api.scheduling"
    return (
        _pod_group("scheduling.sigs.k8s.io", "io.k8s.sigs.scheduling"),
        _pod_group("scheduling.x-k8s.io", "io.x-k8s.scheduling"),
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
