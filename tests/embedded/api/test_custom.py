"""Kinds that users bring by CustomResourceDefinition."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from makeway.embedded.server import serve
from makeway.kinds.serving.custom import find
from tests.embedded.api.conftest import MERGE, Api, connect

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GADGETS = "/apis/example.com/v1/namespaces/default/gadgets"

SPEC = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1},
        "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "replicas": {"type": "integer", "format": "int32"},
    },
}


def definition() -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "spec": copy.deepcopy(SPEC),
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
            },
        },
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {
                "name": "Ready",
                "type": "string",
                "jsonPath": '.status.conditions[?(@.type=="Ready")].status',
            },
        ],
    }
    names = {"kind": "Gadget", "plural": "gadgets", "shortNames": ["gd"]}
    return {
        "metadata": {"name": "gadgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


async def test_a_new_kind_is_served_when_its_definition_is_answered(api: Api) -> None:
    created = await api.create(DEFINITIONS, definition())
    assert [c["type"] for c in created["status"]["conditions"]] == ["NamesAccepted", "Established"]
    gadget = await api.create(
        GADGETS, {"metadata": {"name": "g"}, "spec": {"size": 2, "free": {"any": [1]}}}
    )
    assert gadget["spec"] == {"size": 2, "free": {"any": [1]}, "colour": "red"}
    resources = await api.get("/apis/example.com/v1")
    assert [r["name"] for r in resources["resources"]] == [
        "gadgets",
        "gadgets/scale",
        "gadgets/status",
    ]
    await api.patch(f"{GADGETS}/g/scale", {"spec": {"replicas": 3}})
    assert (await api.get(f"{GADGETS}/g"))["spec"]["replicas"] == 3
    document = await api.get("/openapi/v3/apis/example.com/v1")
    assert "com.example.v1.Gadget" in document["components"]["schemas"]


async def test_its_schema_is_honoured(api: Api) -> None:
    await api.create(DEFINITIONS, definition())

    async def message(spec: dict[str, Any], **query: str) -> str:
        code, status = await api.call(
            "POST", GADGETS, {"metadata": {"name": "g"}, "spec": spec}, **query
        )
        assert code >= 400
        return str(status["message"])

    assert "spec.size: Required value" in await message({})
    assert 'Unsupported value: "green"' in await message({"size": 1, "colour": "green"})
    assert "should be greater than or equal to 1" in await message({"size": 0})
    assert 'unknown field "spec.odd"' in await message(
        {"size": 1, "odd": 1}, fieldValidation="Strict"
    )
    assert 'spec.size in body must be of type integer: "string"' in await message({"size": "x"})


async def test_columns_come_from_the_definition(api: Api) -> None:
    await api.create(DEFINITIONS, definition())
    await api.create(GADGETS, {"metadata": {"name": "g"}, "spec": {"size": 2}})
    ready = {
        "status": {
            "conditions": [
                {"type": "Other", "status": "False"},
                {"type": "Ready", "status": "True"},
            ]
        }
    }
    await api.patch(f"{GADGETS}/g/status", ready)
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    async with api.session.get(GADGETS, headers=accept) as answer:
        table = await answer.json()
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Size", "Ready"]
    assert table["rows"][0]["cells"] == ["g", 2, "True"]


async def test_it_is_still_served_after_a_restart_and_gone_with_its_definition(
    tmp_path: Path,
) -> None:
    server = await serve(tmp_path)
    async with await connect(server) as session:
        api = Api(server, session)
        await api.create(DEFINITIONS, definition())
        await api.create(GADGETS, {"metadata": {"name": "g"}, "spec": {"size": 2}})
    await server.stop()
    server = await serve(tmp_path)
    async with await connect(server) as session:
        api = Api(server, session)
        assert (await api.get(f"{GADGETS}/g"))["spec"]["size"] == 2
        await api.delete(f"{DEFINITIONS}/gadgets.example.com")
        assert (await api.call("GET", GADGETS))[0] == 404
        await api.create(DEFINITIONS, definition())
        assert (await api.get(GADGETS))["items"] == []
    await server.stop()


async def test_a_definition_of_a_built_in_kind_changes_nothing(api: Api) -> None:
    content = definition()
    content["metadata"]["name"] = "clusterqueues.kueue.x-k8s.io"
    content["spec"]["group"] = "kueue.x-k8s.io"
    content["spec"]["names"] = {"kind": "ClusterQueue", "plural": "clusterqueues"}
    await api.create(DEFINITIONS, content)
    queue = await api.create(
        "/apis/kueue.x-k8s.io/v1beta2/clusterqueues", {"metadata": {"name": "q"}}
    )
    assert queue["spec"]["queueingStrategy"] == "BestEffortFIFO"
    await api.delete(f"{DEFINITIONS}/clusterqueues.kueue.x-k8s.io")
    await api.get("/apis/kueue.x-k8s.io/v1beta2/clusterqueues/q")


async def test_a_changed_definition_is_served_as_changed(api: Api) -> None:
    await api.create(DEFINITIONS, definition())
    content = definition()
    del content["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"][
        "required"
    ]
    code, _ = await api.call(
        "PATCH", f"{DEFINITIONS}/gadgets.example.com", {"spec": content["spec"]}, content_type=MERGE
    )
    assert code == 200
    await api.create(GADGETS, {"metadata": {"name": "g"}, "spec": {}})


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b", [1]), (".list[0].n", ["x"]), (".list[*].n", ["x", "y"]), ('.list[?(@.n=="y")].v', [2]),
        (".a['b']", [1]), (".labels.k8s\\.io/x", ["z"]), (".gone.b", []), (".list[5]", []),
    ],
)  # fmt: skip
def test_paths_of_columns(path: str, found: list[Any]) -> None:
    obj = {
        "a": {"b": 1},
        "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}],
        "labels": {"k8s.io/x": "z"},
    }
    assert find(obj, path) == found
