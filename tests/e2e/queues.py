"""The simplest queue there is, for tests that are about something else."""

from __future__ import annotations


def cpu_queue(name: str, cpu: int, *, door: str = "", flavor: str = "any") -> str:
    """A ClusterQueue of CPUs in which priority decides, and a LocalQueue in `default` that leads to it."""
    return f"""
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {{name: {flavor}}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {{name: {name}}}
spec:
  namespaceSelector: {{}}
  preemption: {{withinClusterQueue: LowerPriority}}
  resourceGroups:
    - coveredResources: [cpu]
      flavors: [{{name: {flavor}, resources: [{{name: cpu, nominalQuota: {cpu}}}]}}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {{name: {door or name}, namespace: default}}
spec: {{clusterQueue: {name}}}
"""
