"""DaemonSets: which nodes get a pod, and which pods are replaced."""

from __future__ import annotations

from typing import Any

from makeway.client.resource import Object
from makeway.embedded.controllers import daemonsets
from makeway.embedded.controllers.plan import Create, Delete, Patch, Plan
from makeway.embedded.objects import name_of
from tests.embedded.controllers.builders import pod


def node(name: str, *taints: str, **labels: str) -> Object:
    marks = [{"key": taint, "effect": "NoSchedule"} for taint in taints]
    return {"metadata": {"name": name, "labels": labels}, "spec": {"taints": marks}}


def daemons(image: str = "agent:1", **spec: Any) -> Object:
    template = {"metadata": {}, "spec": {"containers": [{"name": "c", "image": image}], **spec}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent", "namespace": "a", "uid": "u"},
        "spec": {"template": template},
    }


def on(name: str, owner: Object, phase: str = "Running", *, ready: bool = True) -> Object:
    """A pod of this owner, as it was made for a node."""
    (made,) = [a.obj for a in look(owner, [], node(name)).actions if isinstance(a, Create)]
    found = pod(f"agent-{name}", phase, ready=ready, labels=made["metadata"]["labels"])
    found["spec"]["nodeName"] = name
    return found


def look(owner: Object, pods: list[Object], *nodes: Object) -> Plan:
    return daemonsets.reconcile(owner, pods, list(nodes))


def made_for(plan: Plan) -> list[str]:
    found = [
        a.obj["spec"]["affinity"]["nodeAffinity"] for a in plan.actions if isinstance(a, Create)
    ]
    terms = [
        each["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        for each in found
    ]
    return [term[0]["matchFields"][0]["values"][0] for term in terms]


def removed(plan: Plan) -> list[str]:
    return [name_of(a.obj) for a in plan.actions if isinstance(a, Delete)]


def test_every_node_that_suits_has_one() -> None:
    nodes = [node("one"), node("two", "gpu"), node("three", disk="ssd")]
    assert made_for(look(daemons(), [], *nodes)) == ["one", "three"]
    assert made_for(look(daemons(nodeSelector={"disk": "ssd"}), [], *nodes)) == ["three"]
    tolerant = daemons(tolerations=[{"operator": "Exists"}])
    assert made_for(look(tolerant, [], *nodes)) == ["one", "three", "two"]
    assert made_for(look(daemons(), [], node("cordoned", "node.kubernetes.io/unschedulable"))) == [
        "cordoned"
    ]


def test_what_ended_or_is_out_of_place_goes() -> None:
    owner = daemons()
    failed = on("one", owner, "Failed")
    assert removed(look(owner, [failed], node("one"))) == ["agent-one"]
    stray = on("two", owner)
    assert removed(look(owner, [stray], node("two", "gpu"))) == ["agent-two"]


def test_a_new_template_replaces_one_at_a_time() -> None:
    old, new = daemons(), daemons("agent:2")
    nodes = [node("one"), node("two")]
    assert removed(look(new, [on("one", old), on("two", old)], *nodes)) == ["agent-one"]
    starting = [on("one", new, ready=False), on("two", old)]
    assert removed(look(new, starting, *nodes)) == []
    assert removed(look(new, [on("one", new), on("two", old)], *nodes)) == ["agent-two"]


def test_its_status_counts_nodes() -> None:
    owner = daemons()
    plan = look(owner, [on("one", owner), on("two", owner, ready=False)], node("one"), node("two"))
    (written,) = [a.body["status"] for a in plan.actions if isinstance(a, Patch)]
    assert written["desiredNumberScheduled"] == written["currentNumberScheduled"] == 2
    assert (written["numberReady"], written["numberUnavailable"]) == (1, 1)
