"""What exists from the first start on: namespaces, the two system priority classes, Koordinator's
ConfigMap.
"""

from __future__ import annotations

from makeway.embedded.api.objects import Objects
from makeway.kinds.serving.cluster import SYSTEM_CLASSES
from makeway.kinds.serving.refusal import Obj

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system", "koordinator-system")

_CLASS_TEXTS = {
    "system-cluster-critical": (
        "Used for system critical pods that must run in the cluster, but can be moved to"
        " another node if necessary."
    ),
    "system-node-critical": (
        "Used for system critical pods that must not be moved from their current node."
    ),
}

# Who follows Koordinator's walkthrough looks here whether gangs preempt. They do, and this is
# where it says so.
_SCHEDULER_CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
  - schedulerName: koord-scheduler
    pluginConfig:
      - name: Coscheduling
        args:
          apiVersion: kubescheduler.config.k8s.io/v1
          kind: CoschedulingArgs
          enablePreemption: true
"""


def ensure_first_objects(objects: Objects, now: float) -> None:
    """Create what is missing. A user may delete the ConfigMap; it is back at the next start."""
    for name in NAMESPACES:
        _ensure(objects, "namespaces", "", {"metadata": {"name": name}}, now)
    for name, value in SYSTEM_CLASSES.items():
        content: Obj = {
            "metadata": {"name": name},
            "value": value,
            "description": _CLASS_TEXTS[name],
        }
        _ensure(objects, "priorityclasses.scheduling.k8s.io", "", content, now)
    config = {
        "metadata": {"name": "koord-scheduler-config", "namespace": "koordinator-system"},
        "data": {"koord-scheduler-config": _SCHEDULER_CONFIG},
    }
    _ensure(objects, "configmaps", "koordinator-system", config, now)


def _ensure(objects: Objects, resource: str, namespace: str, obj: Obj, now: float) -> None:
    if objects.store.get(resource, namespace, obj["metadata"]["name"]) is None:
        objects.create(objects.registry[resource], namespace, obj, objects.context(now))
