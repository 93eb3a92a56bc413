"""Create, read, change and delete objects over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from makeway.kinds.serving.replicas import ReplicaSetRules, StatefulSetRules
from tests.embedded.api.conftest import JSON_PATCH, MERGE, PODS, STRATEGIC, Api, pod

CONFIGS = "/api/v1/namespaces/default/configmaps"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/version",
        "/healthz",
        "/api",
        "/apis",
        "/openapi/v3",
        "/api/v1/pods",
        "/apis/no.such/v1",
        "/nowhere",
    ],
)
@pytest.mark.parametrize(
    "header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic abc"}]
)
async def test_every_path_asks_for_the_token(api: Api, path: str, header: dict[str, str]) -> None:
    headers = {"Authorization": ""} | header
    async with api.session.get(path, headers=headers) as answer:
        assert answer.status == 401
        assert (await answer.json())["reason"] == "Unauthorized"


async def test_version_is_that_of_kubernetes(api: Api) -> None:
    version = await api.get("/version")
    assert (version["gitVersion"], version["major"], version["minor"]) == ("v1.36.3", "1", "36")


async def test_a_created_object_is_read_back_as_answered(api: Api) -> None:
    created = await api.create(PODS, pod())
    assert await api.get(f"{PODS}/a") == created
    assert created["kind"] == "Pod"
    assert created["metadata"]["generation"] == 1


async def test_the_same_name_is_refused_twice(api: Api) -> None:
    await api.create(PODS, pod())
    code, status = await api.call("POST", PODS, pod())
    assert (code, status["reason"], status["message"]) == (
        409,
        "AlreadyExists",
        'pods "a" already exists',
    )


async def test_made_up_names_differ(api: Api) -> None:
    content = pod() | {"metadata": {"generateName": "worker-"}}
    names = {(await api.create(PODS, content))["metadata"]["name"] for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("worker-") and len(name) == 12 for name in names)


async def test_many_writers_at_once_all_get_an_answer(api: Api) -> None:
    created = await asyncio.gather(*(api.create(PODS, pod(f"p{i}")) for i in range(200)))
    versions = [int(obj["metadata"]["resourceVersion"]) for obj in created]
    assert len(set(versions)) == 200
    assert len((await api.get(PODS))["items"]) == 200


async def test_a_namespace_that_does_not_exist_is_named(api: Api) -> None:
    code, status = await api.call("POST", "/api/v1/namespaces/nowhere/pods", pod())
    assert (code, status["message"]) == (404, 'namespaces "nowhere" not found')


async def test_a_namespace_being_deleted_takes_nothing_new(api: Api) -> None:
    await api.create("/api/v1/namespaces", {"metadata": {"name": "old"}})
    await api.delete("/api/v1/namespaces/old")
    assert (await api.get("/api/v1/namespaces/old"))["status"]["phase"] == "Terminating"
    code, status = await api.call("POST", "/api/v1/namespaces/old/pods", pod())
    assert code == 403
    assert (
        "unable to create new content in namespace old because it is being terminated"
        in status["message"]
    )
    finished = {"metadata": {"name": "old"}, "spec": {"finalizers": []}}
    code, _ = await api.call("PUT", "/api/v1/namespaces/old/finalize", finished)
    assert code == 200
    assert (await api.call("GET", "/api/v1/namespaces/old"))[0] == 404


# ---- changes ----------------------------------------------------------------------------------------


async def test_a_write_that_changes_nothing_keeps_the_version(api: Api) -> None:
    created = await api.create(CONFIGS, {"metadata": {"name": "c"}, "data": {"a": "1"}})
    same = await api.patch(f"{CONFIGS}/c", {"data": {"a": "1"}})
    assert same["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_a_stale_write_is_a_conflict(api: Api) -> None:
    created = await api.create(CONFIGS, {"metadata": {"name": "c"}, "data": {"a": "1"}})
    await api.patch(f"{CONFIGS}/c", {"data": {"a": "2"}})
    created["data"] = {"a": "3"}
    code, status = await api.call("PUT", f"{CONFIGS}/c", created)
    assert (code, status["reason"]) == (409, "Conflict")
    stale = {
        "metadata": {"resourceVersion": created["metadata"]["resourceVersion"]},
        "data": {"a": "4"},
    }
    code, _ = await api.call("PATCH", f"{CONFIGS}/c", stale, content_type=MERGE)
    assert code == 409


async def test_generation_follows_the_spec_and_not_the_rest(api: Api) -> None:
    path = "/apis/batch/v1/namespaces/default/jobs"
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    await api.create(path, {"metadata": {"name": "j"}, "spec": {"template": template}})
    labelled = await api.patch(f"{path}/j", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 1
    changed = await api.patch(f"{path}/j", {"spec": {"parallelism": 3}})
    assert changed["metadata"]["generation"] == 2
    reported = await api.patch(f"{path}/j/status", {"status": {"active": 1}})
    assert reported["metadata"]["generation"] == 2


async def test_status_and_spec_are_written_apart(api: Api) -> None:
    await api.create(PODS, pod())
    through_object = await api.patch(f"{PODS}/a", {"status": {"phase": "Running"}})
    assert through_object["status"]["phase"] == "Pending"
    through_status = await api.patch(
        f"{PODS}/a/status", {"metadata": {"labels": {"x": "y"}}, "status": {"phase": "Running"}}
    )
    assert through_status["status"]["phase"] == "Running"
    assert through_status["metadata"]["labels"] == {"x": "y"}
    flavors = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues"
    await api.create(flavors, {"metadata": {"name": "q"}})
    both = {"metadata": {"labels": {"x": "y"}}, "status": {"pendingWorkloads": 1}}
    custom = await api.patch(f"{flavors}/q/status", both)
    assert custom["status"] == {"pendingWorkloads": 1}
    assert "labels" not in custom["metadata"]


async def test_conditions_merge_by_type_in_a_strategic_patch(api: Api) -> None:
    await api.create(PODS, pod())

    async def add(kind: str) -> Any:
        condition = {"type": kind, "status": "True"}
        return await api.patch(
            f"{PODS}/a/status", {"status": {"conditions": [condition]}}, STRATEGIC
        )

    await add("First")
    result = await add("Second")
    assert [c["type"] for c in result["status"]["conditions"]] == ["First", "Second"]


async def test_custom_resources_do_not_take_strategic_patches(api: Api) -> None:
    path = "/apis/kueue.x-k8s.io/v1beta2/resourceflavors"
    await api.create(path, {"metadata": {"name": "f"}})
    code, status = await api.call("PATCH", f"{path}/f", {}, content_type=STRATEGIC)
    assert (code, status["reason"]) == (415, "UnsupportedMediaType")


async def test_a_json_patch_whose_test_fails_changes_nothing(api: Api) -> None:
    await api.create(CONFIGS, {"metadata": {"name": "c"}, "data": {"a": "1"}})
    operations = [
        {"op": "test", "path": "/data/a", "value": "2"},
        {"op": "replace", "path": "/data/a", "value": "3"},
    ]
    code, _ = await api.call("PATCH", f"{CONFIGS}/c", operations, content_type=JSON_PATCH)
    assert code == 422
    assert (await api.get(f"{CONFIGS}/c"))["data"] == {"a": "1"}


async def test_a_dry_run_answers_and_stores_nothing(api: Api) -> None:
    answered = await api.create(PODS, pod(), dryRun="All")
    assert answered["spec"]["restartPolicy"] == "Always"
    assert (await api.call("GET", f"{PODS}/a"))[0] == 404
    await api.create(PODS, pod())
    changed = await api.patch(f"{PODS}/a", {"metadata": {"labels": {"a": "b"}}}, dryRun="All")
    assert changed["metadata"]["labels"] == {"a": "b"}
    await api.delete(f"{PODS}/a", dryRun="All")
    assert "labels" not in (await api.get(f"{PODS}/a"))["metadata"]


async def test_unknown_fields_are_refused_warned_about_or_dropped(api: Api) -> None:
    odd = pod(bogus=1)
    code, status = await api.call("POST", PODS, odd, fieldValidation="Strict")
    assert code == 400
    assert status["message"] == (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.bogus"'
    )
    created = await api.create(PODS, odd, fieldValidation="Warn")
    assert api.warnings == ['299 - "unknown field \\"spec.bogus\\""']
    assert "bogus" not in created["spec"]
    await api.create(PODS, odd | {"metadata": {"name": "quiet"}}, fieldValidation="Ignore")
    assert api.warnings == []


async def test_wrong_types_are_told_in_the_words_of_the_real_server(api: Api) -> None:
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    code, status = await api.call("POST", path, {"metadata": {"name": "p"}, "value": "high"})
    assert code == 400
    assert status["message"] == (
        'PriorityClass in version "v1" cannot be handled as a PriorityClass: json: cannot unmarshal string'
        " into Go struct field PriorityClass.value of type int32"
    )


async def test_yaml_is_read_too(api: Api) -> None:
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: y\ndata:\n  a: b\n"
    code, content = await api.call("POST", CONFIGS, text, content_type="application/yaml")
    assert (code, content["data"]) == (201, {"a": "b"})


async def test_garbage_is_a_bad_request(api: Api) -> None:
    for body in (b"{", b"[]", b'"x"', b"\xff\xfe"):
        code, status = await api.call("POST", CONFIGS, body)
        assert (code, status["reason"]) == (400, "BadRequest"), body


# ---- deletion ---------------------------------------------------------------------------------------


async def test_a_pod_without_a_node_goes_at_once(api: Api) -> None:
    await api.create(PODS, pod())
    await api.delete(f"{PODS}/a")
    assert (await api.call("GET", f"{PODS}/a"))[0] == 404


async def bound(api: Api, name: str = "a", **spec: Any) -> None:
    await api.create(PODS, pod(name, **spec))
    await api.create(f"{PODS}/{name}/binding", {"target": {"kind": "Node", "name": "n1"}})


async def test_a_pod_on_a_node_has_its_grace_and_goes_when_its_node_says_so(api: Api) -> None:
    await bound(api)
    deleted = await api.delete(f"{PODS}/a")
    assert deleted["metadata"]["deletionGracePeriodSeconds"] == 30
    assert deleted["metadata"]["generation"] == 2
    again = await api.delete(f"{PODS}/a", {"gracePeriodSeconds": 5})
    assert again["metadata"]["deletionGracePeriodSeconds"] == 5
    longer = await api.delete(f"{PODS}/a", {"gracePeriodSeconds": 60})
    assert longer["metadata"]["deletionGracePeriodSeconds"] == 5
    await api.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
    assert (await api.call("GET", f"{PODS}/a"))[0] == 404


async def test_a_finalizer_holds_an_object_until_it_is_taken_away(api: Api) -> None:
    content = {"metadata": {"name": "c", "finalizers": ["example.com/hold"]}}
    await api.create(CONFIGS, content)
    held = await api.delete(f"{CONFIGS}/c")
    assert held["metadata"]["deletionTimestamp"]
    code, status = await api.call(
        "PATCH",
        f"{CONFIGS}/c",
        {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}},
        content_type=MERGE,
    )
    assert (code, status["reason"]) == (422, "Invalid")
    await api.patch(f"{CONFIGS}/c", {"metadata": {"finalizers": None}})
    assert (await api.call("GET", f"{CONFIGS}/c"))[0] == 404


async def test_a_pod_with_grace_stays_when_only_its_finalizer_goes(api: Api) -> None:
    await api.create(PODS, pod() | {"metadata": {"name": "a", "finalizers": ["example.com/hold"]}})
    await api.create(f"{PODS}/a/binding", {"target": {"name": "n1"}})
    await api.delete(f"{PODS}/a")
    await api.patch(f"{PODS}/a", {"metadata": {"finalizers": None}})
    assert (await api.get(f"{PODS}/a"))["metadata"]["deletionTimestamp"]


@pytest.mark.parametrize(
    ("policy", "finalizer"), [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")]
)
async def test_a_propagation_policy_is_left_for_the_collector(
    api: Api, policy: str, finalizer: str
) -> None:
    await api.create(CONFIGS, {"metadata": {"name": "c"}})
    left = await api.delete(f"{CONFIGS}/c", {"propagationPolicy": policy})
    assert left["metadata"]["finalizers"] == [finalizer]


async def test_a_deletion_of_another_object_of_that_name_is_a_conflict(api: Api) -> None:
    await api.create(PODS, pod())
    code, status = await api.call("DELETE", f"{PODS}/a", {"preconditions": {"uid": "other"}})
    assert (code, status["reason"]) == (409, "Conflict")


async def test_a_collection_is_deleted_by_label(api: Api) -> None:
    for name, app in (("a", "x"), ("b", "y"), ("c", "x")):
        await api.create(CONFIGS, {"metadata": {"name": name, "labels": {"app": app}}})
    await api.delete(CONFIGS, labelSelector="app=x")
    assert [item["metadata"]["name"] for item in (await api.get(CONFIGS))["items"]] == ["b"]


# ---- subresources -----------------------------------------------------------------------------------


async def test_a_pod_is_bound_once(api: Api) -> None:
    await bound(api)
    assert (await api.get(f"{PODS}/a"))["spec"]["nodeName"] == "n1"
    code, status = await api.call("POST", f"{PODS}/a/binding", {"target": {"name": "n2"}})
    assert code == 409
    assert 'pod a is already assigned to node "n1"' in status["message"]


async def test_a_gated_pod_is_not_bound(api: Api) -> None:
    await api.create(PODS, pod(schedulingGates=[{"name": "example.com/wait"}]))
    code, status = await api.call("POST", f"{PODS}/a/binding", {"target": {"name": "n1"}})
    assert code == 409
    assert "schedulingGates" in status["message"]


async def test_an_eviction_asks_the_budget(api: Api) -> None:
    await api.create(PODS, pod() | {"metadata": {"name": "a", "labels": {"app": "x"}}})
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    await api.create(budgets, {"metadata": {"name": "b"}, "spec": spec})
    code, status = await api.call("POST", f"{PODS}/a/eviction", {"metadata": {"name": "a"}})
    assert (code, status["reason"]) == (429, "TooManyRequests")
    await api.patch(f"{budgets}/b/status", {"status": {"disruptionsAllowed": 1}})
    await api.create(f"{PODS}/a/eviction", {"metadata": {"name": "a"}})
    assert (await api.call("GET", f"{PODS}/a"))[0] == 404


async def test_scale_reads_and_writes_replicas(api: Api) -> None:
    models = "/apis/kubeai.org/v1/namespaces/default/models"
    spec = {"url": "hf://a/b", "engine": "VLLM", "features": ["TextGeneration"], "replicas": 1}
    await api.create(models, {"metadata": {"name": "m"}, "spec": spec})
    scaled = await api.patch(f"{models}/m/scale", {"spec": {"replicas": 4}})
    assert (scaled["kind"], scaled["spec"]["replicas"]) == ("Scale", 4)
    assert (await api.get(f"{models}/m"))["spec"]["replicas"] == 4


async def test_events_are_one_store_for_both_groups(api: Api) -> None:
    event = {
        "metadata": {"name": "e1"},
        "regarding": {"kind": "Pod", "name": "a", "namespace": "default", "uid": "u"},
        "note": "Preempted by pod b on node n",
        "reason": "Preempted",
        "action": "Preempting",
        "reportingController": "makeway",
        "reportingInstance": "makeway-1",
        "eventTime": "2026-01-02T03:04:05.000006Z",
        "type": "Normal",
    }
    await api.create("/apis/events.k8s.io/v1/namespaces/default/events", event)
    core = await api.get(
        "/api/v1/namespaces/default/events", fieldSelector="involvedObject.uid=u,reason=Preempted"
    )
    assert core["items"][0]["message"] == "Preempted by pod b on node n"
    other = await api.get(
        "/apis/events.k8s.io/v1/namespaces/default/events", fieldSelector="regarding.uid=u"
    )
    assert other["items"][0]["note"] == "Preempted by pod b on node n"
    assert other["items"][0]["eventTime"] == "2026-01-02T03:04:05.000006Z"


# ---- lists ------------------------------------------------------------------------------------------


async def test_a_list_comes_in_pages(api: Api) -> None:
    for name in "abcde":
        await api.create(CONFIGS, {"metadata": {"name": name}})
    names: list[str] = []
    query = {"limit": "2"}
    while True:
        page = await api.get(CONFIGS, **query)
        names += [item["metadata"]["name"] for item in page["items"]]
        if not page["metadata"].get("continue"):
            break
        query["continue"] = page["metadata"]["continue"]
    assert names == list("abcde")
    code, status = await api.call("GET", CONFIGS, **{"continue": "garbage"})
    assert (code, status["reason"]) == (400, "BadRequest")


async def test_a_table_comes_whole_where_nobody_chose_a_page(api: Api) -> None:
    names = [f"c{number:03}" for number in range(510)]
    for name in names:
        await api.create(CONFIGS, {"metadata": {"name": name}})
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}

    async def shown(limit: str) -> tuple[list[str], bool]:
        async with api.session.get(CONFIGS, params={"limit": limit}, headers=accept) as answer:
            table = await answer.json()
        return [row["cells"][0] for row in table["rows"]], "continue" in table["metadata"]

    assert await shown("500") == (names, False)  # as kubectl asks
    assert await shown("499") == (names[:499], True)  # as somebody chose
    assert len((await api.get(CONFIGS, limit="500"))["items"]) == 500  # programs page as ever


async def test_a_page_says_how_many_are_left_unless_a_selector_hides_it(api: Api) -> None:
    for name in "cab":
        await api.create(CONFIGS, {"metadata": {"name": name, "labels": {"app": "x"}}})
    page = await api.get(CONFIGS, limit="1")
    assert page["metadata"]["remainingItemCount"] == 2
    selected = await api.get(CONFIGS, limit="1", labelSelector="app=x")
    assert "remainingItemCount" not in selected["metadata"]
    assert selected["metadata"]["continue"]


async def test_what_comes_and_goes_between_pages_keeps_the_order(api: Api) -> None:
    for name in ("b", "d", "f"):
        await api.create(CONFIGS, {"metadata": {"name": name}})
    page = await api.get(CONFIGS, limit="1")
    await api.create(CONFIGS, {"metadata": {"name": "a"}})
    await api.create(CONFIGS, {"metadata": {"name": "c"}})
    await api.delete(f"{CONFIGS}/d")
    rest = await api.get(CONFIGS, **{"continue": page["metadata"]["continue"]})
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c", "f"]
    assert rest["metadata"]["resourceVersion"] == page["metadata"]["resourceVersion"]


async def test_lists_are_narrowed_by_fields_and_labels(api: Api) -> None:
    await bound(api, "on-node")
    await api.create(PODS, pod("waiting", schedulerName="other"))

    async def names(**query: str) -> list[str]:
        return [
            item["metadata"]["name"] for item in (await api.get("/api/v1/pods", **query))["items"]
        ]

    assert await names(fieldSelector="spec.nodeName=n1") == ["on-node"]
    assert await names(fieldSelector="spec.nodeName=,spec.schedulerName=other") == ["waiting"]
    assert await names(fieldSelector="status.phase!=Pending") == []
    assert await names(fieldSelector="metadata.name=waiting") == ["waiting"]
    code, status = await api.call("GET", "/api/v1/pods", fieldSelector="spec.colour=red")
    assert (code, status["message"]) == (400, "field label not supported: spec.colour")


async def test_built_in_items_leave_out_their_kind_and_custom_ones_do_not(api: Api) -> None:
    assert "kind" not in (await api.get("/api/v1/namespaces"))["items"][0]
    await api.create("/apis/kueue.x-k8s.io/v1beta2/resourceflavors", {"metadata": {"name": "f"}})
    assert (await api.get("/apis/kueue.x-k8s.io/v1beta2/resourceflavors"))["items"][0][
        "kind"
    ] == "ResourceFlavor"


async def test_unknown_resources_and_groups_are_not_found(api: Api) -> None:
    code, status = await api.call("GET", "/api/v1/gizmos")
    assert (code, status["reason"]) == (404, "NotFound")
    code, text = await api.call("GET", "/apis/no.such.group/v1/things")
    assert (code, text) == (404, "404 page not found\n")


async def test_a_default_that_is_new_in_this_version_is_no_change_of_a_fixed_field(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"a": "b"}
    pods = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    spec = {
        "selector": {"matchLabels": labels},
        "template": pods,
        "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": asked}],
    }
    path = "/apis/apps/v1/namespaces/default/statefulsets"
    with monkeypatch.context() as earlier:
        earlier.setattr(StatefulSetRules, "default", ReplicaSetRules.default)
        await api.create(path, {"metadata": {"name": "s"}, "spec": spec})
    changed = await api.patch(f"{path}/s", {"spec": {"replicas": 3}})
    assert changed["spec"]["replicas"] == 3
