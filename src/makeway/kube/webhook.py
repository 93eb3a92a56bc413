"""For API servers without MutatingAdmissionPolicy (before Kubernetes 1.36): the same changes on arrival, made by a webhook.

It uses the very rules that the embedded API uses (`kinds.serving.queueing`), and answers with a JSON patch. What names a queue is
refused while no replica answers, since it would start without quota; everything else passes as it is.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import logging
import ssl
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from makeway.certificates import Pems
from makeway.client import ApiError, Client, UnreachableError
from makeway.control.ports import Clock
from makeway.errors import UserError
from makeway.kinds.frameworks import JOB_KINDS
from makeway.kinds.gated import GATED_KINDS
from makeway.kinds.metadata import MANAGED, QUEUE_NAME, WORKLOAD, annotations_of, labels
from makeway.kinds.pod import DEFAULT_SCHEDULER
from makeway.kinds.promises import placed_by_others
from makeway.kinds.serving.kind import Context
from makeway.kinds.serving.notice import give_notice
from makeway.kinds.serving.queueing import (
    DEFAULT_QUEUE,
    gate_queued_pod,
    hand_queue_down,
    suspend_queued_job,
)
from makeway.kube.arriving import (
    ALL_JOBS,
    API,
    DEPLOYMENTS,
    PODS,
    Resources,
    resource_rules,
    unmanaged,
)
from makeway.kube.endpoints import listening, parse_address
from makeway.kube.resources import RESOURCES

log = logging.getLogger(__name__)

Object = dict[str, Any]

PATH: Final = "/mutate"
SCHEDULER: Final = "makeway"
TIMEOUT_S: Final = 5
_LARGEST_REVIEW: Final = 4 * 1024 * 1024
LOCAL_QUEUES: Final = RESOURCES["LocalQueue"]


# ---- what is changed -------------------------------------------------------------------------------


class DefaultQueue:
    """The one other object that the rules ask about: whether the namespace has a default queue."""

    def __init__(self, exists: bool) -> None:
        self._exists = exists

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        known = resource == "localqueues.kueue.x-k8s.io" and name == DEFAULT_QUEUE
        return {} if known and self._exists else None

    def list(self, resource: str, namespace: str = "") -> Iterable[Object]:
        return ()


def change(kind: str, obj: Object, context: Context) -> None:
    """What arriving does to an object, in place."""
    if kind == "Pod":
        gate_queued_pod(obj, context)
        _place(obj)
        give_notice(obj)
    elif kind in JOB_KINDS:
        suspend_queued_job(obj, context, JOB_KINDS[kind].suspend_path)
    else:
        hand_queue_down(kind, obj)


def _place(pod: Object) -> None:
    """Queued pods and those of admitted workloads are ours to place, unless somebody else was named."""
    ours = MANAGED in labels(pod) or WORKLOAD in annotations_of(pod)
    spec = pod["spec"]
    usual = spec.get("schedulerName", DEFAULT_SCHEDULER) == DEFAULT_SCHEDULER
    if ours and usual and not placed_by_others(labels(pod)):
        spec["schedulerName"] = SCHEDULER


# ---- the server ------------------------------------------------------------------------------------


class Webhook:
    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    async def answer(self, request: web.Request) -> web.Response:
        try:
            review = msgspec.json.decode(await request.read(), type=Object)
            asked = review["request"]
            uid = str(asked["uid"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return web.Response(status=400, text="expected an AdmissionReview")
        response = await self._respond(asked) | {"uid": uid}
        answer = {
            "apiVersion": review.get("apiVersion", "admission.k8s.io/v1"),
            "kind": "AdmissionReview",
            "response": response,
        }
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def _respond(self, asked: Object) -> Object:
        before = asked.get("object")
        kind = str((asked.get("kind") or {}).get("kind"))
        if not isinstance(before, dict):
            return {"allowed": True}
        after = copy.deepcopy(before)
        try:
            namespace = str(asked.get("namespace") or "")
            # A new object has no namespace in it yet.
            after.setdefault("metadata", {}).setdefault("namespace", namespace)
            lookup = DefaultQueue(await self._has_default_queue(namespace, after))
            change(kind, after, Context(now=self._clock.now(), lookup=lookup))
        except (KeyError, TypeError, AttributeError) as error:
            # Its shape is the API server's business, which will say what is wrong with it.
            log.warning("%s cannot be read on arrival: %r", kind, error)
            return {"allowed": True}
        return {"allowed": True} | _patch(before, after)

    async def _has_default_queue(self, namespace: str, obj: Object) -> bool:
        if labels(obj).get(QUEUE_NAME) or obj["metadata"].get("ownerReferences"):
            return False
        try:
            await self._client.get(LOCAL_QUEUES, DEFAULT_QUEUE, namespace)
        except (ApiError, UnreachableError):
            return False
        return True


def _patch(before: Object, after: Object) -> Object:
    import jsonpatch

    if "namespace" not in before.get("metadata", {}):
        after["metadata"].pop("namespace", None)
    operations = jsonpatch.make_patch(before, after).patch
    if not operations:
        return {}
    encoded = base64.b64encode(msgspec.json.encode(operations)).decode()
    return {"patchType": "JSONPatch", "patch": encoded}


@contextlib.asynccontextmanager
async def serve_webhook(listen: str, certificates: Path, webhook: Webhook) -> AsyncIterator[str]:
    """Over TLS with `tls.crt` and `tls.key` of the folder, until the block ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        await asyncio.to_thread(
            context.load_cert_chain, certificates / "tls.crt", certificates / "tls.key"
        )
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"cannot read tls.crt and tls.key: {error}",
            where=str(certificates),
            hint="`makeway install` puts them into the Secret makeway-webhook.",
        ) from error
    app = web.Application(client_max_size=_LARGEST_REVIEW)
    app.router.add_post(PATH, webhook.answer)
    async with listening(app, parse_address(listen), "--webhook", context) as address:
        yield address


# ---- its configuration -----------------------------------------------------------------------------


def configuration(authority: bytes, where: Object, namespace: str) -> Object:
    """Two hooks: what names a queue waits for an answer, all other pods and jobs go on without."""
    sets = [(kind.api_version.partition("/")[0], kind.plural) for kind in GATED_KINDS.values()]
    owners: Resources = (*DEPLOYMENTS, *sets)
    queued = {"key": QUEUE_NAME, "operator": "Exists"}
    client = {**where, "caBundle": base64.b64encode(authority).decode()}

    def hook(name: str, failure: str, operator: str, matched: list[Object]) -> Object:
        return {
            "name": f"{name}.makeway.dev",
            "clientConfig": client,
            "rules": matched,
            "objectSelector": {"matchExpressions": [queued | {"operator": operator}]},
            "namespaceSelector": unmanaged(namespace),
            "failurePolicy": failure,
            "reinvocationPolicy": "IfNeeded",
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_S,
            "admissionReviewVersions": ["v1"],
        }

    made = resource_rules((*PODS, *ALL_JOBS))
    everything = [*made, *resource_rules(owners, ("CREATE", "UPDATE"))]
    return {
        "apiVersion": API,
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "makeway"},
        "webhooks": [
            hook("queued", "Fail", "Exists", everything),
            hook("others", "Ignore", "DoesNotExist", made),
        ],
    }


def secret(pems: Pems, namespace: str, name: str) -> Object:
    files = {"ca.crt": pems.authority, "tls.crt": pems.certificate, "tls.key": pems.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": "kubernetes.io/tls",
        "data": {file: base64.b64encode(content).decode() for file, content in files.items()},
    }


def pems_of(found: Object) -> Pems | None:
    """The certificates of a Secret that `secret` made; None when it holds something else."""
    data = found.get("data") or {}
    try:
        return Pems(*(base64.b64decode(data[file]) for file in ("ca.crt", "tls.crt", "tls.key")))
    except (KeyError, ValueError):
        return None
