"""`makeway describe KIND NAME`: the object for a reader: what it is, why it waits, its conditions, and what happened to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from makeway.cli.cluster import with_client
from makeway.cli.discovery import ServedKind, served
from makeway.cli.get import objects, read_asked
from makeway.cli.output import out
from makeway.cli.waiting import WORKLOADS, why
from makeway.client import Client
from makeway.client.resource import CORE_EVENTS
from makeway.control.clock import SystemClock, parse_timestamp
from makeway.errors import UserError
from makeway.kinds.metadata import QUEUE_NAME
from makeway.kinds.serving.columns import human_duration

Object = dict[str, Any]
_NOISE = ("managedFields", "resourceVersion", "uid", "generation")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def describe(home: Path | None, what: list[str], namespace: str) -> None:
    async def work(client: Client) -> None:
        asked = read_asked(await served(client), what, namespace, everywhere=False, selector="")
        found = [pair for each in asked for pair in await objects(client, each)]
        if not found:
            raise UserError(
                f"there is none in namespace {namespace}.",
                hint="Look everywhere: makeway get KIND -A",
            )
        described = [await _facts(client, kind, obj) for kind, obj in found]
        if out.as_json:
            out.result(described)
            return
        for index, facts in enumerate(described):
            if index:
                print("\n")
            _print(facts)

    with_client(home, work)


async def _facts(client: Client, kind: ServedKind, obj: Object) -> Object:
    facts: Object = {"object": obj, "events": await _events(client, obj)}
    workload = obj if kind.kind == "Workload" else await _workload_of(client, obj)
    if workload is not None:
        facts["why"] = await why(client, workload)
    return facts


async def _workload_of(client: Client, obj: Object) -> Object | None:
    """What queues for a job: people know their job's name, not its Workload's."""
    namespace = obj["metadata"].get("namespace") or ""
    if not namespace or QUEUE_NAME not in (obj["metadata"].get("labels") or {}):
        return None
    for workload in await client.list(WORKLOADS, namespace):
        owners = workload["metadata"].get("ownerReferences") or []
        if any(owner["uid"] == obj["metadata"]["uid"] for owner in owners):
            return workload
    return None


async def _events(client: Client, obj: Object) -> list[Object]:
    metadata = obj["metadata"]
    selector = f"involvedObject.uid={metadata['uid']}"
    namespace = metadata.get("namespace") or ""
    found = await client.list(CORE_EVENTS, namespace, field_selector=selector)
    return sorted(found, key=lambda event: str(_last_seen(event)))


def _last_seen(event: Object) -> str:
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
        or ""
    )


def _print(facts: Object) -> None:
    obj = facts["object"]
    metadata = {k: v for k, v in obj["metadata"].items() if k not in _NOISE}
    print(f"{obj['kind']} {metadata.pop('name')}" + _of(metadata.pop("namespace", "")))
    annotations = {
        k: v for k, v in (metadata.get("annotations") or {}).items() if k != _LAST_APPLIED
    }
    metadata["annotations"] = annotations
    _block("metadata", {key: value for key, value in metadata.items() if value})
    _block("spec", obj.get("spec"))
    status = dict(obj.get("status") or {})
    conditions = status.pop("conditions", None) or []
    _block("status", status)
    for key in sorted(set(obj) - {"apiVersion", "kind", "metadata", "spec", "status"}):
        _block(key, obj[key])
    _conditions(conditions)
    if facts.get("why"):
        print(f"\nWhy does it wait? {facts['why']}")
    _events_table(facts["events"])


def _of(namespace: str) -> str:
    return f" in namespace {namespace}" if namespace else ""


def _block(title: str, content: Any) -> None:
    if not content:
        return
    if not isinstance(content, dict | list):
        print(f"{title}: {content}")
        return
    text = yaml.safe_dump(content, sort_keys=False, width=100).rstrip()
    print(f"{title}:")
    print("\n".join(f"  {line}" for line in text.splitlines()))


def _conditions(conditions: list[Object]) -> None:
    if not conditions:
        return
    print("conditions:")
    for one in conditions:
        reason = f" ({one['reason']})" if one.get("reason") else ""
        message = f": {one['message']}" if one.get("message") else ""
        print(f"  {one['type']} {one['status']}{reason}{message}")


def _events_table(events: list[Object]) -> None:
    if not events:
        print("\nevents: none")
        return
    print("\nevents:")
    now = SystemClock().now()
    rows = [
        [
            _age(event, now),
            event.get("type") or "",
            event.get("reason") or "",
            event.get("message") or event.get("note") or "",
        ]
        for event in events
    ]
    out.table(("AGE", "TYPE", "REASON", "MESSAGE"), rows)


def _age(event: Object, now: float) -> str:
    seen = _last_seen(event)
    return human_duration(now - parse_timestamp(seen)) if seen else "<unknown>"
