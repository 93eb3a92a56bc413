"""What a reconcile asks for, as data: creates, patches, deletes, binds, and events to tell.

Reconciles are pure functions that return these; `writer.py` carries them out. An event that belongs to a write is told
only if the write succeeded, so that a repeated attempt does not tell twice what happened once.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from makeway.kinds.metadata import (
    RESOURCE_IN_USE,
    Json,
    Object,
    finalizers,
    metadata,
    name,
    namespace,
    reference,
    uid,
)
from makeway.kinds.pod import scheduler_name
from makeway.kube.resources import API_VERSIONS
from makeway.model.workload import WorkloadId

ADMISSION = "kueue-admission"


class Tell(msgspec.Struct, frozen=True, kw_only=True):
    """An event about an object, in the name of the component whose users know it."""

    about: Object
    type: Literal["Normal", "Warning"] = "Normal"
    reason: str
    note: str
    component: str
    action: str = ""  # empty: the reason again
    related: Object | None = None
    once: bool = False  # a state that is seen again and again is told once, not counted


class Create(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    obj: Object
    then: tuple[Tell, ...] = ()


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """A merge patch unless said otherwise. `version` makes it fail rather than overwrite what was not seen. What comes
    `later` counts as done at once, and is written when nothing that somebody waits for is.
    """

    kind: str
    namespace: str
    name: str
    body: Object
    style: Literal["merge", "strategic"] = "merge"
    subresource: str = ""
    version: str = ""
    later: bool = False
    then: tuple[Tell, ...] = ()


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """Of exactly this object, not of a later one with its name."""

    kind: str
    namespace: str
    name: str
    uid: str
    grace_s: int | None = None
    then: tuple[Tell, ...] = ()


class BindPod(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str
    node: str
    then: tuple[Tell, ...] = ()


Action = Create | Patch | Delete | BindPod | Tell


class Chain(msgspec.Struct, kw_only=True):
    """Actions in their order, and what may begin only when all of them are done."""

    actions: list[Action]
    then: list[Chain] = []
    workload: WorkloadId = WorkloadId("")  # whom it is about
    others: tuple[WorkloadId, ...] = ()  # and whom else

    def __len__(self) -> int:
        return 1 + sum(len(chain) for chain in self.then)


class Steps(msgspec.Struct, kw_only=True):
    """What to do now, in this order, and when to look again if nothing happens before."""

    actions: list[Action] = []
    again_at: float | None = None

    def look_again(self, at: float | None) -> None:
        if at is not None:
            self.again_at = at if self.again_at is None else min(self.again_at, at)


def patch_status(kind: str, obj: Json, status: Object, *then: Tell) -> Patch:
    """A change of the status that fails if somebody wrote the object meanwhile."""
    return Patch(
        kind=kind,
        namespace=namespace(obj),
        name=name(obj),
        body={"status": status},
        subresource="status",
        version=str(metadata(obj).get("resourceVersion") or ""),
        then=then,
    )


def patch_object(kind: str, obj: Json, body: Object, *then: Tell) -> Patch:
    return Patch(
        kind=kind,
        namespace=namespace(obj),
        name=name(obj),
        body=body,
        version=str(metadata(obj).get("resourceVersion") or ""),
        then=then,
    )


def delete_object(kind: str, obj: Json, *then: Tell, grace_s: int | None = None) -> Delete:
    return Delete(
        kind=kind,
        namespace=namespace(obj),
        name=name(obj),
        uid=uid(obj),
        grace_s=grace_s,
        then=then,
    )


def drop_finalizer(kind: str, obj: Json, finalizer: str) -> list[Action]:
    """Nothing of ours holds it any more; no action where nothing did."""
    held = finalizers(obj)
    if finalizer not in held:
        return []
    rest = [other for other in held if other != finalizer]
    return [patch_object(kind, obj, {"metadata": {"finalizers": rest or None}})]


def free(kind: str, obj: Json) -> list[Action]:
    """It may go: nobody uses it any more."""
    return drop_finalizer(kind, obj, RESOURCE_IN_USE)


def about(kind: str, obj: Json) -> Object:
    """The reference that an event carries."""
    found = reference(obj, API_VERSIONS[kind], kind.split(".", 1)[0])
    version = metadata(obj).get("resourceVersion")
    return found | {"resourceVersion": version} if version else found


def tell(
    kind: str,
    obj: Json,
    component: str,
    reason: str,
    note: str,
    *,
    warning: bool = False,
    once: bool = False,
) -> Tell:
    return Tell(
        about=about(kind, obj),
        type="Warning" if warning else "Normal",
        reason=reason,
        note=note,
        component=component,
        once=once,
    )


def workload_event(found: Json, reason: str, note: str, *, warning: bool = False) -> Tell:
    """What the part of Kueue that admits would tell."""
    return tell("Workload", found, ADMISSION, reason, note, warning=warning)


def pod_event(
    found: Json,
    reason: str,
    note: str,
    *,
    action: str,
    warning: bool = False,
    related: Object | None = None,
) -> Tell:
    """What the pod's own scheduler would tell."""
    return Tell(
        about=about("Pod", found),
        type="Warning" if warning else "Normal",
        reason=reason,
        note=note,
        component=scheduler_name(found),
        action=action,
        related=related,
    )


def pod_status(found: Json, change: Object) -> Patch:
    """Conditions merge by type; nobody else's are touched."""
    return Patch(
        kind="Pod",
        namespace=namespace(found),
        name=name(found),
        body={"metadata": {"uid": uid(found)}, "status": change},
        style="strategic",
        subresource="status",
    )
