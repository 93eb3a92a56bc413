"""Create, change and delete objects: the order of the steps of a write, the same for every kind.

Everything between reading the old state and handing the new one to the store happens without
waiting, on one event loop, so a write never meets another half-way. Whoever answers waits for the
commit afterwards.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from makeway.control.clock import timestamp
from makeway.embedded.api import ownership
from makeway.embedded.api.bodies import quantity_refusal
from makeway.embedded.api.http import encode
from makeway.embedded.store import Entry, Store
from makeway.kinds.serving.kind import Context, Kind
from makeway.kinds.serving.quantity import NotAQuantityError
from makeway.kinds.serving.refusal import (
    Cause,
    Obj,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
)
from makeway.kinds.serving.registry import Registry

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_FOREGROUND, _ORPHAN = "foregroundDeletion", "orphan"


class Lookup:
    """What the rules of kinds may ask of the store."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry

    def get(self, resource: str, namespace: str, name: str) -> Obj | None:
        entry = self._store.get(resource, namespace, name)
        return entry.decode() if entry else None

    def list(self, resource: str, namespace: str = "") -> Iterable[Obj]:
        return (entry.decode() for entry in self._store.all(resource, namespace))


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    grace_s: int | None = None
    propagation: str = ""
    uid: str = ""
    version: str = ""
    dry_run: bool = False


class Objects:
    """All writes go through here."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self.store = store
        self.registry = registry
        self._lookup = Lookup(store, registry)

    def context(self, now: float) -> Context:
        return Context(now, self._lookup)

    # ---- create ----------------------------------------------------------------------------------

    def create(
        self,
        kind: Kind,
        namespace: str,
        obj: Obj,
        context: Context,
        *,
        dry_run: bool = False,
        managed: list[Obj] | None = None,
    ) -> Entry:
        """Store a new object; `managed` are its managed fields when it comes by server-side
        apply.
        """
        self._place(kind, namespace, obj)
        metadata = obj["metadata"]
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        self._check_namespace(kind, namespace, metadata)
        self._choose_name(kind, namespace, metadata)
        self._stamp(kind, obj, context)
        if managed:
            metadata["managedFields"] = managed
        self._admit_new(kind, obj, context)
        if kind.note:
            context.warnings.append(kind.note)
        if kind.status:
            status = kind.rules.initial_status(obj)
            obj.pop("status", None)
            if status is not None:
                obj["status"] = status
        elif not obj.get("status"):
            obj.pop("status", None)
        return self._put(kind, obj, dry_run=dry_run)

    def _place(self, kind: Kind, namespace: str, obj: Obj) -> None:
        metadata = obj["metadata"]
        given = metadata.get("namespace") or ""
        if not kind.namespaced:
            metadata.pop("namespace", None)
            return
        if given and given != namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the"
                " request"
            )
        metadata["namespace"] = namespace

    def _check_namespace(self, kind: Kind, namespace: str, metadata: Obj) -> None:
        if not kind.namespaced:
            return
        entry = self.store.get("namespaces", "", namespace)
        if entry is None:
            raise not_found("namespaces", "", namespace)
        if b'"deletionTimestamp"' in entry.body and entry.decode()["metadata"].get(
            "deletionTimestamp"
        ):
            name = metadata.get("name") or metadata.get("generateName", "")
            why = (
                f"unable to create new content in namespace {namespace} because it is being"
                f" terminated"
            )
            refusal = forbidden(kind.plural, kind.group, name, why)
            refusal.details["causes"] = [
                {
                    "reason": "NamespaceTerminating",
                    "message": f"namespace {namespace} is being terminated",
                    "field": "metadata.namespace",
                }
            ]
            raise refusal

    def _choose_name(self, kind: Kind, namespace: str, metadata: Obj) -> None:
        """Refuse a name that is taken; make up a free one where the object asks for it."""
        name = metadata.get("name") or ""
        base = metadata.get("generateName") or ""
        if name:
            if self.store.get(kind.store_key, namespace, name) is not None:
                raise already_exists(kind.plural, kind.group, name)
        elif base:
            while not name or self.store.get(kind.store_key, namespace, name) is not None:
                name = base[:58] + "".join(random.choices(_SUFFIX_LETTERS, k=5))
            metadata["name"] = name

    def _stamp(self, kind: Kind, obj: Obj, context: Context) -> None:
        metadata = obj["metadata"]
        metadata["uid"] = _new_uid()
        metadata["creationTimestamp"] = _second(int(context.now))
        for field in (
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "managedFields",
            "generation",
        ):
            metadata.pop(field, None)
        if kind.generation:
            metadata["generation"] = 1
        _drop_empty(metadata)

    def _admit_new(self, kind: Kind, obj: Obj, context: Context) -> None:
        try:
            kind.rules.default(obj)
            # Names are needed to say anything about the object, so they are looked at before
            # admission.
            if not obj["metadata"].get("name"):
                self._refuse(kind, obj, kind.rules.validate(obj) or [_NAME_REQUIRED])
            kind.rules.create(obj, context)
            self._refuse(kind, obj, kind.rules.validate_whole(obj, None))
        except NotAQuantityError as error:
            raise quantity_refusal(kind, error) from error

    def _refuse(self, kind: Kind, obj: Obj, causes: list[Cause]) -> None:
        if causes:
            raise invalid(kind.kind, kind.group, obj["metadata"].get("name", ""), causes)

    # ---- change ----------------------------------------------------------------------------------

    def existing(self, kind: Kind, namespace: str, name: str) -> Entry:
        entry = self.store.get(kind.store_key, namespace, name)
        if entry is None:
            raise not_found(kind.plural, kind.group, name)
        return entry

    def replace(
        self,
        kind: Kind,
        entry: Entry,
        new: Obj,
        context: Context,
        *,
        subresource: str = "",
        dry_run: bool = False,
        manager: str = "",
    ) -> Entry:
        """Put a new state in place of `entry`; unchanged objects keep their version."""
        old = entry.decode()
        self._check_precondition(kind, entry, new)
        self._keep_identity(kind, old, new)
        try:
            if subresource == "status":
                new = self._changed_status(kind, old, new, context)
            else:
                self._changed_object(kind, old, new, context)
        except NotAQuantityError as error:
            raise quantity_refusal(kind, error) from error
        if manager and old["metadata"].get("managedFields"):
            ownership.note_update(kind, old, new, manager, subresource, context.now)
        _drop_empty(new["metadata"])
        if _same(old, new):
            return entry
        if kind.generation and subresource != "status" and _new_generation(kind, old, new):
            new["metadata"]["generation"] = int(old["metadata"].get("generation") or 0) + 1
        if self._is_gone(kind, new):
            return self._remove(kind, new, dry_run=dry_run)
        return self._put(kind, new, dry_run=dry_run)

    def _check_precondition(self, kind: Kind, entry: Entry, new: Obj) -> None:
        metadata = new["metadata"]
        asked = metadata.get("resourceVersion")
        if asked and asked != str(entry.version):
            raise conflict(kind.plural, kind.group, entry.name)
        uid = metadata.get("uid")
        if uid and uid != entry.uid:
            why = (
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: {entry.uid}"
            )
            raise conflict(kind.plural, kind.group, entry.name, why)

    def _keep_identity(self, kind: Kind, old: Obj, new: Obj) -> None:
        before, after = old["metadata"], new["metadata"]
        name = after.get("name") or before["name"]
        if name != before["name"]:
            raise bad_request(
                f"the name of the object ({name}) does not match the name on the URL"
                f" ({before['name']})"
            )
        for field in (
            "name",
            "namespace",
            "uid",
            "creationTimestamp",
            "generation",
            "generateName",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "resourceVersion",
        ):
            if field in before:
                after[field] = before[field]
            else:
                after.pop(field, None)
        if before.get("deletionTimestamp"):
            added = set(after.get("finalizers") or []) - set(before.get("finalizers") or [])
            if added:
                why = (
                    "no new finalizers can be added if the object is being deleted, found new"
                    " finalizers " + str(sorted(added))
                )
                raise invalid(
                    kind.kind,
                    kind.group,
                    before["name"],
                    [Cause("metadata.finalizers", "Forbidden", why, "FieldValueForbidden")],
                )

    def _changed_object(self, kind: Kind, old: Obj, new: Obj, context: Context) -> None:
        if kind.status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        kind.rules.default(new)
        # An earlier version may have stored it without a default that there is now: that is no change of anybody's.
        kind.rules.default(old)
        kind.rules.update(new, old, context)
        self._refuse(kind, new, kind.rules.validate_update(new, old))
        if not new["metadata"].get("deletionTimestamp"):
            self._refuse(kind, new, kind.rules.validate_whole(new, old))

    def _changed_status(self, kind: Kind, old: Obj, given: Obj, context: Context) -> Obj:
        new = dict(old)
        if kind.builtin:
            # As upstream: the status of a built-in kind may bring labels and annotations along.
            new["metadata"] = {**given["metadata"]}
            new["metadata"].pop("ownerReferences", None)
            if "ownerReferences" in old["metadata"]:
                new["metadata"]["ownerReferences"] = old["metadata"]["ownerReferences"]
        else:
            new["metadata"] = dict(old["metadata"])
            if "managedFields" in given["metadata"]:
                new["metadata"]["managedFields"] = given["metadata"]["managedFields"]
        new.pop("status", None)
        if given.get("status") is not None:
            new["status"] = given["status"]
        self._refuse(kind, new, kind.rules.update_status(new, old, context))
        return new

    def write_directly(self, kind: Kind, new: Obj, *, dry_run: bool = False) -> Entry:
        """For subresources that change what a user may not: binding, scale of another field,
        finalize.
        """
        if self._is_gone(kind, new):
            return self._remove(kind, new, dry_run=dry_run)
        return self._put(kind, new, dry_run=dry_run)

    def _is_gone(self, kind: Kind, obj: Obj) -> bool:
        """Being deleted, and nobody holds it any more."""
        metadata = obj["metadata"]
        if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
            return False
        if metadata.get("deletionGracePeriodSeconds"):
            return False  # its node still has to stop it
        if kind.resource == "namespaces":
            return not (obj.get("spec") or {}).get("finalizers")  # its content goes first
        return True

    # ---- delete ----------------------------------------------------------------------------------

    def delete(
        self, kind: Kind, entry: Entry, options: DeleteOptions, context: Context
    ) -> tuple[Entry, bool]:
        """The last (or current) state, and whether the object is gone."""
        obj = entry.decode()
        if options.uid and options.uid != entry.uid:
            why = (
                f"Precondition failed: UID in precondition: {options.uid}, UID in object meta:"
                f" {entry.uid}"
            )
            raise conflict(kind.plural, kind.group, entry.name, why)
        if options.version and options.version != str(entry.version):
            why = (
                f"Precondition failed: ResourceVersion in precondition: {options.version},"
                f" ResourceVersion in object meta: {entry.version}"
            )
            raise conflict(kind.plural, kind.group, entry.name, why)
        kind.rules.delete(obj, context)
        metadata = obj["metadata"]
        already = bool(metadata.get("deletionTimestamp"))
        self._add_deletion_finalizers(metadata, options.propagation)
        grace_s = self._grace(kind, obj, options)
        if already and not self._shorten(metadata, grace_s, context):
            if _same(entry.decode(), obj):
                return entry, False
        elif not already:
            metadata["deletionTimestamp"] = timestamp(context.now + grace_s)
            metadata["deletionGracePeriodSeconds"] = grace_s
            if metadata.get("generation"):
                metadata["generation"] = int(metadata["generation"]) + 1
        if kind.kind == "Namespace" and not kind.group:
            obj.setdefault("status", {})["phase"] = "Terminating"
        _drop_empty(metadata)
        if self._is_gone(kind, obj):
            return self._remove(kind, obj, dry_run=options.dry_run), True
        return self._put(kind, obj, dry_run=options.dry_run), False

    def _add_deletion_finalizers(self, metadata: Obj, propagation: str) -> None:
        wanted = {"Foreground": _FOREGROUND, "Orphan": _ORPHAN}.get(propagation)
        if propagation not in ("", "Background", "Foreground", "Orphan"):
            raise bad_request(
                f'propagationPolicy: Unsupported value: "{propagation}": supported values:'
                f' "Background", "Foreground", "Orphan"'
            )
        if propagation:
            finalizers = [
                f for f in metadata.get("finalizers") or [] if f not in (_FOREGROUND, _ORPHAN)
            ]
            metadata["finalizers"] = [*finalizers, wanted] if wanted else finalizers

    def _grace(self, kind: Kind, obj: Obj, options: DeleteOptions) -> int:
        """Only pods that a node runs are given time to end."""
        if kind.resource != "pods":
            return 0
        spec, phase = obj["spec"], (obj.get("status") or {}).get("phase")
        if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
            return 0
        if options.grace_s is not None:
            return max(options.grace_s, 0)
        return int(spec.get("terminationGracePeriodSeconds", 30))

    def _shorten(self, metadata: Obj, grace_s: int, context: Context) -> bool:
        """A second deletion may only bring the end nearer."""
        before = int(metadata.get("deletionGracePeriodSeconds") or 0)
        if grace_s >= before:
            return False
        metadata["deletionGracePeriodSeconds"] = grace_s
        metadata["deletionTimestamp"] = timestamp(context.now + grace_s)
        return True

    def purge(self, kind: Kind) -> None:
        """Remove every object of a kind that is no longer served."""
        for entry in list(self.store.all(kind.store_key)):
            self._remove(kind, entry.decode(), dry_run=False)

    # ---- the store -------------------------------------------------------------------------------

    def _entry(self, obj: Obj, version: int) -> Entry:
        metadata = obj["metadata"]
        metadata["resourceVersion"] = str(version)
        return Entry(
            metadata.get("namespace", ""),
            metadata["name"],
            metadata["uid"],
            version,
            encode(obj),
            metadata.get("labels"),
        )

    def _put(self, kind: Kind, obj: Obj, *, dry_run: bool) -> Entry:
        if dry_run:
            # Nothing is stored; a new object has no version, a changed one keeps the one it had.
            version = int(obj["metadata"].get("resourceVersion") or 0)
            entry = self._entry(obj, version)
            if not version:
                obj["metadata"].pop("resourceVersion")
                entry = Entry(
                    entry.namespace,
                    entry.name,
                    entry.uid,
                    self.store.committed_version,
                    encode(obj),
                    entry.labels,
                )
            return entry
        entry = self._entry(obj, self.store.next_version())
        self.store.put(kind.store_key, entry)
        return entry

    def _remove(self, kind: Kind, obj: Obj, *, dry_run: bool) -> Entry:
        if dry_run:
            return self._entry(obj, int(obj["metadata"].get("resourceVersion") or 0))
        entry = self._entry(obj, self.store.next_version())
        self.store.remove(kind.store_key, entry)
        return entry


def _new_uid() -> str:
    """A random UUID without a call into the system for each, which would hand the lock to the writer."""
    return str(uuid.UUID(int=random.getrandbits(128), version=4))


@lru_cache(maxsize=8)
def _second(now: int) -> str:
    return timestamp(now)


_NAME_REQUIRED = Cause(
    "metadata.name", "Required value", "name or generateName is required", "FieldValueRequired"
)


def _drop_empty(metadata: Obj) -> None:
    for field in ("labels", "annotations", "finalizers", "ownerReferences", "managedFields"):
        if field in metadata and not metadata[field]:
            del metadata[field]
    for field in [field for field, value in metadata.items() if value is None]:
        del metadata[field]


def _same(old: Obj, new: Obj) -> bool:
    if {k: v for k, v in old.items() if k != "metadata"} != {
        k: v for k, v in new.items() if k != "metadata"
    }:
        return False
    return _comparable(old["metadata"]) == _comparable(new["metadata"])


def _comparable(metadata: Obj) -> Obj:
    """Metadata without what every write changes: the version, and the times of managed fields."""
    kept = {key: value for key, value in metadata.items() if key != "resourceVersion"}
    if "managedFields" in kept:
        kept["managedFields"] = [
            {key: value for key, value in manager.items() if key != "time"}
            for manager in kept["managedFields"]
        ]
    return kept


def _new_generation(kind: Kind, old: Obj, new: Obj) -> bool:
    if kind.annotations_count:
        before, after = (obj["metadata"].get("annotations") for obj in (old, new))
        if before != after:
            return True
    ignored = ("metadata", "status")
    return {k: v for k, v in old.items() if k not in ignored} != {
        k: v for k, v in new.items() if k not in ignored
    }
