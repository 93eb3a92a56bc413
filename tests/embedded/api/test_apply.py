"""Server-side apply: who owns what, conflicts, what is dropped, and what untracked objects cost."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from makeway.embedded.api.apply import merge_values
from makeway.embedded.api.ownership import from_fields, paths_of, shown, to_fields
from makeway.kinds.serving.schemas import definitions
from tests.embedded.api.conftest import APPLY, JSON_PATCH, Api

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
DEPLOYMENT = "io.k8s.api.apps.v1.Deployment"


def deployment(image: str = "one", replicas: int | None = 1, **labels: str) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": image}]},
        },
    }
    if replicas is not None:
        spec["replicas"] = replicas
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": labels},
        "spec": spec,
    }


async def apply(api: Api, content: dict[str, Any], manager: str, **query: str) -> tuple[int, Any]:
    return await api.call(
        "PATCH", f"{DEPLOYMENTS}/web", content, content_type=APPLY, fieldManager=manager, **query
    )


async def test_an_apply_creates(api: Api) -> None:
    code, content = await apply(api, deployment(), "me")
    assert code == 201
    (entry,) = content["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("me", "Apply")
    assert entry["fieldsV1"]["f:spec"]["f:replicas"] == {}
    assert "f:revisionHistoryLimit" not in entry["fieldsV1"]["f:spec"]


async def test_the_same_apply_again_changes_nothing(api: Api) -> None:
    _, first = await apply(api, deployment(), "me")
    code, second = await apply(api, deployment(), "me")
    assert code == 200
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_field_of_somebody_else_is_a_conflict_unless_forced(api: Api) -> None:
    await apply(api, deployment(), "me")
    code, status = await apply(api, deployment("two"), "you")
    assert (code, status["reason"]) == (409, "Conflict")
    assert status["message"] == (
        'Apply failed with 1 conflict: conflict with "me": .spec.template.spec.containers[name="c"].image'
    )
    assert status["details"]["causes"][0]["reason"] == "FieldManagerConflict"
    code, content = await apply(api, deployment("two"), "you", force="true")
    assert code == 200
    mine = next(e for e in content["metadata"]["managedFields"] if e["manager"] == "me")
    container = mine["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"c"}']
    assert "f:image" not in container


async def test_equal_values_are_shared(api: Api) -> None:
    await apply(api, deployment(), "me")
    code, _ = await apply(api, deployment(), "you")
    assert code == 200


async def test_what_is_no_longer_declared_goes(api: Api) -> None:
    await apply(api, deployment(a="1", b="2"), "me")
    _, content = await apply(api, deployment(a="1"), "me")
    assert content["metadata"]["labels"] == {"a": "1"}


async def test_what_somebody_else_also_declares_stays(api: Api) -> None:
    await apply(api, deployment(a="1"), "me")
    await apply(api, deployment(a="1"), "you")
    _, content = await apply(api, deployment(), "me")
    assert content["metadata"]["labels"] == {"a": "1"}


async def test_an_update_takes_ownership(api: Api) -> None:
    await apply(api, deployment(), "me")
    await api.patch(f"{DEPLOYMENTS}/web", {"spec": {"replicas": 5}}, fieldManager="scaler")
    code, status = await apply(api, deployment(), "me")
    assert code == 409
    assert 'conflict with "scaler"' in status["message"]
    code, content = await apply(api, deployment(replicas=None), "me")
    assert (code, content["spec"]["replicas"]) == (200, 5)


async def test_nothing_is_tracked_before_the_first_apply(api: Api) -> None:
    created = await api.create(DEPLOYMENTS, deployment())
    assert "managedFields" not in created["metadata"]
    code, status = await apply(api, deployment("two"), "me")
    assert code == 409
    assert 'conflict with "before-first-apply"' in status["message"]


async def test_managed_fields_can_be_rewritten(api: Api) -> None:
    await apply(api, deployment(), "me")
    patch = [{"op": "replace", "path": "/metadata/managedFields", "value": []}]
    content = await api.patch(f"{DEPLOYMENTS}/web", patch, JSON_PATCH)
    assert "managedFields" not in content["metadata"]


async def test_status_is_applied_apart(api: Api) -> None:
    await api.create(DEPLOYMENTS, deployment())
    content = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "status": {"replicas": 3},
    }
    code, answered = await api.call(
        "PATCH", f"{DEPLOYMENTS}/web/status", content, content_type=APPLY, fieldManager="controller"
    )
    assert (code, answered["status"]["replicas"], answered["spec"]["replicas"]) == (200, 3, 1)
    entry = next(e for e in answered["metadata"]["managedFields"] if e["manager"] == "controller")
    assert entry["subresource"] == "status"


async def test_a_manager_is_required(api: Api) -> None:
    code, status = await api.call("PATCH", f"{DEPLOYMENTS}/web", deployment(), content_type=APPLY)
    assert code == 422
    assert "fieldManager: Required value" in status["message"]


# ---- the arithmetic of fields -----------------------------------------------------------------------

steps = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"y"'])
paths = st.sets(st.lists(steps, min_size=1, max_size=4).map(tuple), max_size=12)


@given(paths)
def test_fields_survive_the_wire(found: set[tuple[str, ...]]) -> None:
    assert from_fields(to_fields(found)) == found


images = st.text("abc", max_size=3)
# Names once each and in any order, without throwing away what repeats one.
containers = st.builds(
    lambda order, found: [
        {"name": name, **({"image": found[name]} if found[name] is not None else {})}
        for name in order
        if name in found
    ],
    st.permutations("abc"),
    st.fixed_dictionaries({}, optional=dict.fromkeys("abc", st.none() | images)),
)
specs = st.builds(
    lambda found, replicas: {
        "metadata": {"name": "x"},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": found}}},
    },
    containers,
    st.integers(0, 3),
)


definitions()  # unpacked once, before any example is timed


@given(specs, specs)
def test_what_is_applied_is_there_afterwards(live: dict[str, Any], applied: dict[str, Any]) -> None:
    known = definitions()
    schema = known.get(DEPLOYMENT)
    merged = merge_values(live, applied, schema, known)
    assert merge_values(merged, applied, schema, known) == merged
    assert paths_of(applied, schema, known) <= paths_of(merged, schema, known) | {
        ("f:spec", "f:template", "f:spec", "f:containers")
    }


def test_paths_are_shown_as_people_write_them() -> None:
    path = ("f:spec", "f:containers", 'k:{"name":"c"}', "f:args", 'v:"x"')
    assert shown(path) == '.spec.containers[name="c"].args[="x"]'


async def test_what_kubectl_apply_had_noted_is_its_own_and_the_rest_is_not(api: Api) -> None:
    """kubectl hands over to server-side apply what its own manager owns; nothing else may go with it."""
    noted = deployment()
    made = deployment()
    note = "kubectl.kubernetes.io/last-applied-configuration"
    made["metadata"]["annotations"] = {note: json.dumps(noted)}
    made["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "MODE", "value": "fast"}]
    await api.create(DEPLOYMENTS, made)
    _, applied = await apply(api, noted, "me", force="true")
    owners = {entry["manager"]: entry["fieldsV1"] for entry in applied["metadata"]["managedFields"]}
    assert list(owners["kubectl-client-side-apply"]["f:metadata"]["f:annotations"]) == [f"f:{note}"]
    container = ("f:spec", "f:template", "f:spec", "f:containers", 'k:{"name":"c"}')
    env = (*container, "f:env", 'k:{"name":"MODE"}', "f:value")
    assert env in from_fields(owners["before-first-apply"])
    assert env not in from_fields(owners["kubectl-client-side-apply"])


async def test_an_item_that_is_no_longer_applied_goes_whole(api: Api) -> None:
    first = deployment()
    first["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "MODE", "value": "fast"}]
    first["spec"]["template"]["metadata"]["annotations"] = {"note": "x"}
    await apply(api, first, "me")
    _, second = await apply(api, deployment(), "me")
    assert "env" not in second["spec"]["template"]["spec"]["containers"][0]
    assert "annotations" not in second["spec"]["template"]["metadata"]


async def test_an_item_that_somebody_else_owns_a_field_of_keeps_its_key(api: Api) -> None:
    def with_port(**port: Any) -> dict[str, Any]:
        made = deployment()
        made["spec"]["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 80, **port}]
        return made

    await apply(api, with_port(name="web"), "me")
    await apply(api, with_port(hostPort=8080), "you")
    _, left = await apply(api, deployment(), "me")
    (port,) = left["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert port == {"containerPort": 80, "protocol": "TCP", "hostPort": 8080}
