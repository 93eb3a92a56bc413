"""Carries plans out and keeps the copy of the cluster in step with what the server answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import assert_never

from makeway.client import ApiError, Client
from makeway.client.resource import Object, Resource
from makeway.embedded.controllers.plan import Action, Create, Delete, Patch, Plan, Tell
from makeway.embedded.events import EventRecorder
from makeway.embedded.mirror import Mirror
from makeway.embedded.objects import name_of, namespace_of, uid_of


class Applier:
    def __init__(
        self, client: Client, mirrors: Mapping[Resource, Mirror], events: EventRecorder
    ) -> None:
        self._client = client
        self._mirrors = mirrors
        self._events = events

    async def apply(self, plan: Plan) -> None:
        for step in plan.steps:
            if len(step) == 1:
                await self._act(step[0])
                continue
            results = await asyncio.gather(
                *(self._act(action) for action in step), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def _act(self, action: Action) -> None:
        match action:
            case Create():
                await self._create(action)
            case Patch():
                await self._patch(action)
            case Delete():
                await self._delete(action)
            case Tell():
                kind = "Warning" if action.warning else "Normal"
                self._events.record(action.obj, kind, action.reason, action.message)
            case _:
                assert_never(action)

    async def _create(self, action: Create) -> None:
        try:
            made = await self._client.create(action.resource, action.obj)
        except ApiError as error:
            if action.tell is not None and not error.already_exists:
                said = f"Error creating: {error.message}"
                self._events.record(action.tell, "Warning", "FailedCreate", said)
            raise
        self._note(action.resource, made)
        if action.tell is not None:
            self._events.record(
                action.tell, "Normal", "SuccessfulCreate", _said("Create", made, action.tell)
            )

    async def _patch(self, action: Patch) -> None:
        # The uid makes sure that a successor of the same name is not meant by mistake.
        identity = {**(action.body.get("metadata") or {}), "uid": uid_of(action.obj)}
        try:
            answer = await self._client.patch(
                action.resource,
                name_of(action.obj),
                {**action.body, "metadata": identity},
                namespace_of(action.obj),
                subresource=action.subresource,
            )
        except ApiError as error:
            if error.not_found:
                self._note_gone(action.resource, action.obj)
                return
            raise
        self._note(action.resource, answer)

    async def _delete(self, action: Delete) -> None:
        try:
            answer = await self._client.delete(
                action.resource,
                name_of(action.obj),
                namespace_of(action.obj),
                uid=uid_of(action.obj),
                propagation=action.propagation,
            )
        except ApiError as error:
            if error.not_found or error.conflict:
                self._note_gone(action.resource, action.obj)
                return
            raise
        if action.tell is not None:
            said = _said("Delete", action.obj, action.tell)
            self._events.record(action.tell, "Normal", "SuccessfulDelete", said)
        self._note_deleted(action, answer)

    def _note_deleted(self, action: Delete, answer: Object) -> None:
        """The answer is the object on its way out, or a Status when it is gone already."""
        metadata = answer.get("metadata") or {}
        if answer.get("kind") != "Status" and metadata.get("deletionTimestamp"):
            self._note(action.resource, answer)
        else:
            self._note_gone(action.resource, action.obj)

    def _note(self, resource: Resource, obj: Object) -> None:
        if resource in self._mirrors:
            self._mirrors[resource].note(obj)

    def _note_gone(self, resource: Resource, obj: Object) -> None:
        if resource in self._mirrors:
            self._mirrors[resource].note_gone(obj)


def _said(verb: str, obj: Object, owner: Object) -> str:
    """As Kubernetes words it, where StatefulSets and CronJobs have words of their own."""
    kind = str(obj.get("kind") or "object")
    if owner.get("kind") == "StatefulSet" and kind == "PersistentVolumeClaim":
        pod = name_of(obj)[name_of(obj).rindex(f"-{name_of(owner)}-") + 1 :]
        return (
            f"{verb.lower()} Claim {name_of(obj)} Pod {pod} in StatefulSet {name_of(owner)} success"
        )
    if owner.get("kind") == "StatefulSet":
        return f"{verb} {kind} {name_of(obj)} in StatefulSet {name_of(owner)} successful"
    if owner.get("kind") == "CronJob":
        return f"{verb}d job {name_of(obj)}"
    return f"{verb}d {kind.lower()}: {name_of(obj)}"
