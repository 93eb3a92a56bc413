"""`makeway apply -f`: create what is not there, change what is; for people without kubectl, and in its way.

What was applied is kept in the annotation that kubectl uses too, so that a field taken out of the file is taken out of the
object, and both programs can be used in turn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from makeway.cli.cluster import refusal, with_client
from makeway.cli.discovery import Served, ServedKind, served
from makeway.cli.manifests import Manifest, read
from makeway.cli.output import out
from makeway.client import ApiError, Client
from makeway.errors import UserError

Object = dict[str, Any]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# Kinds whose lists the server merges by key; it takes no such patch for kinds that were added to it.
_BUILT_IN = frozenset({"", "apps", "batch", "policy", "scheduling.k8s.io", "coordination.k8s.io"})


# What others need first; kinds that are not listed come last, in the order they were written.
_ORDER = (
    "Namespace",
    "CustomResourceDefinition",
    "PriorityClass",
    "WorkloadPriorityClass",
    "Node",
    "Topology",
    "ResourceFlavor",
    "AdmissionCheck",
    "Cohort",
    "ClusterQueue",
    "LocalQueue",
    "ServiceAccount",
    "ConfigMap",
    "Secret",
    "PodGroup",
)


def in_order(manifests: list[Manifest]) -> list[Manifest]:
    """A folder is read by file name, which knows nothing of what needs what."""
    rank = {kind: index for index, kind in enumerate(_ORDER)}
    return sorted(manifests, key=lambda one: rank.get(one.obj["kind"], len(rank)))


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    object: str
    outcome: str  # created, configured or unchanged


def apply(
    home: Path | None, files: list[str], namespace: str, *, recursive: bool, dry_run: bool
) -> None:
    manifests = in_order(read(files, recursive=recursive))

    async def work(client: Client) -> list[Applied]:
        kinds = await served(client)
        done: list[Applied] = []
        failed: list[UserError] = []
        # One bad object does not keep the others out, as with kubectl.
        for manifest in manifests:
            try:
                one = await apply_one(client, kinds, manifest, namespace, dry_run=dry_run)
            except UserError as error:
                failed.append(error)
                continue
            done.append(one)
            out.say(f"{one.object} {one.outcome}{' (dry run)' if dry_run else ''}")
        tell_failures(failed)
        return done

    out.result(with_client(home, work))


def tell_failures(failed: list[UserError]) -> None:
    """All of them; the last becomes the outcome of the command."""
    if not failed:
        return
    for error in failed[:-1]:
        out.complain(f"Error: {error}")
    raise failed[-1]


async def apply_one(
    client: Client, kinds: Served, manifest: Manifest, namespace: str = "", *, dry_run: bool = False
) -> Applied:
    obj = manifest.obj
    kind = kinds.by_object(obj["apiVersion"], obj["kind"], manifest.where)
    try:
        outcome = await _create_or_change(client, kind, obj, namespace, dry_run=dry_run)
    except ApiError as error:
        raise UserError(refusal(error), where=manifest.where, hint=error.hint) from error
    return Applied(object=f"{kind.label}/{manifest.name}", outcome=outcome)


async def _create_or_change(
    client: Client, kind: ServedKind, obj: Object, namespace: str, *, dry_run: bool
) -> str:
    metadata = obj["metadata"]
    place = (
        str(metadata.get("namespace") or namespace or "default") if kind.resource.namespaced else ""
    )
    params = {"dryRun": "All"} if dry_run else {}
    noted = _with_note(obj)
    if not metadata.get("name"):
        await client.request("POST", kind.resource.path(place), body=obj, params=params)
        return "created"
    path = kind.resource.path(place, metadata["name"])
    try:
        current = await client.request("GET", path)
    except ApiError as error:
        if not error.not_found:
            raise
        await client.request("POST", kind.resource.path(place), body=noted, params=params)
        return "created"
    patch = _merged(_removals(_last_applied(current), obj), noted)
    form = "strategic" if kind.resource.group in _BUILT_IN else "merge"
    changed = await client.request(
        "PATCH",
        path,
        body=patch,
        params=params,
        content_type=f"application/{'strategic-merge' if form == 'strategic' else 'merge'}-patch+json",
    )
    same = changed["metadata"].get("resourceVersion") == current["metadata"].get("resourceVersion")
    return "unchanged" if same else "configured"


def _with_note(obj: Object) -> Object:
    note = msgspec.json.encode(obj).decode() + "\n"
    metadata = obj["metadata"]
    annotations = {**(metadata.get("annotations") or {}), LAST_APPLIED: note}
    return {**obj, "metadata": {**metadata, "annotations": annotations}}


def _last_applied(current: Object) -> Object:
    note = (current["metadata"].get("annotations") or {}).get(LAST_APPLIED)
    try:
        before = msgspec.json.decode(note) if note else {}
    except msgspec.DecodeError:
        before = {}
    return before if isinstance(before, dict) else {}


def _removals(before: Object, now: Object) -> Object:
    """A patch that takes out what was applied before and is no longer written."""
    patch: Object = {}
    for key, value in before.items():
        if key not in now:
            patch[key] = None
        elif isinstance(value, dict) and isinstance(now[key], dict):
            inner = _removals(value, now[key])
            if inner:
                patch[key] = inner
    return patch


def _merged(base: Object, over: Object) -> Object:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = (
            _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged
