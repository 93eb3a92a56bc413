"""Where a kind of object lives in the REST API, and the kinds that we ask for by name."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

Object = dict[str, Any]


class Resource(msgspec.Struct, frozen=True):
    """`Resource("batch", "v1", "jobs")`; the core group is the empty string."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The collection without a name; over all namespaces without a namespace."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


PODS = Resource("", "v1", "pods")
NODES = Resource("", "v1", "nodes", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts")
SECRETS = Resource("", "v1", "secrets")
CORE_EVENTS = Resource("", "v1", "events")
EVENTS = Resource("events.k8s.io", "v1", "events")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
JOBS = Resource("batch", "v1", "jobs")
CRON_JOBS = Resource("batch", "v1", "cronjobs")
DAEMON_SETS = Resource("apps", "v1", "daemonsets")
DEPLOYMENTS = Resource("apps", "v1", "deployments")
REPLICA_SETS = Resource("apps", "v1", "replicasets")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets")
JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets")
LEADER_WORKER_SETS = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", namespaced=False)
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets")
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims")
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", namespaced=False)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", namespaced=False)
MODELS = Resource("kubeai.org", "v1", "models")
