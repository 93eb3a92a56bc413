"""The API as one ASGI callable: who may ask, which object a path means, which handler answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from makeway.embedded.api import discovery, sessions
from makeway.embedded.api.apply import server_side_apply
from makeway.embedded.api.bodies import parse, read_object
from makeway.embedded.api.changes import APPLY, patched
from makeway.embedded.api.definitions import CustomKinds
from makeway.embedded.api.forms import Form
from makeway.embedded.api.http import (
    Answer,
    Receive,
    Request,
    Scope,
    Send,
    json_answer,
    plain,
    refusal_answer,
    success,
)
from makeway.embedded.api.lists import read_page, select_all
from makeway.embedded.api.metrics import GROUP as METRICS
from makeway.embedded.api.metrics import Metrics
from makeway.embedded.api.objects import DeleteOptions, Objects
from makeway.embedded.api.openapi import OpenApi
from makeway.embedded.api.reviews import answer_review
from makeway.embedded.api.selectors import Selection
from makeway.embedded.api.subresources import Subresources
from makeway.embedded.api.target import Target
from makeway.embedded.api.tokens import Tokens
from makeway.embedded.api.watch import Hub
from makeway.embedded.store import Entry, Store, StoreFailedError
from makeway.kinds.serving.refusal import Obj, Refusal, bad_request
from makeway.kinds.serving.registry import Registry

logger = logging.getLogger(__name__)


class App:
    """Everything behind the token. `now` is the clock."""

    def __init__(
        self, store: Store, registry: Registry, token: str, now: Callable[[], float], home: Path
    ) -> None:
        self.store = store
        self.registry = registry
        self.objects = Objects(store, registry)
        self.hub = Hub(store)
        self.openapi = OpenApi(registry)
        self.custom = CustomKinds(self.objects, self.openapi)
        self._now = now
        self._tokens = Tokens(token)
        self._subresources = Subresources(self.objects, home, self._tokens)
        self._metrics = Metrics(store, home)

    def close(self) -> None:
        """End watches and followed logs now: the server is going down."""
        self.hub.close()
        self._subresources.stopping = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("websocket", "spdy"):
            await self._talk(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            answer = await self._answer(request, send)
        except Refusal as refusal:
            answer = refusal_answer(refusal)
        except RecursionError:
            answer = refusal_answer(bad_request("the object is nested too deeply"))
        except StoreFailedError as failure:
            answer = refusal_answer(
                Refusal(500, "InternalError", f"Internal error occurred: {failure}")
            )
        except Exception:
            logger.exception("request failed: %s %s", request.method, request.path)
            answer = refusal_answer(
                Refusal(500, "InternalError", "Internal error occurred: see the log of makeway")
            )
        if answer is not None:
            await answer.send(send, request.warnings)

    async def _talk(self, scope: Scope, receive: Receive, send: Send) -> None:
        """More than an answer: a command in a pod, a look at what it writes, its ports."""
        try:
            self._ask_for_token(dict(scope["headers"]))
            target = self._resolve(scope["path"])
            if target is None:
                raise Refusal(404, "NotFound", "the server could not find the requested resource")
            await self._subresources.talk(scope, receive, send, target)
        except Refusal as refusal:
            await sessions.refuse(send, receive, refusal)

    def _accepts(self, token: str) -> bool:
        return self._tokens.accepts(f"Bearer {token}".encode("utf-8", "replace"), self._now())

    def _ask_for_token(self, headers: dict[bytes, bytes]) -> None:
        if not self._tokens.accepts(headers.get(b"authorization", b""), self._now()):
            raise Refusal(401, "Unauthorized", "Unauthorized")

    async def _answer(self, request: Request, send: Send) -> Answer | None:
        self._ask_for_token(request.headers)
        path = request.path
        if path.startswith(("/api/", "/apis/")):
            target = self._resolve(path)
            if target is not None:
                return await self._serve(request, send, target)
            review = await answer_review(request, self._accepts)
            if review is not None:
                return review
        return self._unstored(request)

    def _unstored(self, request: Request) -> Answer:
        path = request.path
        if path in ("/healthz", "/livez", "/readyz") or path.startswith(
            ("/livez/", "/readyz/", "/healthz/")
        ):
            return plain("ok")
        found = discovery.serve(request, self.registry)
        if found is None and path.startswith("/openapi/"):
            found = self.openapi.serve(request)
        if found is not None:
            return found
        if path == "/":
            return json_answer(
                {
                    "paths": [
                        "/api",
                        "/apis",
                        "/healthz",
                        "/livez",
                        "/openapi/v3",
                        "/readyz",
                        "/version",
                    ]
                }
            )
        if path.startswith(("/api/", "/apis/")) and self._group_known(path):
            return refusal_answer(
                Refusal(404, "NotFound", "the server could not find the requested resource")
            )
        return plain("404 page not found\n", 404)

    def _group_known(self, path: str) -> bool:
        parts = path.strip("/").split("/")
        group, rest = _split(parts)
        return "".join(rest[:1]) in discovery.groups(self.registry).get(group, [])

    # ---- paths -----------------------------------------------------------------------------------

    def _resolve(self, path: str) -> Target | None:
        parts = path.strip("/").split("/")
        group, rest = _split(parts)
        if len(rest) < 2:
            return None
        version_name, rest = rest[0], rest[1:]
        namespace = ""
        if (
            rest[0] == "namespaces"
            and len(rest) >= 3
            and not (group == "" and rest[2] in ("status", "finalize") and len(rest) == 3)
        ):
            namespace, rest = rest[1], rest[2:]
        kind = self.registry.get(group, rest[0])
        version = kind.version(version_name) if kind else None
        if kind is None or version is None or len(rest) > 3 or bool(namespace) > kind.namespaced:
            return None
        name = rest[1] if len(rest) > 1 else ""
        if name and kind.namespaced and not namespace:
            return None
        return Target(kind, version, namespace, name, rest[2] if len(rest) > 2 else "")

    # ---- verbs -----------------------------------------------------------------------------------

    async def _serve(self, request: Request, send: Send, target: Target) -> Answer | None:
        if target.version.deprecation:
            request.warnings.append(target.version.deprecation)
        if target.kind.group == METRICS and request.method == "GET":
            now = self._now()
            return json_answer(
                self._metrics.serve(target.kind.plural, target.namespace, target.name, now)
            )
        if target.subresource and target.subresource != "status":
            return await self._subresources.serve(request, send, target, self._now())
        if target.subresource == "status" and not target.kind.status:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        match request.method, bool(target.name):
            case "GET", _ if request.flag("watch"):
                await self._watch(request, send, target)
                return None
            case "GET", True:
                return await self._get(request, target)
            case "GET", False:
                return await self._list(request, target)
            case "POST", False:
                return await self._create(request, target)
            case "PUT", True:
                return await self._replace(request, target)
            case "PATCH", True:
                return await self._patch(request, target)
            case "DELETE", True:
                return await self._delete(request, target)
            case "DELETE", False:
                return await self._delete_collection(request, target)
        raise Refusal(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )

    def _form(self, request: Request, target: Target) -> Form:
        return Form(target.kind, target.version, request, self._now)

    async def _answer_entry(
        self, request: Request, target: Target, entry: Entry, code: int = 200
    ) -> Answer:
        """One object, once whatever it shows is on disk."""
        await self.store.committed(min(entry.version, self.store.version))
        return Answer(self._form(request, target).single(entry), code)

    async def _get(self, request: Request, target: Target) -> Answer:
        entry = self.objects.existing(target.kind, target.namespace, target.name)
        return await self._answer_entry(request, target, entry)

    def _selection(self, request: Request, target: Target) -> Selection:
        query = request.query
        selection = Selection(
            target.kind,
            target.namespace,
            query.get("labelSelector", ""),
            query.get("fieldSelector", ""),
        )
        if target.name:
            selection.name, selection.plain = target.name, False
        return selection

    async def _list(self, request: Request, target: Target) -> Answer:
        selection = self._selection(request, target)
        form = self._form(request, target)
        found, metadata = await read_page(
            self.store, target.kind, selection, request, table=bool(form.table)
        )
        return Answer(await form.many(found, metadata))

    async def _watch(self, request: Request, send: Send, target: Target) -> None:
        selection = self._selection(request, target)
        await self.hub.serve(request, send, self._form(request, target), selection)

    async def _create(self, request: Request, target: Target) -> Answer:
        if "create" not in target.kind.verbs:
            raise Refusal(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )
        obj = await read_object(request, target.kind, target.version)
        context = self.objects.context(self._now())
        namespace = target.namespace
        if target.kind.namespaced and not namespace:
            raise bad_request("an empty namespace may not be set during creation")
        try:
            entry = self.objects.create(
                target.kind, namespace, obj, context, dry_run=request.dry_run
            )
        finally:
            request.warnings.extend(context.warnings)
        return await self._answer_entry(request, target, entry, 201)

    async def _replace(self, request: Request, target: Target) -> Answer:
        obj = await read_object(request, target.kind, target.version)
        entry = self.objects.existing(target.kind, target.namespace, target.name)
        return await self._change(request, target, entry, obj)

    async def _change(self, request: Request, target: Target, entry: Entry, obj: Obj) -> Answer:
        context = self.objects.context(self._now())
        try:
            changed = self.objects.replace(
                target.kind,
                entry,
                obj,
                context,
                subresource=target.subresource,
                dry_run=request.dry_run,
                manager=_manager(request),
            )
        finally:
            request.warnings.extend(context.warnings)
        return await self._answer_entry(request, target, changed)

    async def _patch(self, request: Request, target: Target) -> Answer:
        content_type = request.content_type
        body = await request.body()
        if content_type in APPLY:
            return await self._apply(request, target, body)
        entry = self.objects.existing(target.kind, target.namespace, target.name)
        return await self._change(request, target, entry, patched(request, target, entry, body))

    async def _apply(self, request: Request, target: Target, body: bytes) -> Answer:
        applied = parse(
            "application/yaml" if not body.lstrip().startswith(b"{") else "application/json", body
        )
        context = self.objects.context(self._now())
        try:
            entry, created = server_side_apply(self.objects, request, target, applied, context)
        finally:
            request.warnings.extend(context.warnings)
        return await self._answer_entry(request, target, entry, 201 if created else 200)

    # ---- delete ----------------------------------------------------------------------------------

    async def _delete(self, request: Request, target: Target) -> Answer:
        options = await read_delete_options(request)
        entry = self.objects.existing(target.kind, target.namespace, target.name)
        last, gone = self.objects.delete(
            target.kind, entry, options, self.objects.context(self._now())
        )
        await self.store.committed(min(last.version, self.store.version))
        if gone and target.kind.resource != "pods":
            return json_answer(success(target.kind.plural, target.kind.group, last.name, last.uid))
        return Answer(Form(target.kind, target.version, None, self._now).single(last))

    async def _delete_collection(self, request: Request, target: Target) -> Answer:
        options = await read_delete_options(request)
        selection = self._selection(request, target)
        found = select_all(self.store, target.kind, selection)
        context = self.objects.context(self._now())
        last = [self.objects.delete(target.kind, entry, options, context)[0] for entry in found]
        await self.store.committed(self.store.version)
        return Answer(
            await self._form(request, target).many(
                last, {"resourceVersion": str(self.store.version)}
            )
        )


def _split(parts: list[str]) -> tuple[str, list[str]]:
    """The group, and the path from the version on."""
    return ("", parts[1:]) if parts[0] == "api" else ("".join(parts[1:2]), parts[2:])


def _manager(request: Request) -> str:
    """Who writes: as the request says, or the first word of the program's name."""
    named = request.query.get("fieldManager", "")
    return named or request.header(b"user-agent").partition("/")[0] or "unknown"


async def read_delete_options(request: Request) -> DeleteOptions:
    body = await request.body()
    given: Any = parse(request.content_type or "application/json", body) if body else {}
    if not isinstance(given, dict):
        raise bad_request("the body of a deletion must be DeleteOptions")
    conditions = given.get("preconditions") or {}
    grace = given.get("gracePeriodSeconds")
    if request.query.get("gracePeriodSeconds"):
        grace = request.number("gracePeriodSeconds")
    return DeleteOptions(
        grace_s=grace,
        propagation=given.get("propagationPolicy") or request.query.get("propagationPolicy", ""),
        uid=conditions.get("uid") or "",
        version=conditions.get("resourceVersion") or "",
        dry_run=request.dry_run or "All" in (given.get("dryRun") or []),
    )
