"""Why a workload waits, in one sentence with numbers: what it lacks, who has it, and what would change that.

The server's condition says what is short. Here the names are added that a person asks for next: who runs on that quota now.
"""

from __future__ import annotations

from typing import Any

from makeway.client import Client, Resource

Object = dict[str, Any]
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
LOCAL_QUEUES = Resource("kueue.x-k8s.io", "v1beta2", "localqueues")
CLUSTER_QUEUES = Resource("kueue.x-k8s.io", "v1beta2", "clusterqueues", namespaced=False)
_NAMED = 3


async def why(client: Client, workload: Object) -> str:
    said = condition_of(workload, "QuotaReserved")
    message = (said or {}).get("message") or "it has not been looked at yet"
    if said is not None and said.get("status") == "True":
        return "it does not wait: its quota is reserved."
    holders = await _holders(client, workload)
    sentence = f"{message}."
    if holders:
        sentence += f" {_names(holders)} {'has' if len(holders) == 1 else 'have'} it now; {display_name(workload)} starts by itself when there is room."
    return sentence


async def _holders(client: Client, workload: Object) -> list[Object]:
    """Who runs in the same queue or cohort, the largest priority first."""
    own = workload["metadata"]
    queues = {q["metadata"]["name"]: q for q in await client.list(CLUSTER_QUEUES)}
    home = await _cluster_queue_of(client, workload)
    near = {
        name for name, queue in queues.items() if name == home or _together(queue, queues.get(home))
    }
    holders = [
        other
        for other in await client.list(WORKLOADS)
        if reserved_in(other) in near
        and not condition_is(other, "Finished")
        and other["metadata"]["uid"] != own["uid"]
    ]
    return sorted(holders, key=lambda w: (-int(w["spec"].get("priority") or 0), display_name(w)))


async def _cluster_queue_of(client: Client, workload: Object) -> str:
    for queue in await client.list(LOCAL_QUEUES, workload["metadata"]["namespace"]):
        if queue["metadata"]["name"] == workload["spec"].get("queueName"):
            return str(queue["spec"].get("clusterQueue") or "")
    return ""


def _together(queue: Object, other: Object | None) -> bool:
    cohort = queue["spec"].get("cohortName") or queue["spec"].get("cohort")
    if not cohort or other is None:
        return False
    return bool(cohort == (other["spec"].get("cohortName") or other["spec"].get("cohort")))


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
