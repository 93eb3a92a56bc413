"""The kinds that the server serves, by every name that people use for them: `pods`, `pod`, `po`, `Pod`, `workloads.kueue.x-k8s.io`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from makeway.cli.nearby import did_you_mean
from makeway.client import Client, Resource
from makeway.errors import UserError


class ServedKind(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    resource: Resource
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    preferred: bool = True  # the version that is meant when none is named

    @property
    def names(self) -> tuple[str, ...]:
        plural = self.resource.plural
        singular = self.singular or self.kind.lower()
        return (plural, singular, self.kind.lower(), *self.short_names)

    @property
    def label(self) -> str:
        """As kubectl prefixes what it created: `job.batch`."""
        singular = self.singular or self.kind.lower()
        return f"{singular}.{self.resource.group}" if self.resource.group else singular


class Served:
    def __init__(self, kinds: Iterable[ServedKind]) -> None:
        self.kinds = tuple(kinds)

    def by_name(self, said: str) -> ServedKind:
        """A kind as typed on the command line, with or without its group."""
        name, _, group = said.lower().partition(".")
        for kind in self.kinds:
            if (
                kind.preferred
                and name in kind.names
                and (not group or _is_group(kind.resource, group))
            ):
                return kind
        known = [name for kind in self.kinds for name in kind.names]
        raise UserError(
            f'no kind called "{said}".',
            hint=did_you_mean(name, known)
            or "List them: makeway get --help, or kubectl api-resources",
        )

    def by_object(self, api_version: str, kind: str, where: str) -> ServedKind:
        for served in self.kinds:
            if served.kind == kind and served.resource.api_version == api_version:
                return served
        raise UserError(
            f'no kind "{kind}" in {api_version} here.',
            where=where,
            hint=self._near(api_version, kind),
        )

    def _near(self, api_version: str, kind: str) -> str:
        others = [k.resource.api_version for k in self.kinds if k.kind == kind]
        if others:
            return f"{kind} is served as {', '.join(sorted(others))}. Write apiVersion: {others[0]}"
        return did_you_mean(kind, [k.kind for k in self.kinds])


def _is_group(resource: Resource, said: str) -> bool:
    """`jobs.batch`, `jobs.v1.batch`."""
    return said in (resource.group, f"{resource.version}.{resource.group}")


async def served(client: Client) -> Served:
    groups = (await client.request("GET", "/apis")).get("groups") or []
    core = _kinds(await client.request("GET", "/api/v1"), "", "v1", preferred=True)
    versions = [
        (group["name"], one["version"], one["version"] == group["preferredVersion"]["version"])
        for group in groups
        for one in group["versions"]
    ]
    lists = await asyncio.gather(
        *(client.request("GET", f"/apis/{group}/{version}") for group, version, _ in versions)
    )
    found = core
    for (group, version, preferred), resources in zip(versions, lists, strict=True):
        found += _kinds(resources, group, version, preferred=preferred)
    return Served(found)


def _kinds(
    resources: dict[str, object], group: str, version: str, *, preferred: bool
) -> list[ServedKind]:
    listed = resources.get("resources")
    assert isinstance(listed, list)
    return [
        ServedKind(
            kind=one["kind"],
            resource=Resource(group, version, one["name"], one["namespaced"]),
            singular=one.get("singularName") or "",
            short_names=tuple(one.get("shortNames") or ()),
            categories=tuple(one.get("categories") or ()),
            preferred=preferred,
        )
        for one in listed
        if "/" not in one["name"]
    ]
