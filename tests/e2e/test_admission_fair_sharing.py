"""Admission fair sharing with the real kubectl: two LocalQueues, one ClusterQueue, and who used less goes first."""

from __future__ import annotations

import json

import pytest

from makeway.control.config import parse
from makeway.kube.manifests import NAME
from makeway.model.resources import number_of
from tests.e2e.harness import Machine, kubectl_path, machine
from tests.e2e.queues import cpu_queue
from tests.e2e.test_variations import job, nodes, only_workload, suspended
from tests.e2e.test_walkthroughs import condition

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(not kubectl_path(), reason="there is no kubectl on this machine"),
]
WRITTEN = "admissionFairSharing: {usageHalfLifeTime: 10m, usageSamplingInterval: 5m}"
CONFIG = parse(WRITTEN)
PENALTY = 4 * (1 - 0.5 ** (5 / 10))  # of a job of 4 CPUs
QUEUES = (
    cpu_queue("shared", 4, door="blue").replace(
        "namespaceSelector: {}",
        "namespaceSelector: {}\n  queueingStrategy: StrictFIFO\n"
        "  admissionScope: {admissionMode: UsageBasedAdmissionFairSharing}",
    )
    + """---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: green, namespace: default}
spec: {clusterQueue: shared, fairSharing: {weight: "2"}}
"""
)


# Where `makeway explain` looks for the configuration in force.
IN_FORCE = f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: {NAME}, namespace: default}}
data: {{config.yaml: "{WRITTEN}"}}
"""


async def used_cpu(box: Machine, door: str, version: str = "v1beta2") -> float:
    """As `kubectl get lq` shows it, in either version."""
    kind = f"localqueues.{version}.kueue.x-k8s.io"
    path = "jsonpath={.status.fairSharing.admissionFairSharingStatus.consumedResources}"
    shown = await box.kubectl("get", kind, door, "-o", path)
    return number_of(json.loads(shown or "{}").get("cpu", "0"))


async def ran_through_blue(box: Machine) -> None:
    """Blue's job has the whole queue; both have another one waiting, blue's since longer."""
    await box.apply(nodes(8) + QUEUES)
    await box.apply(job("ran", 4, "blue"))
    await box.until(lambda: _has_used(box, "blue"), what="the usage of blue is written down")
    await box.apply(job("blue-first", 4, "blue"))
    await box.settled()
    await box.apply(job("green-later", 4, "green"))
    await box.settled()


async def _has_used(box: Machine, door: str) -> bool:
    return await used_cpu(box, door) > 0


async def test_the_later_job_of_who_used_nothing_goes_first() -> None:
    async with machine(CONFIG) as box:
        await ran_through_blue(box)
        assert await suspended(box) == {"ran": False, "blue-first": True, "green-later": True}
        for version in ("v1beta1", "v1beta2"):
            assert await used_cpu(box, "blue", version) == pytest.approx(PENALTY, rel=0.1)
        assert await used_cpu(box, "green") == 0.0

        await box.kubectl("delete", "job", "ran")
        await box.settled()

        assert await suspended(box) == {"blue-first": True, "green-later": False}


async def test_who_is_behind_can_read_what_both_have_used() -> None:
    async with machine(CONFIG) as box:
        await ran_through_blue(box)
        await box.apply(job("blue-second", 1, "blue"))
        await box.settled()

        said = condition(await only_workload(box, "blue-second"), "QuotaReserved")["message"]
        assert (
            "is ahead of it in ClusterQueue shared and waits. LocalQueue default/blue has" in said
        )
        assert "and LocalQueue default/green 0 (weighted, lately): who used less goes first" in said

        if box.backend.name == "embedded":  # a cluster has one already, which others go by
            await box.apply(IN_FORCE)
            told = await box.makeway("explain", "blue-first")
            first = "Job/default/green-later has its turn first: LocalQueue default/blue has used"
            assert first in told
