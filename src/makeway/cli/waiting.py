"""Why a workload waits, in one sentence with numbers: what it lacks, who has it, and what would change that.

The server's condition says what is short. Here is added what a person asks next: how much there is and how much of it is in
use, and who runs on it now.
"""

from __future__ import annotations

from typing import Any

import msgspec

from makeway.cli.nearby import did_you_mean
from makeway.client import Client, Resource
from makeway.model.resources import amount_of, format_amount

Object = dict[str, Any]
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
LOCAL_QUEUES = Resource("kueue.x-k8s.io", "v1beta2", "localqueues")
CLUSTER_QUEUES = Resource("kueue.x-k8s.io", "v1beta2", "clusterqueues", namespaced=False)
_NAMED = 3
_PREEMPTED = "Preempted to accommodate"


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be known to say why anybody waits: asked for once, for all who do."""

    workloads: list[Object]
    cluster_queues: dict[str, Object]
    local_queues: dict[tuple[str, str], str]  # namespace and name: its ClusterQueue


async def scene(client: Client) -> Scene:
    return Scene(
        workloads=await client.list(WORKLOADS),
        cluster_queues={q["metadata"]["name"]: q for q in await client.list(CLUSTER_QUEUES)},
        local_queues={
            (q["metadata"]["namespace"], q["metadata"]["name"]): str(q["spec"].get("clusterQueue"))
            for q in await client.list(LOCAL_QUEUES)
        },
    )


async def why(client: Client, workload: Object) -> str:
    return why_in(await scene(client), workload)


def why_in(seen: Scene, workload: Object) -> str:
    if condition_is(workload, "Finished"):
        return "it does not wait: it has finished."
    said = condition_of(workload, "QuotaReserved") or {}
    if said.get("status") == "True":
        return "it does not wait for quota: that is reserved."
    near = _near(seen, workload)
    holders = _holders(seen, workload, near)
    parts = [
        _said(said),
        _other_name(seen, workload),
        _numbers(workload, near, holders),
        _who(workload, holders),
    ]
    return " ".join(part for part in parts if part)


def _said(condition: Object) -> str:
    message = str(condition.get("message") or "it has not been looked at yet")
    if message.startswith(_PREEMPTED):
        _, _, preemptor = message.partition("; preemptor: ")
        return f"it was stopped for {preemptor.replace('; loss:', '; lost:') or 'another one'}."
    return f"{message}."


def _other_name(seen: Scene, workload: Object) -> str:
    """For whoever mistyped the queue: which ones the namespace has."""
    space, said = workload["metadata"]["namespace"], str(workload["spec"].get("queueName") or "")
    names = sorted(name for where, name in seen.local_queues if where == space)
    if said in names:
        return ""
    if not names:
        return f"Namespace {space} has no LocalQueue."
    return did_you_mean(said, names) or f"Namespace {space} has {', '.join(names)}."


def _near(seen: Scene, workload: Object) -> dict[str, Object]:
    """The ClusterQueues whose quota it may come to use: its own, and those of its cohort."""
    place = (workload["metadata"]["namespace"], str(workload["spec"].get("queueName")))
    own = seen.cluster_queues.get(seen.local_queues.get(place, ""))
    if own is None:
        return {}
    cohort = _cohort(own)
    return {
        name: queue
        for name, queue in seen.cluster_queues.items()
        if queue is own or (cohort and _cohort(queue) == cohort)
    }


def _cohort(queue: Object) -> str:
    return str(queue["spec"].get("cohortName") or queue["spec"].get("cohort") or "")


def _numbers(workload: Object, near: dict[str, Object], holders: list[Object]) -> str:
    """`It asks for 5 cpu; cohort team-ab has 10, of which 7 are in use.`"""
    if not near:
        return ""
    queues = list(near.values())
    owner = f"cohort {_cohort(queues[0])}" if len(queues) > 1 else f"queue {next(iter(near))}"
    texts = []
    for resource, asked in sorted(_asked(workload).items()):
        total = sum(_quota(queue, resource) for queue in queues)
        used = sum(_used(holder, resource) for holder in holders)
        if asked + used > total:
            texts.append(
                f"it asks for {_amount(resource, asked)} {resource}; {owner} has"
                f" {_amount(resource, total)}, of which {_amount(resource, used)} are in use"
            )
    return f"{_capital('; '.join(texts))}." if texts else ""


def _amount(resource: str, amount: int) -> str:
    return format_amount(resource, amount)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _asked(workload: Object) -> dict[str, int]:
    asked: dict[str, int] = {}
    for pod_set in workload["spec"].get("podSets") or []:
        count = int(pod_set.get("count") or 1)
        for container in pod_set["template"]["spec"].get("containers") or []:
            resources = container.get("resources") or {}
            wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
            for resource, amount in wanted.items():
                more = amount_of(resource, str(amount)) * count
                asked[resource] = asked.get(resource, 0) + more
    return asked


def _quota(queue: Object, resource: str) -> int:
    return sum(
        amount_of(resource, str(each["nominalQuota"]))
        for group in queue["spec"].get("resourceGroups") or []
        for flavor in group["flavors"]
        for each in flavor["resources"]
        if each["name"] == resource
    )


def _used(workload: Object, resource: str) -> int:
    """What a workload with quota was given; the queue's own sum is written a moment later."""
    admission = (workload.get("status") or {}).get("admission") or {}
    return sum(
        amount_of(resource, str((given.get("resourceUsage") or {}).get(resource, "0")))
        for given in admission.get("podSetAssignments") or []
    )


def _holders(seen: Scene, workload: Object, near: dict[str, Object]) -> list[Object]:
    """Who has quota there, the highest priority first."""
    holders = [
        other
        for other in seen.workloads
        if reserved_in(other) in near
        and not condition_is(other, "Finished")
        and other["metadata"]["uid"] != workload["metadata"]["uid"]
    ]
    return sorted(holders, key=lambda w: (-int(w["spec"].get("priority") or 0), display_name(w)))


def _who(workload: Object, holders: list[Object]) -> str:
    if not holders:
        return ""
    verb = "runs" if len(holders) == 1 else "run"
    return f"{_names(holders)} {verb} there; {display_name(workload)} starts by itself when there is room."


def _names(workloads: list[Object]) -> str:
    names = [
        f"{w['metadata']['namespace']}/{display_name(w)} (priority {w['spec'].get('priority') or 0})"
        for w in workloads
    ]
    if len(names) <= _NAMED:
        return " and ".join(names)
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"


def display_name(workload: Object) -> str:
    """The name its owner gave: the job's, not the Workload's made-up one."""
    for owner in workload["metadata"].get("ownerReferences") or []:
        if owner.get("controller"):
            return str(owner["name"])
    return str(workload["metadata"]["name"])


def reserved_in(workload: Object) -> str | None:
    if not condition_is(workload, "QuotaReserved"):
        return None
    admission = (workload.get("status") or {}).get("admission") or {}
    return str(admission.get("clusterQueue") or "") or None


def condition_of(obj: Object, kind: str) -> Object | None:
    for one in (obj.get("status") or {}).get("conditions") or []:
        if one["type"] == kind:
            found: Object = one
            return found
    return None


def condition_is(obj: Object, kind: str) -> bool:
    return (condition_of(obj, kind) or {}).get("status") == "True"
