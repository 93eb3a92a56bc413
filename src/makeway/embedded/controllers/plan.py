"""What a controller wants done: data, so that deciding can be tested without a server.

A plan is a list of steps; the actions of one step go out together, the next step waits for them.
That order is what makes a crash in between harmless.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from makeway.client.resource import Object, Resource


class Create(msgspec.Struct, frozen=True, tag="create"):
    resource: Resource
    obj: Object
    # The owner is told about each pod that is made for it.
    tell: Object | None = None


class Patch(msgspec.Struct, frozen=True, tag="patch"):
    resource: Resource
    obj: Object
    body: Object
    subresource: str = ""


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    resource: Resource
    obj: Object
    tell: Object | None = None
    propagation: str = "Background"


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """An event on an object."""

    obj: Object
    reason: str
    message: str
    warning: bool = False


Action = Create | Patch | Delete | Tell


class Plan(msgspec.Struct, frozen=True):
    steps: Sequence[Sequence[Action]] = ()
    # When to look again although nothing has changed: a deadline, a back-off, a time to live.
    look_again_at: float | None = None

    @property
    def actions(self) -> list[Action]:
        return [action for step in self.steps for action in step]


def plan(*steps: Sequence[Action], look_again_at: float | None = None) -> Plan:
    """A plan without its empty steps."""
    return Plan([step for step in steps if step], look_again_at)


def soonest(*times: float | None) -> float | None:
    known = [time for time in times if time is not None]
    return min(known, default=None)


def merge_patch(old: Object, new: Object) -> Object:
    """The smallest merge patch that makes `old` into `new`."""
    body: Object = {key: None for key in old if key not in new and old[key] is not None}
    for key, value in new.items():
        before = old.get(key)
        if before == value and key in old:
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            value = merge_patch(before, value)
        body[key] = value
    return body
