"""One served kind: its names, versions and rules. What the rules say is in the modules beside this
one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from makeway.kinds.serving.columns import NAME_AND_AGE, Column
from makeway.kinds.serving.refusal import Cause, Obj


class Lookup(Protocol):
    """What rules may ask about other objects; `resource` is `plural` or `plural.group`."""

    def get(self, resource: str, namespace: str, name: str) -> Obj | None: ...

    def list(self, resource: str, namespace: str = "") -> Iterable[Obj]: ...


@dataclass(slots=True)
class Context:
    """One write: when it happens, what else exists, and the warnings to hand back with the
    answer.
    """

    now: float
    lookup: Lookup
    warnings: list[str] = field(default_factory=list)


class Rules:
    """What a kind does to objects on their way in. Subclasses override the steps that they need."""

    def default(self, obj: Obj) -> None:
        """Fill in what the user left out. Also run on updates, so it must be idempotent."""

    def create(self, obj: Obj, context: Context) -> None:
        """Admission of a new object: may change or refuse it."""

    def update(self, new: Obj, old: Obj, context: Context) -> None:
        """Admission of a change to the object itself (not its status)."""

    def validate(self, obj: Obj) -> list[Cause]:
        """What is wrong with the object, field by field."""
        return []

    def validate_whole(self, new: Obj, old: Obj | None) -> list[Cause]:
        """All that is wrong with it, for kinds whose rules may be about the change; `old` is None for a new object."""
        return self.validate(new)

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        return []

    def update_status(self, new: Obj, old: Obj, context: Context) -> list[Cause]:
        return []

    def delete(self, obj: Obj, context: Context) -> None:
        """Refuse a deletion, by raising."""

    def initial_status(self, obj: Obj) -> Obj | None:
        """The status of a new object of a kind with a status subresource."""
        return None


class Conversion(Protocol):
    """Between a served version and the stored one. Both change the object in place."""

    def to_storage(self, obj: Obj) -> None: ...

    def from_storage(self, obj: Obj) -> None: ...


@dataclass(frozen=True, slots=True)
class Version:
    name: str
    schema: str = ""  # name of its definition; empty: any fields
    columns: tuple[Column, ...] = NAME_AND_AGE
    conversion: Conversion | None = None
    deprecation: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """Where `…/scale` finds its numbers."""

    spec: tuple[str, ...] = ("spec", "replicas")
    status: tuple[str, ...] = ("status", "replicas")
    selector: tuple[str, ...] = ("spec", "selector")


ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Kind:
    group: str
    kind: str
    plural: str
    versions: tuple[Version, ...]  # the first is preferred, and is the stored one
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    singular: str = ""
    status: bool = False
    scale: Scale | None = None
    subresources: tuple[tuple[str, str, tuple[str, ...]], ...] = ()  # name, kind, verbs
    builtin: bool = True  # strategic merge patch is understood; lists leave out each item's kind
    generation: bool = True
    annotations_count: bool = False  # a change of annotations is a new generation, too
    note: str = ""  # told to whoever creates one: what does not happen with it here
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    verbs: tuple[str, ...] = ALL_VERBS
    stored_as: str = ""  # the resource whose store it shares (events exist in two groups)

    @property
    def resource(self) -> str:
        """`plural` or `plural.group`: the key of the kind everywhere."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def store_key(self) -> str:
        return self.stored_as or self.resource

    @property
    def storage(self) -> Version:
        return self.versions[0]

    def version(self, name: str) -> Version | None:
        return next((version for version in self.versions if version.name == name), None)

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version
