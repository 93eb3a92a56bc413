"""Which resources the server has: the garbage collector and namespaces must know all of them."""

from __future__ import annotations

import msgspec

from makeway.client import Client
from makeway.client.resource import Object, Resource


class Served(msgspec.Struct, frozen=True):
    resource: Resource
    kind: str
    verbs: frozenset[str]


async def discover(client: Client) -> list[Served]:
    """Every resource once, in the version that its group prefers."""
    groups = await client.request("GET", "/apis")
    versions = [("", "v1")]
    for group in groups.get("groups") or []:
        preferred = group.get("preferredVersion") or group["versions"][0]
        versions.append((group["name"], preferred["version"]))
    served: list[Served] = []
    for name, version in versions:
        path = f"/apis/{name}/{version}" if name else f"/api/{version}"
        served += _resources(name, version, await client.request("GET", path))
    return served


def _resources(group: str, version: str, answer: Object) -> list[Served]:
    return [
        Served(
            Resource(group, version, entry["name"], bool(entry["namespaced"])),
            entry["kind"],
            frozenset(entry.get("verbs") or ()),
        )
        for entry in answer.get("resources") or []
        if "/" not in entry["name"]
    ]
