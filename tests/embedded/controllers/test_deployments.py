from __future__ import annotations

from typing import Any

import pytest

from makeway.client.resource import Object
from makeway.control.clock import timestamp
from makeway.embedded.controllers import deployments, replicasets
from makeway.embedded.controllers.plan import Create, Delete, Patch, Plan, Tell
from tests.embedded.controllers.builders import NOW, pod


def deployment(image: str = "one", *, replicas: int = 4, **spec: Any) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "a", "uid": "d", "generation": 1},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": image}]},
            },
            **spec,
        },
        "status": {},
    }


def made(plan: Plan) -> list[Object]:
    return [each.obj for each in plan.actions if isinstance(each, Create)]


def sizes(plan: Plan) -> dict[str, int]:
    return {
        each.obj["metadata"]["name"]: each.body["spec"]["replicas"]
        for each in plan.actions
        if isinstance(each, Patch) and "replicas" in (each.body.get("spec") or {})
    }


def status(plan: Plan) -> Object:
    for each in plan.actions:
        if isinstance(each, Patch) and each.subresource == "status" and "status" in each.body:
            return dict(each.body["status"])
    return {}


def replica_set(
    owner: Object, name: str, replicas: int, available: int | None = None, *, revision: int = 1
) -> Object:
    template = owner["spec"]["template"]
    labels = {**template["metadata"]["labels"], "pod-template-hash": name}
    ready = replicas if available is None else available
    return {
        "metadata": {
            "name": name,
            "namespace": "a",
            "uid": name,
            "annotations": {"deployment.kubernetes.io/revision": str(revision)},
            "creationTimestamp": timestamp(NOW + revision),
        },
        "spec": {"replicas": replicas, "template": {**template, "metadata": {"labels": labels}}},
        "status": {"replicas": replicas, "readyReplicas": ready, "availableReplicas": ready},
    }


def test_the_first_set_is_made_whole() -> None:
    plan = deployments.reconcile(deployment(), [], NOW)
    [first] = made(plan)
    hashed = first["metadata"]["labels"]["pod-template-hash"]
    assert first["metadata"]["name"] == f"web-{hashed}"
    assert first["spec"]["replicas"] == 4
    assert first["spec"]["selector"]["matchLabels"] == {"app": "web", "pod-template-hash": hashed}
    assert first["spec"]["template"]["metadata"]["labels"]["pod-template-hash"] == hashed
    told = [each.message for each in plan.actions if isinstance(each, Tell)]
    assert told == [f"Scaled up replica set web-{hashed} from 0 to 4"]


def test_rolling_grows_the_new_and_shrinks_the_old_within_bounds() -> None:
    before, after = deployment("one"), deployment("two")
    old = replica_set(before, "old", 4)
    [new] = made(deployments.reconcile(after, [old], NOW))
    assert new["spec"]["replicas"] == 1  # 25 % of 4 above
    assert new["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"
    fresh = replica_set(after, "new", 1, 0, revision=2)
    assert sizes(deployments.reconcile(after, [old, fresh], NOW)) == {"old": 3}
    ready = replica_set(after, "new", 1, revision=2)
    smaller = replica_set(before, "old", 3)
    assert sizes(deployments.reconcile(after, [smaller, ready], NOW)) == {"new": 2, "old": 2}
    last = [replica_set(before, "old", 0), replica_set(after, "new", 4, revision=2)]
    done = deployments.reconcile(after, last, NOW)
    assert sizes(done) == {}
    conditions = {each["type"]: each["reason"] for each in status(done)["conditions"]}
    assert conditions == {
        "Available": "MinimumReplicasAvailable",
        "Progressing": "NewReplicaSetAvailable",
    }


def test_old_pods_that_never_came_up_are_dropped_first() -> None:
    before, after = deployment("broken"), deployment("two")
    old = replica_set(before, "old", 4, 0)
    fresh = replica_set(after, "new", 1, 0, revision=2)
    assert sizes(deployments.reconcile(after, [old, fresh], NOW))["old"] < 4


def test_recreate_waits_for_the_old_to_be_gone() -> None:
    recreate: Any = {"strategy": {"type": "Recreate"}}
    before, after = deployment("one", **recreate), deployment("two", **recreate)
    old = replica_set(before, "old", 4)
    [new] = made(deployments.reconcile(after, [old], NOW))
    assert new["spec"]["replicas"] == 0
    empty = replica_set(after, "new", 0, revision=2)
    assert sizes(deployments.reconcile(after, [old, empty], NOW)) == {"old": 0}
    going = replica_set(before, "old", 0)
    going["status"] = {"replicas": 0, "terminatingReplicas": 2}
    assert sizes(deployments.reconcile(after, [going, empty], NOW)) == {}
    going["status"] = {}
    assert sizes(deployments.reconcile(after, [going, empty], NOW)) == {"new": 4}


def test_scaling_follows_the_number() -> None:
    obj = deployment(replicas=2)
    assert sizes(deployments.reconcile(obj, [replica_set(obj, "one", 4)], NOW)) == {"one": 2}
    assert sizes(deployments.reconcile(obj, [replica_set(obj, "one", 1)], NOW)) == {"one": 2}


def test_going_back_makes_the_old_template_the_newest_revision() -> None:
    one, two = deployment("one"), deployment("two")
    sets = [replica_set(one, "old", 0), replica_set(two, "new", 4, revision=2)]
    plan = deployments.reconcile(one, sets, NOW)
    revised = [
        each.body["metadata"]["annotations"]["deployment.kubernetes.io/revision"]
        for each in plan.actions
        if isinstance(each, Patch)
        and each.obj["metadata"]["name"] == "old"
        and "spec" not in each.body
    ]
    assert revised == ["3"]


def test_history_is_limited() -> None:
    obj = deployment("new", revisionHistoryLimit=1)
    olds = [replica_set(deployment(f"v{n}"), f"v{n}", 0, revision=n) for n in (1, 2, 3)]
    plan = deployments.reconcile(obj, [*olds, replica_set(obj, "new", 4, revision=4)], NOW)
    gone = [each.obj["metadata"]["name"] for each in plan.actions if isinstance(each, Delete)]
    assert gone == ["v1", "v2"]


def test_no_progress_is_told_after_the_deadline() -> None:
    obj = deployment(progressDeadlineSeconds=60)
    sets = [replica_set(obj, "one", 4, 0)]
    first = deployments.reconcile(obj, sets, NOW)
    assert first.look_again_at == NOW + 60
    written = status(first)
    obj["status"] = {key: value for key, value in written.items() if value is not None}
    late = deployments.reconcile(obj, sets, NOW + 61)
    reasons = {each["type"]: each["reason"] for each in status(late)["conditions"]}
    assert reasons["Progressing"] == "ProgressDeadlineExceeded"


def test_nothing_changed_asks_for_nothing() -> None:
    obj = deployment()
    obj["metadata"]["annotations"] = {"deployment.kubernetes.io/revision": "1"}
    sets = [replica_set(obj, "one", 4)]
    written = status(deployments.reconcile(obj, sets, NOW))
    obj["status"] = {key: value for key, value in written.items() if value is not None}
    assert deployments.reconcile(obj, sets, NOW + 5).actions == []


@pytest.mark.parametrize(("have", "makes", "drops"), [(1, 2, 0), (3, 0, 0), (5, 0, 2)])
def test_replica_sets_keep_their_number(have: int, makes: int, drops: int) -> None:
    owner = replica_set(deployment(), "one", 3)
    pods = [pod(f"p{n}", tracked=False) for n in range(have)]
    ended = pod("failed", "Failed", tracked=False)
    plan = replicasets.reconcile(owner, [*pods, ended], NOW)
    assert len(made(plan)) == makes
    assert sum(isinstance(each, Delete) for each in plan.actions) == drops
    assert status(plan)["replicas"] == have if have != 3 else True
