"""`makeway.checkpointed()` on a cluster: a pod says that it has saved, and its annotation tells everybody.

The program posts to makeway's Service with the token of its pod. A TokenReview says whose token that is, so a pod can speak for
itself and for nobody else. What is written is a fact that the program states, not a decision: any replica may write it, whoever
holds the lease.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from makeway.client import ApiError, Client, Resource
from makeway.client.resource import PODS
from makeway.control.clock import timestamp
from makeway.control.ports import Clock
from makeway.kinds.promises import LAST_CHECKPOINT, last_checkpoint

Object = dict[str, Any]

TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
AUDIENCE: Final = "makeway"
_SERVICE_ACCOUNT: Final = "system:serviceaccount:"
_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_POD_UID: Final = "authentication.kubernetes.io/pod-uid"
# A program that saves all the time need not be written down all the time.
_WRITTEN_AGAIN_AFTER_S: Final = 5.0


class PodIdentity(NamedTuple):
    namespace: str
    name: str
    uid: str


class Refused(Exception):
    """Why a report is not taken, with the HTTP status that says so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Checkpoints:
    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    async def report(self, token: str, saved_at: float | None) -> str:
        """Take a pod's word that everything up to `saved_at` is safe; answers with the time that counts."""
        pod = await self._whose(token)
        now = self._clock.now()
        # Nobody has saved work of the future, whatever its clock says.
        saved = min(now, now if saved_at is None else saved_at)
        try:
            found = await self._client.get(PODS, pod.name, pod.namespace)
        except ApiError as error:
            if error.not_found:
                raise Refused(410, f"pod {pod.namespace}/{pod.name} is gone") from error
            raise
        if found["metadata"]["uid"] != pod.uid:
            raise Refused(410, f"pod {pod.namespace}/{pod.name} was replaced by another")
        known = last_checkpoint(found)
        if saved < known + _WRITTEN_AGAIN_AFTER_S:
            return timestamp(known)
        change = {"metadata": {"uid": pod.uid, "annotations": {LAST_CHECKPOINT: timestamp(saved)}}}
        await self._client.patch(PODS, pod.name, change, pod.namespace)
        return timestamp(saved)

    async def _whose(self, token: str) -> PodIdentity:
        """First as a token made for us, then as the one that every pod has for the API server."""
        for audiences in ([AUDIENCE], []):
            spec: Object = {"token": token} | ({"audiences": audiences} if audiences else {})
            review = {
                "apiVersion": TOKEN_REVIEWS.api_version,
                "kind": "TokenReview",
                "metadata": {},
                "spec": spec,
            }
            answer = await self._client.create(TOKEN_REVIEWS, review)
            if answer.get("status", {}).get("authenticated"):
                return _pod_of(answer["status"].get("user") or {})
        raise Refused(401, "the token is not valid, or has expired")


def _pod_of(user: Object) -> PodIdentity:
    extra = user.get("extra") or {}
    name, uid = (next(iter(extra.get(key) or []), "") for key in (_POD_NAME, _POD_UID))
    account = str(user.get("username") or "")
    if not account.startswith(_SERVICE_ACCOUNT) or not name:
        raise Refused(
            403, f"{account or 'the token'} is not bound to a pod: only a pod can say that it saved"
        )
    return PodIdentity(account.removeprefix(_SERVICE_ACCOUNT).split(":")[0], name, uid)
