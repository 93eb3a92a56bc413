"""The shipped ClusterRole against what was done: the servers' audit logs of everything that the suite did.

Named to run last in its folder. Nothing may have been refused; and when the whole suite ran and kept its logs (`make
test-cluster`), every right was used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from makeway.kinds.crds import custom_resource_definitions
from makeway.kube.manifests import NAME, NAMESPACE, cluster_role, lease_role
from makeway.kube.resources import RESOURCES
from tests.e2e.backends import AUDIT, audit_logs
from tests.e2e.harness import chosen_backend

pytestmark = pytest.mark.skipif(
    chosen_backend() != "kube" or os.environ.get("MAKEWAY_CLUSTER") == "existing",
    reason="reads the audit log of a control plane of its own: pytest --backend kube",
)
WHO = f"system:serviceaccount:{NAMESPACE}:{NAME}"
# What stands in the role for situations that the suite does not make: each with its reason.
RARE = {
    ("scheduling.k8s.io", "podgroups", "list"): "served from Kubernetes 1.37 on",
    ("scheduling.k8s.io", "podgroups", "watch"): "served from Kubernetes 1.37 on",
    ("scheduling.k8s.io", "podgroups/status", "patch"): "served from Kubernetes 1.37 on",
    ("scheduling.sigs.k8s.io", "podgroups", "patch"): "Koordinator's definition has no subresource",
    ("scheduling.x-k8s.io", "podgroups", "patch"): "as above, for older scheduler-plugins",
    ("", "events", "patch"): "an event of a Model that repeats itself",
    ("events.k8s.io", "events", "patch"): "an event that repeats itself",
    ("makeway.dev", "preemptions", "delete"): "records are kept for a week",
    ("kueue.x-k8s.io", "workloads", "delete"): "a Workload whose job went without it",
}

# Kinds of others, whose definitions the tests' cluster does not have.
ABSENT = {RESOURCES[kind].group for kind in RESOURCES} - {
    *(crd["spec"]["group"] for crd in custom_resource_definitions()),
    *("", "batch", "policy", "storage.k8s.io", "node.k8s.io", "scheduling.k8s.io"),
}

Right = tuple[str, str, str]  # group, resource with subresource, verb


def done() -> Iterator[tuple[Right, int]]:
    for line in (line for log in audit_logs() for line in log.read_text().splitlines()):
        entry = json.loads(line)
        about = entry.get("objectRef")
        if entry["user"]["username"] != WHO or not about or "resource" not in about:
            continue
        sub = about.get("subresource")
        resource = f"{about['resource']}/{sub}" if sub else about["resource"]
        code = int((entry.get("responseStatus") or {}).get("code") or 0)
        yield (about.get("apiGroup", ""), resource, entry["verb"]), code


def granted() -> set[Right]:
    rules = [*cluster_role()["rules"], *lease_role(NAMESPACE)["rules"]]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_nothing_was_done_or_tried_outside_the_role() -> None:
    if not audit_logs():
        pytest.skip("nothing ran on the real API server before")
    # A server that was just started, or a role that is just being taken away, refuses what it grants otherwise.
    refused = {right for right, code in done() if code == 403}
    assert refused - granted() == set()
    assert {right for right, _ in done()} - granted() == set()


@pytest.mark.skipif(
    not os.environ.get(AUDIT), reason="only after the whole suite: make test-cluster"
)
def test_every_right_was_used() -> None:
    used = {right for right, _ in done()}
    unused = {right for right in granted() - used - RARE.keys() if right[0] not in ABSENT}
    # Single reads depend on conflicts; a list and a watch show that reading is needed.
    left = sorted(" ".join(right) for right in unused if right[2] != "get")
    assert not left, "; ".join(left)
