"""Parts of objects with a path of their own: scale, binding, eviction, finalize, log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from makeway.control.clock import timestamp
from makeway.embedded.api.bodies import parse, read_object
from makeway.embedded.api.changes import patched
from makeway.embedded.api.forms import Form
from makeway.embedded.api.http import Answer, Receive, Request, Scope, Send, encode, json_answer
from makeway.embedded.api.logs import serve_log
from makeway.embedded.api.objects import DeleteOptions, Objects
from makeway.embedded.api.patch import json_patch, merge_patch
from makeway.embedded.api.portforward import forward
from makeway.embedded.api.sessions import attach, check_runs_here, execute
from makeway.embedded.api.target import Target
from makeway.embedded.api.tokens import Tokens, request_causes
from makeway.embedded.store import Entry
from makeway.kinds.serving.columns import at
from makeway.kinds.serving.kind import Kind, Scale, Version
from makeway.kinds.serving.printers import SCALE, selector_text
from makeway.kinds.serving.refusal import (
    Cause,
    Obj,
    Refusal,
    bad_request,
    conflict,
    invalid,
    invalid_value,
    required,
)
from makeway.kinds.serving.replicas import selector_matches
from makeway.kinds.serving.template import default_container

_NO_SUCH = "the server could not find the requested resource"


class Subresources:
    def __init__(self, objects: Objects, home: Path, tokens: Tokens) -> None:
        self._tokens = tokens
        self._objects = objects
        self._home = home
        self.stopping = False

    async def serve(
        self, request: Request, send: Send, target: Target, now: float
    ) -> Answer | None:
        match target.kind.resource, target.subresource, request.method:
            case "pods", "binding", "POST":
                return await self._bind(request, target, now)
            case "pods", "eviction", "POST":
                return await self._evict(request, target, now)
            case "pods", "log", "GET":
                entry = self._objects.existing(target.kind, target.namespace, target.name)
                return await serve_log(
                    request, send, self._home, entry.decode(), now, self._may_write(target, entry)
                )
            case "pods", "ephemeralcontainers", "GET" | "PUT" | "PATCH":
                return await self._debug(request, target, now)
            case "serviceaccounts", "token", "POST":
                return await self._issue_token(request, target, now)
            case "pods", "exec" | "attach" | "portforward", _:
                raise bad_request("Upgrade request required")
            case "namespaces", "finalize", "PUT":
                return await self._finalize(request, target, now)
            case _, "scale", _ if target.kind.scale:
                return await self._scale(request, target, target.kind.scale, now)
        raise Refusal(404, "NotFound", _NO_SUCH)

    async def _issue_token(self, request: Request, target: Target, now: float) -> Answer:
        account = self._objects.existing(target.kind, target.namespace, target.name).decode()
        asked = parse(request.content_type, await request.body())
        asked = asked if isinstance(asked, dict) else {}
        causes = request_causes(asked)
        if causes:
            raise invalid("TokenRequest", "authentication.k8s.io", target.name, causes)
        return json_answer(self._tokens.issue(account, asked, now), 201)

    async def talk(self, scope: Scope, receive: Receive, send: Send, target: Target) -> None:
        """What is spoken over a WebSocket or SPDY."""
        if target.kind.resource != "pods":
            raise Refusal(404, "NotFound", _NO_SUCH)
        entry = self._objects.existing(target.kind, target.namespace, target.name)
        pod = entry.decode()
        match target.subresource:
            case "exec":
                await execute(scope, receive, send, self._home, pod)
            case "attach":
                more = self._may_write(target, entry)
                await attach(scope, receive, send, self._home, pod, more)
            case "portforward":
                check_runs_here(self._home, pod)
                await forward(scope, receive, send, pod)
            case _:
                raise Refusal(404, "NotFound", _NO_SUCH)

    def _may_write(self, target: Target, entry: Entry) -> Callable[[str], bool]:
        """Whether a container of the pod may still write to its log: it lives, and the server goes
        on.
        """

        def ask(container: str) -> bool:
            current = self._objects.store.get(target.kind.store_key, target.namespace, target.name)
            if self.stopping or current is None or current.uid != entry.uid:
                return False
            pod = current.decode()
            if at(pod, "status", "phase") in ("Succeeded", "Failed"):
                return False
            never = at(pod, "spec", "restartPolicy") == "Never"
            statuses = at(pod, "status", "containerStatuses") or []
            ended = any(
                s.get("name") == container and at(s, "state", "terminated") for s in statuses
            )
            return not (never and ended)

        return ask

    async def _done(self, entry: Entry, content: Obj, code: int = 201) -> Answer:
        await self._objects.store.committed(min(entry.version, self._objects.store.version))
        return json_answer(content, code)

    # ---- pods ------------------------------------------------------------------------------------

    async def _bind(self, request: Request, target: Target, now: float) -> Answer:
        binding = parse(request.content_type, await request.body())
        node = at(binding, "target", "name")
        kind, name = target.kind, target.name
        if not node:
            raise invalid("Binding", "", name, [required("target.name")])
        entry = self._objects.existing(kind, target.namespace, name)
        asked_uid = at(binding, "metadata", "uid")
        if asked_uid and asked_uid != entry.uid:
            why = (
                f"Precondition failed: UID in precondition: {asked_uid}, UID in object meta:"
                f" {entry.uid}"
            )
            raise conflict("pods/binding", "", name, why)
        pod = entry.decode()
        self._check_bindable(pod, name, str(node))
        pod["spec"]["nodeName"] = node
        # What a scheduler hands over with the binding goes onto the pod, in the same write.
        for field in ("annotations", "labels"):
            given = at(binding, "metadata", field)
            if given:
                pod["metadata"].setdefault(field, {}).update(given)
        pod.setdefault("status", {})
        _set_condition(
            pod["status"],
            {
                "type": "PodScheduled",
                "status": "True",
                "lastProbeTime": None,
                "lastTransitionTime": timestamp(now),
            },
        )
        pod["status"].pop("nominatedNodeName", None)
        changed = self._objects.write_directly(kind, pod, dry_run=request.dry_run)
        return await self._done(
            changed,
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "code": 201,
            },
        )

    def _check_bindable(self, pod: Obj, name: str, node: str) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            raise conflict(
                "pods/binding",
                "",
                name,
                f"pod {name} is being deleted, cannot be assigned to a host",
            )
        if pod["spec"].get("nodeName"):
            raise conflict(
                "pods/binding",
                "",
                name,
                f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"',
            )
        if pod["spec"].get("schedulingGates"):
            raise conflict(
                "pods/binding", "", name, f"pod {name} has non-empty .spec.schedulingGates"
            )

    async def _evict(self, request: Request, target: Target, now: float) -> Answer:
        eviction = parse(request.content_type, await request.body())
        options = at(eviction, "deleteOptions") or {}
        kind = target.kind
        entry = self._objects.existing(kind, target.namespace, target.name)
        pod = entry.decode()
        blocking = (
            None
            if at(pod, "status", "phase") in ("Succeeded", "Failed")
            else self._exhausted_budget(pod)
        )
        if blocking is not None:
            raise Refusal(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                details={
                    "causes": [
                        {
                            "reason": "DisruptionBudget",
                            "message": (
                                f"The disruption budget {blocking} needs more healthy pods than there"
                                f" are"
                            ),
                        }
                    ]
                },
            )
        dry_run = request.dry_run or "All" in (options.get("dryRun") or [])
        conditions = options.get("preconditions") or {}
        context = self._objects.context(now)
        if not dry_run:
            entry = self._mark_evicted(target, entry, now)
        last, _ = self._objects.delete(
            kind,
            entry,
            DeleteOptions(
                options.get("gracePeriodSeconds"), "", conditions.get("uid") or "", "", dry_run
            ),
            context,
        )
        return await self._done(
            last,
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "code": 201,
            },
        )

    def _mark_evicted(self, target: Target, entry: Entry, now: float) -> Entry:
        pod = entry.decode()
        if pod["metadata"].get("deletionTimestamp"):
            return entry
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": timestamp(now),
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
        _set_condition(pod.setdefault("status", {}), condition)
        return self._objects.write_directly(target.kind, pod)

    def _exhausted_budget(self, pod: Obj) -> str | None:
        labels = pod["metadata"].get("labels") or {}
        for entry in self._objects.store.all(
            "poddisruptionbudgets.policy", pod["metadata"]["namespace"]
        ):
            budget = entry.decode()
            selector = at(budget, "spec", "selector")
            covers = selector is not None and selector_matches(selector, labels)
            if covers and int(at(budget, "status", "disruptionsAllowed") or 0) <= 0:
                return entry.name
        return None

    async def _debug(self, request: Request, target: Target, now: float) -> Answer:
        """`kubectl debug` adds containers to a pod, which the runner of this machine does not start."""
        entry = self._objects.existing(target.kind, target.namespace, target.name)
        if request.method != "GET":
            if request.method == "PATCH":
                given = patched(request, target, entry, await request.body())
            else:
                given = await read_object(request, target.kind, target.version)
            containers = at(given, "spec", "ephemeralContainers") or []
            pod = entry.decode()
            for container in containers:
                default_container(container)
            if containers != pod["spec"].get("ephemeralContainers"):
                pod["spec"]["ephemeralContainers"] = containers
                pod["metadata"]["generation"] = int(pod["metadata"].get("generation") or 0) + 1
                entry = self._objects.write_directly(target.kind, pod, dry_run=request.dry_run)
            request.warnings.append(
                "containers for debugging are noted but not started here; use kubectl exec"
            )
        await self._objects.store.committed(min(entry.version, self._objects.store.version))
        return Answer(Form(target.kind, target.version, request, lambda: now).single(entry))

    # ---- namespaces ------------------------------------------------------------------------------

    async def _finalize(self, request: Request, target: Target, now: float) -> Answer:
        given = await read_object(request, target.kind, target.version)
        entry = self._objects.existing(target.kind, "", target.name)
        namespace = entry.decode()
        namespace["spec"] = {"finalizers": at(given, "spec", "finalizers") or []}
        if not namespace["spec"]["finalizers"]:
            namespace["spec"] = {}
        changed = self._objects.write_directly(target.kind, namespace)
        await self._objects.store.committed(changed.version)
        return Answer(Form(target.kind, target.version, None, lambda: now).single(changed))

    # ---- scale -----------------------------------------------------------------------------------

    async def _scale(self, request: Request, target: Target, paths: Scale, now: float) -> Answer:
        entry = self._objects.existing(target.kind, target.namespace, target.name)
        if request.method == "GET":
            return _shown_scale(request, entry, paths, now)
        if request.method not in ("PUT", "PATCH"):
            raise Refusal(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )
        wanted = await self._wanted_scale(request, entry, paths)
        replicas = at(wanted, "spec", "replicas") or 0
        if not isinstance(replicas, int) or replicas < 0:
            raise invalid("Scale", "autoscaling", target.name, [_negative(replicas)])
        obj = entry.decode()
        obj["metadata"]["resourceVersion"] = (
            at(wanted, "metadata", "resourceVersion") or obj["metadata"]["resourceVersion"]
        )
        _set_at(obj, paths.spec, replicas)
        changed = self._objects.replace(
            target.kind, entry, obj, self._objects.context(now), dry_run=request.dry_run
        )
        return await self._done(changed, _scale_object(changed.decode(), paths), 200)

    async def _wanted_scale(self, request: Request, entry: Entry, paths: Scale) -> Any:
        content_type, body = request.content_type, await request.body()
        if request.method == "PUT":
            return parse(content_type, body)
        current = _scale_object(entry.decode(), paths)
        patch = parse("application/json", body)
        return (
            json_patch(current, patch)
            if content_type == "application/json-patch+json"
            else merge_patch(current, patch)
        )


_SCALES = Kind("autoscaling", "Scale", "scales", (Version("v1", columns=SCALE),))


def _shown_scale(request: Request, entry: Entry, paths: Scale, now: float) -> Answer:
    """Plain or as a Table, like any object."""
    scale = _scale_object(entry.decode(), paths)
    content = {key: value for key, value in scale.items() if key not in ("kind", "apiVersion")}
    shown = Entry(
        entry.namespace, entry.name, entry.uid, entry.version, encode(content), entry.labels
    )
    return Answer(Form(_SCALES, _SCALES.storage, request, lambda: now).single(shown))


def _negative(value: Any) -> Cause:
    return invalid_value("spec.replicas", value, "must be greater than or equal to 0")


def _set_at(obj: Obj, path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        obj = obj.setdefault(step, {})
    obj[path[-1]] = value


def _set_condition(status: Obj, condition: Obj) -> None:
    conditions = status.setdefault("conditions", [])
    for index, known in enumerate(conditions):
        if known.get("type") == condition["type"]:
            conditions[index] = condition
            return
    conditions.append(condition)


def _scale_object(obj: Obj, paths: Scale) -> Obj:
    metadata = obj["metadata"]
    status: Obj = {"replicas": at(obj, *paths.status) or 0}
    if paths.selector and at(obj, *paths.selector):
        status["selector"] = selector_text(at(obj, *paths.selector))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            field: metadata[field]
            for field in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
            if field in metadata
        },
        "spec": {"replicas": at(obj, *paths.spec) or 0},
        "status": status,
    }
