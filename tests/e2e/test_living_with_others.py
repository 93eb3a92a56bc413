"""On a real API server others work too: schedulers, provisioners of volumes, and kubelets that say no.

pytest tests/e2e --backend kube
"""

from __future__ import annotations

import json

import pytest

from makeway.client import Resource
from makeway.client.resource import PODS
from tests.e2e.backends import Kube, kube_available
from tests.e2e.harness import Machine, Object, chosen_backend, machine
from tests.e2e.test_cluster import NODE, QUEUE, changed, count_running, job, pod

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(
        chosen_backend() != "kube" or not kube_available(),
        reason="needs a real API server: pytest --backend kube",
    ),
]
VOLUMES = Resource("", "v1", "persistentvolumes", False)
SELECTED = "volume.kubernetes.io/selected-node"
LATE_CLASS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: late}
provisioner: example.com/by-hand
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: late
  resources: {requests: {storage: 1Gi}}
"""


def with_claim(text: str, claim: str) -> str:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    return changed(text, "spec", "volumes", [volume])


def volume_on(node: str, claim: Object) -> Object:
    """What a provisioner makes for a claim whose node was chosen."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "made-by-hand"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "storageClassName": "late",
            "hostPath": {"path": "/none"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": "default",
                "name": claim["metadata"]["name"],
                "uid": claim["metadata"]["uid"],
            },
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


async def test_a_volume_that_binds_late_is_told_the_node_and_waited_for() -> None:
    async with machine() as box:
        two = NODE.replace("node-1,", "node-1, labels: {kubernetes.io/hostname: node-1},")
        await box.apply(two + "---" + two.replace("node-1", "node-2"))
        await box.apply(LATE_CLASS)
        await box.apply(with_claim(pod("writes"), "data"))

        async def node_is_chosen() -> bool:
            claim = await box.get("pvc", "data")
            return SELECTED in claim["metadata"].get("annotations", {})

        await box.until(node_is_chosen, what="the claim knows its node")
        await box.settled()
        claim = await box.get("pvc", "data")
        chosen = claim["metadata"]["annotations"][SELECTED]
        assert "nodeName" not in (await box.get("pod", "writes"))["spec"]

        assert isinstance(box.backend, Kube)
        await box.backend.admin.create(VOLUMES, volume_on(chosen, claim))

        async def runs() -> bool:
            return str((await box.get("pod", "writes"))["status"]["phase"]) == "Running"

        await box.until(runs, timeout_s=30, what="the pod runs once the volume is there")
        assert (await box.get("pod", "writes"))["spec"]["nodeName"] == chosen
        await box.kubectl("delete", "pv", "made-by-hand", "--wait=false")


LOCAL_CLASS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
"""


def local_claim(name: str) -> str:
    claim = LATE_CLASS.partition("---")[2]
    return claim.replace("name: data", f"name: {name}").replace("Name: late", "Name: local")


def local_volume(name: str, node: str) -> str:
    made = volume_on(node, {"metadata": {"name": "none", "uid": "none"}})
    del made["spec"]["claimRef"], made["spec"]["hostPath"]
    made["metadata"]["name"] = name
    made["spec"] |= {"local": {"path": f"/disks/{name}"}, "storageClassName": "local"}
    return json.dumps(made)


async def test_who_claims_a_local_disk_runs_on_its_node() -> None:
    """Two disks on the second and the third node: a pod and a queued job get one each, and a third waits."""
    async with machine() as box:
        node = NODE.replace("node-1,", "node-1, labels: {kubernetes.io/hostname: node-1},")
        names = ("node-1", "node-2", "node-3")
        await box.apply("---".join(node.replace("node-1", name) for name in names) + "---" + QUEUE)
        await box.apply(LOCAL_CLASS)
        for number in (2, 3):
            await box.apply(local_volume(f"disk-{number}", f"node-{number}"))
        for name in ("one", "two", "three"):
            await box.apply(local_claim(name))

        await box.apply(with_claim(pod("one"), "one"))
        await box.settled()
        asks = json.loads(with_claim(pod("two"), "two"))["spec"]["volumes"]
        await box.apply(changed(job("two"), "spec", "template", "spec", "volumes", asks))

        async def both_run() -> bool:
            return await count_running(box.client, 2)

        await box.until(both_run, timeout_s=30, what="both run on the nodes of their disks")
        found = {p["spec"]["nodeName"] for p in await box.list("pods", "default")}
        assert found == {"node-2", "node-3"}
        for claim in ("one", "two"):
            volume = (await box.get("pvc", claim))["spec"]["volumeName"]
            assert volume in ("disk-2", "disk-3")

        await box.apply(with_claim(pod("three"), "three"))
        await box.settled()
        waits = await box.get("pod", "three")
        (said,) = [c for c in waits["status"]["conditions"] if c["type"] == "PodScheduled"]
        assert said["message"].startswith(
            "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind."
        )
        await box.apply(local_volume("disk-1", "node-1"))

        async def three_run() -> bool:
            return await count_running(box.client, 3)

        await box.until(three_run, timeout_s=30, what="a new disk is found")
        assert (await box.get("pod", "three"))["spec"]["nodeName"] == "node-1"


async def test_what_a_kubelet_refuses_is_placed_anew() -> None:
    async with machine() as box:
        await box.apply(NODE + "---" + QUEUE)
        await box.apply(job("refused"))
        await box.settled()
        (first,) = await box.list("pods")
        # Somebody else was faster: the kubelet has no room for what was bound to it.
        says = {"status": {"phase": "Failed", "reason": "OutOfcpu", "message": "no room"}}
        assert isinstance(box.backend, Kube)
        await box.backend.admin.patch(
            PODS, first["metadata"]["name"], says, "default", subresource="status"
        )

        async def another_runs() -> bool:
            alive = [p for p in await box.list("pods") if p["status"]["phase"] == "Running"]
            return [p["metadata"]["uid"] for p in alive] not in ([], [first["metadata"]["uid"]])

        await box.until(another_runs, timeout_s=60, what="another pod runs")
        (found,) = await box.list("workloads")
        assert not any(c["type"] == "Evicted" for c in found["status"]["conditions"])


async def bound_by_another(box: Machine, cpu: str) -> None:
    """A pod of somebody else's scheduler, on our node."""
    text = changed(pod("theirs"), "spec", "schedulerName", "another-scheduler")
    container = json.loads(text)["spec"]["containers"][0] | {
        "resources": {"requests": {"cpu": cpu}}
    }
    text = changed(text, "spec", "containers", [container])
    await box.apply(changed(text, "spec", "nodeName", "node-1"))


async def test_pods_of_other_schedulers_take_room_and_are_left_alone() -> None:
    async with machine() as box:
        await box.apply(NODE)
        await box.apply(
            "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 1000\n"
        )
        await bound_by_another(box, "6")
        await box.settled()
        asks = changed(pod("asks"), "spec", "priorityClassName", "high")
        wants = json.loads(asks)["spec"]["containers"][0] | {
            "resources": {"requests": {"cpu": "4"}}
        }
        await box.apply(changed(asks, "spec", "containers", [wants]))
        await box.settled()
        found = await box.get("pod", "asks")
        (said,) = [c for c in found["status"]["conditions"] if c["type"] == "PodScheduled"]
        assert said["message"].startswith("0/1 nodes are available: 1 Insufficient cpu.")
        theirs = await box.get("pod", "theirs")
        assert "deletionTimestamp" not in theirs["metadata"]
        await box.kubectl("delete", "pod", "theirs", "--grace-period=0", "--force")

        async def runs() -> bool:
            return str((await box.get("pod", "asks"))["status"]["phase"]) == "Running"

        await box.until(runs, what="the pod takes the room that became free")


async def test_who_leaves_placing_to_others_gets_quota_and_no_node() -> None:
    async with machine() as box:
        await box.apply(NODE + "---" + QUEUE)
        external = changed(
            job("elsewhere"), "metadata", "labels", "makeway.dev/placement", "external"
        )
        template = {"makeway.dev/placement": "external"}
        await box.apply(changed(external, "spec", "template", "metadata", "labels", template))
        await box.settled()
        (found,) = await box.list("workloads")
        states = {c["type"]: c["status"] for c in found["status"]["conditions"]}
        assert states["Admitted"] == "True"
        (one,) = await box.list("pods")
        assert one["spec"]["schedulerName"] == "default-scheduler"
        assert "nodeName" not in one["spec"]
