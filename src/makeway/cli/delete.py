"""`makeway delete`: by kind and name, by label, or what a file names; waits until it is gone, as kubectl does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from makeway.cli.apply import tell_failures
from makeway.cli.cluster import refusal, with_client
from makeway.cli.discovery import Served, ServedKind, served
from makeway.cli.get import Asked, missing, objects, read_asked
from makeway.cli.manifests import read
from makeway.cli.output import out
from makeway.client import ApiError, Client
from makeway.errors import UserError

Object = dict[str, Any]


class Doomed(msgspec.Struct, frozen=True, kw_only=True):
    kind: ServedKind
    name: str
    namespace: str = ""
    uid: str = ""

    @property
    def path(self) -> str:
        return self.kind.resource.path(self.namespace, self.name)


def delete(
    home: Path | None,
    what: list[str],
    files: list[str],
    namespace: str,
    selector: str,
    *,
    everything: bool,
    grace_s: int | None,
    wait: bool,
) -> None:
    if bool(what) == bool(files):
        raise UserError(
            "what should be deleted?",
            hint="Write makeway delete KIND NAME, or makeway delete -f FILE.",
        )

    async def work(client: Client) -> list[str]:
        kinds = await served(client)
        if files:
            doomed = _in_files(kinds, files, namespace)
        else:
            doomed = await _named(client, kinds, what, namespace, selector, everything=everything)
        failed: list[UserError] = []
        gone: list[str] = []
        for one in doomed:
            try:
                await _delete(client, one, grace_s)
            except UserError as error:
                failed.append(error)
                continue
            gone.append(f"{one.kind.label}/{one.name}")
            out.say(f'{one.kind.label} "{one.name}" deleted')
        if wait:
            await _until_gone(client, doomed)
        if not doomed:
            out.say("No resources found.")
        tell_failures(failed)
        return gone

    out.result(with_client(home, work))


def _in_files(kinds: Served, files: list[str], namespace: str) -> list[Doomed]:
    """The last first, so that what others stand on goes after them."""
    found = []
    for manifest in reversed(read(files)):
        kind = kinds.by_object(manifest.obj["apiVersion"], manifest.obj["kind"], manifest.where)
        place = str(manifest.obj["metadata"].get("namespace") or namespace)
        scoped = place if kind.resource.namespaced else ""
        found.append(Doomed(kind=kind, name=manifest.name, namespace=scoped))
    return found


async def _named(
    client: Client,
    kinds: Served,
    what: list[str],
    namespace: str,
    selector: str,
    *,
    everything: bool,
) -> list[Doomed]:
    asked = read_asked(kinds, what, namespace, everywhere=False, selector=selector)
    if not any(each.names for each in asked) and not (selector or everything):
        raise UserError(
            "which ones?",
            hint=f"Name them, or choose with -l LABEL=VALUE, or write --all: {what[0]}.",
        )
    return [
        Doomed(
            kind=kind,
            name=obj["metadata"]["name"],
            namespace=obj["metadata"].get("namespace") or "",
            uid=obj["metadata"]["uid"],
        )
        for each in asked
        for kind, obj in await objects(client, each)
    ]


async def _delete(client: Client, one: Doomed, grace_s: int | None) -> None:
    try:
        await client.delete(
            one.kind.resource,
            one.name,
            one.namespace,
            uid=one.uid,
            grace_s=grace_s,
            propagation="Background",
        )
    except ApiError as error:
        if error.not_found:
            asked = Asked(kinds=(one.kind,), namespace=one.namespace or "default")
            raise await missing(client, asked, one.kind, one.name) from error
        raise UserError(refusal(error), where=f"{one.kind.label}/{one.name}") from error


async def _until_gone(client: Client, doomed: list[Doomed]) -> None:
    for one in doomed:
        with out.progress(f"waiting until {one.kind.label} {one.name} is gone…"):
            while await _is_there(client, one):
                await asyncio.sleep(0.1)


async def _is_there(client: Client, one: Doomed) -> bool:
    try:
        found = await client.request("GET", one.path)
    except ApiError as error:
        if error.not_found:
            return False
        raise
    return not one.uid or found["metadata"]["uid"] == one.uid
