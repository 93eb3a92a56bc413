"""The kinds that the adapter watches and writes, and where they live in the API.

Kinds are named by one word each inside the adapter. PodGroup exists in three APIs; all of them are read, under names of
their own, since an object of one must not replace an object of the same name in another.
"""

from __future__ import annotations

from typing import Final

from makeway.client.resource import (
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    Resource,
)
from makeway.kinds.frameworks import JOB_KINDS
from makeway.kinds.gated import GATED_KINDS
from makeway.kinds.metadata import group_of

KUEUE: Final = "kueue.x-k8s.io"
KUEUE_VERSION: Final = "v1beta2"
MAKEWAY: Final = "makeway.dev"
TRAINER: Final = "trainer.kubeflow.org"

POD_GROUPS: Final = ("PodGroup", "PodGroup.x-k8s.io", "PodGroup.k8s.io")


def _home(api_version: str, plural: str) -> Resource:
    return Resource(group_of(api_version), api_version.rsplit("/", 1)[-1], plural)


RESOURCES: Final[dict[str, Resource]] = {
    "Namespace": NAMESPACES,
    "Node": NODES,
    "PriorityClass": PRIORITY_CLASSES,
    "WorkloadPriorityClass": Resource(KUEUE, KUEUE_VERSION, "workloadpriorityclasses", False),
    "ResourceFlavor": Resource(KUEUE, KUEUE_VERSION, "resourceflavors", False),
    "Topology": Resource(KUEUE, KUEUE_VERSION, "topologies", False),
    "AdmissionCheck": Resource(KUEUE, KUEUE_VERSION, "admissionchecks", False),
    "Cohort": Resource(KUEUE, KUEUE_VERSION, "cohorts", False),
    "ClusterQueue": Resource(KUEUE, KUEUE_VERSION, "clusterqueues", False),
    "LocalQueue": Resource(KUEUE, KUEUE_VERSION, "localqueues"),
    "Workload": Resource(KUEUE, KUEUE_VERSION, "workloads"),
    **{each.kind: _home(each.api_version, each.plural) for each in JOB_KINDS.values()},
    **{each.kind: _home(each.api_version, each.plural) for each in GATED_KINDS.values()},
    "ClusterTrainingRuntime": Resource(TRAINER, "v1alpha1", "clustertrainingruntimes", False),
    "TrainingRuntime": Resource(TRAINER, "v1alpha1", "trainingruntimes"),
    "Pod": PODS,
    "PodGroup": Resource("scheduling.sigs.k8s.io", "v1alpha1", "podgroups"),
    "PodGroup.x-k8s.io": Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups"),
    "PodGroup.k8s.io": Resource("scheduling.k8s.io", "v1beta1", "podgroups"),
    "PodDisruptionBudget": Resource("policy", "v1", "poddisruptionbudgets"),
    "PersistentVolumeClaim": Resource("", "v1", "persistentvolumeclaims"),
    "PersistentVolume": Resource("", "v1", "persistentvolumes", False),
    "StorageClass": Resource("storage.k8s.io", "v1", "storageclasses", False),
    "LimitRange": Resource("", "v1", "limitranges"),
    "RuntimeClass": Resource("node.k8s.io", "v1", "runtimeclasses", False),
    "Preemption": Resource(MAKEWAY, "v1alpha1", "preemptions"),
}

# Without these there is nothing to schedule; the others may be missing from a cluster.
REQUIRED: Final = frozenset({"Namespace", "Node", "Pod"})

API_VERSIONS: Final = {kind: resource.api_version for kind, resource in RESOURCES.items()}
__all__ = [
    "API_VERSIONS",
    "EVENTS",
    "KUEUE",
    "MAKEWAY",
    "POD_GROUPS",
    "REQUIRED",
    "RESOURCES",
    "Resource",
]
