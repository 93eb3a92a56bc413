"""OpenAPI v3, which kubectl reads before it applies and when it explains. Documents are made on
demand.
"""

from __future__ import annotations

import hashlib
from typing import Any

from makeway.embedded.api.http import Answer, Request, encode, json_answer
from makeway.kinds.serving.kind import Kind
from makeway.kinds.serving.refusal import Obj
from makeway.kinds.serving.registry import Registry
from makeway.kinds.serving.schemas import PREFIX, definitions

_PATCHES = (
    "application/merge-patch+json",
    "application/json-patch+json",
    "application/apply-patch+yaml",
)
_STRATEGIC = "application/strategic-merge-patch+json"


class OpenApi:
    """The documents of all group versions; forgotten when a definition is added."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._documents: dict[str, bytes] = {}
        self._hashes: dict[str, str] = {}

    def forget(self) -> None:
        self._documents.clear()
        self._hashes.clear()

    def serve(self, request: Request) -> Answer | None:
        path = request.path.strip("/")
        if path == "openapi/v3":
            return json_answer(
                {
                    "paths": {
                        name: {"serverRelativeURL": f"/openapi/v3/{name}?hash={self._hash(name)}"}
                        for name in self._names()
                    }
                }
            )
        name = path.removeprefix("openapi/v3/")
        if name == path or name not in self._names():
            return None
        headers: tuple[tuple[bytes, bytes], ...] = ((b"etag", f'"{self._hash(name)}"'.encode()),)
        if request.query.get("hash"):
            # The URL names the content, so kubectl may keep it.
            headers += (
                (b"cache-control", b"public, immutable"),
                (b"expires", b"Fri, 01 Jan 2100 00:00:00 GMT"),
            )
        return Answer(self._document(name), headers=headers)

    def _names(self) -> list[str]:
        found = {
            _root(kind, version.name).strip("/")
            for kind in self._registry
            for version in kind.versions
        }
        return sorted(found)

    def _hash(self, name: str) -> str:
        """Changes with the kinds of the group, without making the document."""
        if name not in self._hashes:
            kinds = [
                f"{k.resource}:{v.name}:{v.schema}"
                for k in self._registry
                for v in k.versions
                if _root(k, v.name).strip("/") == name
            ]
            from makeway import __version__

            text = "\n".join([__version__, *kinds])
            self._hashes[name] = hashlib.sha256(text.encode()).hexdigest()[:32].upper()
        return self._hashes[name]

    def _document(self, name: str) -> bytes:
        if name not in self._documents:
            self._documents[name] = encode(self._make(name))
        return self._documents[name]

    def _make(self, name: str) -> Obj:
        paths: Obj = {}
        schemas: list[str] = []
        for kind in self._registry:
            for version in kind.versions:
                if _root(kind, version.name).strip("/") == name:
                    paths.update(_paths(kind, version.name, version.schema))
                    schemas.append(version.schema)
        return {
            "openapi": "3.0.0",
            "info": {"title": "makeway", "version": "v1.36.3"},
            "paths": paths,
            "components": {"schemas": _published(definitions().closure(schemas))},
        }


def _published(schema: Any) -> Any:
    """With what is written beside a reference kept: readers of OpenAPI ignore it there."""
    if isinstance(schema, list):
        return [_published(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("$ref"), str) and len(schema) > 1:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {"allOf": [{"$ref": schema["$ref"]}], **rest}
    return {key: _published(value) for key, value in schema.items()}


def _root(kind: Kind, version: str) -> str:
    return f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"


def _paths(kind: Kind, version: str, schema: str) -> Obj:
    namespaced = "/namespaces/{namespace}" if kind.namespaced else ""
    base = f"{_root(kind, version)}{namespaced}/{kind.plural}"
    gvk = {"group": kind.group, "version": version, "kind": kind.kind}
    body = {"schema": {"$ref": f"{PREFIX}{schema}"}} if schema else {"schema": {"type": "object"}}
    answers = {"200": {"description": "OK", "content": {"application/json": body}}}

    def operation(action: str, **more: object) -> Obj:
        return {
            "x-kubernetes-group-version-kind": gvk,
            "x-kubernetes-action": action,
            "parameters": _PARAMETERS,
            "responses": answers,
            **more,
        }

    patches = {
        content: {"schema": {"type": "object"}}
        for content in (*_PATCHES, *((_STRATEGIC,) if kind.builtin else ()))
    }
    given = {"requestBody": {"content": {"*/*": body}}}
    return {
        base: {"get": operation("list"), "post": operation("post", **given)},
        base + "/{name}": {
            "get": operation("get"),
            "put": operation("put", **given),
            "patch": operation("patch", requestBody={"content": patches}),
            "delete": operation("delete"),
        },
    }


_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string"}}
    for name in ("dryRun", "fieldManager", "fieldValidation")
]
