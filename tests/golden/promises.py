"""What holds whatever was recorded: the promises, looked at after each step from the API's own history.

Room on nodes is followed write by write; gangs, quota, reasons and open preemptions are looked at when a step is over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from makeway.embedded.store import Change
from makeway.model.resources import amount_of
from tests.golden.comparing import Outcome
from tests.golden.facts import Key
from tests.golden.recording import Json
from tests.golden.replay import Replay, amounts, requests

TERMINAL = ("Succeeded", "Failed")
GROUP_LABELS = (
    "pod-group.scheduling.sigs.k8s.io",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/name",
)
KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
OPEN = ("Planned", "Evicting", "Draining")

Fact = tuple[str, str, str]  # about, promise, what broke it ("" when it holds)


def broken(step: str, replay: Replay) -> list[Outcome]:
    checks = (
        node_room(replay),
        gangs_whole(replay),
        quota_kept(replay),
        everyone_has_a_reason(replay),
        no_eviction_in_vain(replay),
    )
    return [
        Outcome(
            step,
            Key("promise", about, promise),
            "different" if fault else "equal",
            "kept",
            fault or "kept",
        )
        for check in checks
        for about, promise, fault in check
    ]


# ---- never over --------------------------------------------------------------------------------------


def node_room(replay: Replay) -> Iterator[Fact]:
    offered = {name: offer for name, (_, offer) in replay.room().items()}
    over: dict[str, str] = {}
    bound = dict(replay.bound)
    for change in replay.changes:
        if change.kind == "pods" and (touched := _rebind(bound, change)):
            over.setdefault(touched, _excess(bound, touched, offered.get(touched)))
            over[touched] = over[touched] or _excess(bound, touched, offered.get(touched))
    replay.bound = bound
    for node, fault in over.items():
        yield f"Node {node}", "room is never exceeded", fault


def _rebind(bound: dict[str, tuple[str, dict[str, int]]], change: Change) -> str:
    """Follow one write on a pod; the node on which somebody came."""
    pod = change.last.decode()
    uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
    ended = (pod.get("status") or {}).get("phase") in TERMINAL
    if change.after is None or not node or ended:
        bound.pop(uid, None)
        return ""
    fresh = uid not in bound
    bound[uid] = (node, requests(pod))
    return str(node) if fresh else ""


def _excess(
    bound: dict[str, tuple[str, dict[str, int]]], node: str, offered: dict[str, int] | None
) -> str:
    if offered is None:
        return ""
    used: dict[str, int] = defaultdict(int)
    for where, asked in bound.values():
        if where == node:
            for resource, amount in asked.items():
                used[resource] += amount
    over = {r: f"{used[r]} of {offered.get(r, 0)}" for r in used if used[r] > offered.get(r, 0)}
    return str(over) if over else ""


def quota_kept(replay: Replay) -> Iterator[Fact]:
    """Reserved quota of each cohort, or of each queue without one, stays within what is there."""
    objects = replay.objects()
    cohort_of = {}
    nominal: dict[tuple[str, str, str], int] = defaultdict(int)
    for queue in objects["clusterQueues"]:
        name = queue["metadata"]["name"]
        home = queue["spec"].get("cohortName") or name
        cohort_of[name] = home
        for flavor, resource in _quotas(queue):
            amount = amount_of(resource["name"], resource["nominalQuota"])
            nominal[home, flavor, resource["name"]] += amount
    for cohort in objects["cohorts"]:
        for flavor, resource in _quotas(cohort):
            amount = amount_of(resource["name"], resource["nominalQuota"])
            nominal[cohort["metadata"]["name"], flavor, resource["name"]] += amount
    used: dict[tuple[str, str, str], int] = defaultdict(int)
    for workload in objects["workloads"]:
        admission = (workload.get("status") or {}).get("admission") or {}
        home = cohort_of.get(admission.get("clusterQueue", ""), "")
        for assigned in admission.get("podSetAssignments") or () if not _finished(workload) else ():
            for resource, flavor in (assigned.get("flavors") or {}).items():
                amount = amounts(assigned.get("resourceUsage")).get(resource, 0)
                used[home, flavor, resource] += amount
    for key, amount in used.items():
        fault = f"{amount} of {nominal[key]}" if key[0] and amount > nominal[key] else ""
        yield f"quota {' '.join(key)}", "reserved quota is never exceeded", fault


def _quotas(owner: Json) -> Iterator[tuple[str, Json]]:
    for group in owner.get("spec", {}).get("resourceGroups") or ():
        for flavor in group["flavors"]:
            for resource in flavor["resources"]:
                yield flavor["name"], resource


# ---- whole or not at all -----------------------------------------------------------------------------


def gangs_whole(replay: Replay) -> Iterator[Fact]:
    minimums = replay.gang_minimums()
    members: dict[str, list[Json]] = defaultdict(list)
    for pod in replay.pods():
        labels = pod["metadata"].get("labels") or {}
        space = pod["metadata"]["namespace"]
        for label in GROUP_LABELS:
            if label in labels:
                members[f"{space}/{labels[label]}"].append(pod)
        if KUEUE_GROUP in labels:
            name = f"{space}/{labels[KUEUE_GROUP]}"
            notes = pod["metadata"].get("annotations") or {}
            minimums[name] = int(notes.get("kueue.x-k8s.io/pod-group-total-count", 1))
            members[name].append(pod)
    for name, pods in members.items():
        here = sum(_holds_room(pod) for pod in pods)
        done = sum((pod.get("status") or {}).get("phase") == "Succeeded" for pod in pods)
        fewest = minimums.get(name, 1)
        fault = f"{here} of {fewest} pods run" if 0 < here < fewest - done else ""
        yield f"gang {name}", "whole or not at all", fault


def _holds_room(pod: Json) -> bool:
    return (
        bool(pod["spec"].get("nodeName"))
        and (pod.get("status") or {}).get("phase") not in TERMINAL
        and not pod["metadata"].get("deletionTimestamp")
    )


# ---- always a reason ---------------------------------------------------------------------------------


def everyone_has_a_reason(replay: Replay) -> Iterator[Fact]:
    for pod in replay.pods():
        waits = not pod["spec"].get("nodeName") and (pod["status"].get("phase") == "Pending")
        if waits and replay.answers_to(pod["spec"].get("schedulerName", "")):
            said = _condition(pod, "PodScheduled")
            gated = bool(pod["spec"].get("schedulingGates"))
            fault = "" if gated or said.get("message") else "nothing says why"
            yield f"Pod {pod['metadata']['name']}", "who waits has a reason", fault
    for workload in replay.objects()["workloads"]:
        reserved = _condition(workload, "QuotaReserved")
        if _finished(workload) or reserved.get("status") == "True":
            continue
        fault = "" if reserved.get("message") else "nothing says why"
        yield f"Workload {workload['metadata']['name']}", "who waits has a reason", fault


def _condition(obj: Json, kind: str) -> Json:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind), {})


def _finished(workload: Json) -> bool:
    return bool(_condition(workload, "Finished").get("status") == "True")


# ---- no eviction in vain -----------------------------------------------------------------------------


def no_eviction_in_vain(replay: Replay) -> Iterator[Fact]:
    """Each preemption ends with its preemptor in place, or goes on; given up only when the preemptor is gone."""
    for preemption in replay.preemptions():
        phase = (preemption.get("status") or {}).get("phase", "")
        gone = not replay.exists(preemption["spec"].get("preemptorUID", ""))
        kept = phase in ("Placed", *OPEN) or gone
        fault = "" if kept else f"{phase} for {preemption['spec'].get('preemptor')}"
        yield f"Preemption {preemption['metadata']['name']}", "no eviction in vain", fault
