"""LeaderWorkerSets: groups of a leader and its workers that live and die together.

Where the real operator makes StatefulSets, pods are made here directly, under the same names: `name-0` leads, `name-0-1` and so
on work for it, made with it or once it is ready. A group that loses a pod is made anew as a whole, unless its policy says that the pod
alone is.
"""

from __future__ import annotations

from makeway.client.resource import LEADER_WORKER_SETS, PODS, Object
from makeway.embedded.controllers.hashing import short_hash
from makeway.embedded.controllers.making import named_pod
from makeway.embedded.controllers.plan import Action, Create, Delete, Patch, Plan, merge_patch, plan
from makeway.embedded.objects import (
    active,
    deleted,
    name_of,
    phase,
    ready,
    status_of,
    uid_of,
    with_condition,
)
from makeway.kinds.gated import LWS_GROUP, LWS_NAME, LWS_WORKER, waits_for_leader

RECREATE = "RecreateGroupOnPodRestart"
AFTER_START = "RecreateGroupAfterStart"
TEMPLATE = "leaderworkerset.sigs.k8s.io/template-revision-hash"
# All pods run on this machine: they reach each other by its own address.
LEADER_ADDRESS = "127.0.0.1"


def reconcile(owner: Object, pods: list[Object], now: float) -> Plan:
    groups: dict[int, list[Object]] = {i: [] for i in range(int(owner["spec"].get("replicas", 1)))}
    surplus: list[Object] = []
    for pod in pods:
        text = (pod["metadata"].get("labels") or {}).get(LWS_GROUP, "")
        (groups[int(text)] if text.isdigit() and int(text) in groups else surplus).append(pod)
    changes: list[Action] = []
    if not deleted(owner):
        changes = [Delete(PODS, p, tell=owner) for p in surplus if not deleted(p)]
        for index, members in groups.items():
            changes += _group(owner, index, members)
    body = merge_patch(status_of(owner), _status(owner, groups, now))
    write = [Patch(LEADER_WORKER_SETS, owner, {"status": body}, "status")] if body else []
    return plan(changes, write)


def _size(owner: Object) -> int:
    return int(owner["spec"]["leaderWorkerTemplate"].get("size") or 1)


def _name(owner: Object, group: int, worker: int) -> str:
    leader = f"{name_of(owner)}-{group}"
    return f"{leader}-{worker}" if worker else leader


def _group(owner: Object, index: int, members: list[Object]) -> list[Action]:
    revision = short_hash(owner["spec"]["leaderWorkerTemplate"])
    stale = any((p["metadata"].get("labels") or {}).get(TEMPLATE) != revision for p in members)
    if stale or _broken(owner, index, members):
        # What is left of a broken group makes room for a whole one.
        return [Delete(PODS, p, tell=owner) for p in members if not deleted(p)]
    over = [p for p in members if phase(p) in ("Succeeded", "Failed") and not deleted(p)]
    there = {name_of(p) for p in members}
    missing = [w for w in _expected(owner, index, members) if _name(owner, index, w) not in there]
    return [
        *(Delete(PODS, p, tell=owner) for p in over),
        *(Create(PODS, _pod(owner, index, w, revision), tell=owner) for w in missing),
    ]


def _expected(owner: Object, index: int, members: list[Object]) -> range:
    """Workers come with their leader, or once it is ready."""
    if not waits_for_leader(owner):
        return range(_size(owner))
    leads = [p for p in members if name_of(p) == _name(owner, index, 0)]
    began = len(members) > 1 or any(ready(p) for p in leads)
    return range(_size(owner) if began else 1)


def _broken(owner: Object, index: int, members: list[Object]) -> bool:
    """Whether it lost a pod, and its policy makes that the loss of all."""
    form = owner["spec"]["leaderWorkerTemplate"]
    policy = form.get("restartPolicy") or RECREATE
    starting = any(phase(p) == "Pending" for p in members)
    if policy not in (RECREATE, AFTER_START) or (policy == AFTER_START and starting):
        return False
    if any(deleted(p) or phase(p) in ("Succeeded", "Failed") or _restarts(p) for p in members):
        return True
    alone = len(members) == 1 and waits_for_leader(owner)  # its workers are still to come
    return 0 < len(members) < len(_expected(owner, index, members)) and not alone


def _restarts(pod: Object) -> int:
    found = status_of(pod).get("containerStatuses") or []
    return sum(int(container.get("restartCount") or 0) for container in found)


def _pod(owner: Object, group: int, worker: int, revision: str) -> Object:
    form = owner["spec"]["leaderWorkerTemplate"]
    leads = worker == 0 and form.get("leaderTemplate")
    template = form["leaderTemplate"] if leads else form["workerTemplate"]
    labels = {
        LWS_NAME: name_of(owner),
        LWS_GROUP: str(group),
        LWS_WORKER: str(worker),
        "leaderworkerset.sigs.k8s.io/group-key": short_hash([uid_of(owner), group]),
        TEMPLATE: revision,
    }
    env = {
        "LWS_LEADER_ADDRESS": LEADER_ADDRESS,
        "LWS_GROUP_SIZE": str(_size(owner)),
        "LWS_WORKER_INDEX": str(worker),
    }
    notes = {"leaderworkerset.sigs.k8s.io/size": str(_size(owner))}
    name = _name(owner, group, worker)
    return named_pod(owner, name, template, labels=labels, annotations=notes, env=env)


def _status(owner: Object, groups: dict[int, list[Object]], now: float) -> Object:
    size = _size(owner)
    whole = sum(len([p for p in members if active(p)]) >= size for members in groups.values())
    well = sum(len([p for p in m if active(p) and ready(p)]) >= size for m in groups.values())
    conditions = list(status_of(owner).get("conditions") or [])
    conditions = with_condition(
        conditions,
        "Available",
        status="True" if well == len(groups) else "False",
        reason="AllGroupsReady" if well == len(groups) else "GroupsNotReady",
        message=f"{well} of {len(groups)} groups are ready",
        now=now,
    )
    selector = f"{LWS_NAME}={name_of(owner)},{LWS_WORKER}=0"
    return {
        "replicas": whole,
        "readyReplicas": well,
        "updatedReplicas": whole,
        "hpaPodSelector": selector,
        "conditions": conditions,
        "observedGeneration": int(owner["metadata"].get("generation") or 1),
    }
