"""StatefulSets: pods `name-0`, `name-1`, … that keep their names, made in order and removed from the end.

With `OrderedReady` each pod waits for the one before it to be ready; with `Parallel` all come at once. A changed template
replaces pods from the last to the first, one at a time.

Claims of the templates are made before their pod and stay when it goes: the next pod of that name finds its data again. Only where the
set says so do they go, with the set or with the pod that is scaled away; they then belong to whichever it is.
"""

from __future__ import annotations

from collections.abc import Callable

from makeway.client.resource import PERSISTENT_VOLUME_CLAIMS, PODS, STATEFUL_SETS, Object
from makeway.embedded.controllers.hashing import short_hash
from makeway.embedded.controllers.making import named_pod
from makeway.embedded.controllers.plan import Action, Create, Delete, Patch, Plan, merge_patch, plan
from makeway.embedded.controllers.storage import made_claim
from makeway.embedded.objects import (
    active,
    deleted,
    name_of,
    namespace_of,
    owned_by,
    phase,
    ready,
    status_of,
    uid_of,
)

FindClaim = Callable[[str], Object | None]

REVISION = "controller-revision-hash"
POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"


def reconcile(owner: Object, pods: list[Object], claim: FindClaim) -> Plan:
    """`claim` finds one of the owner's namespace by name."""
    revision = f"{name_of(owner)}-{short_hash(owner['spec']['template'])}"
    changes = [] if deleted(owner) else _changes(owner, pods, revision)
    claims = [] if deleted(owner) else _claims(owner, pods, changes, claim)
    body = merge_patch(status_of(owner), _status(owner, pods, revision))
    write = [Patch(STATEFUL_SETS, owner, {"status": body}, "status")] if body else []
    return plan(claims, changes, write)


def _claims(
    owner: Object, pods: list[Object], changes: list[Action], find: FindClaim
) -> list[Action]:
    """Those of pods that are made now, and to whom those that are there belong."""
    templates = owner["spec"].get("volumeClaimTemplates") or []
    if not templates:
        return []
    there = {name_of(pod): pod for pod in pods}
    wanted = set(_wanted(owner))
    made = [name_of(each.obj) for each in changes if isinstance(each, Create)]
    found: list[Action] = []
    for name in [*there, *(each for each in made if each not in there)]:
        keeper = _keeper(owner, there.get(name), scaled_away=name not in wanted)
        for template in templates:
            claim = find(claim_name(template, name))
            if claim is None and name in made:
                found.append(_new_claim(owner, template, name, keeper))
            elif claim is not None and not deleted(claim):
                found += _belongs(claim, owner, keeper)
    return found


def claim_name(template: Object, pod_name: str) -> str:
    return f"{template['metadata']['name']}-{pod_name}"


def _keeper(owner: Object, pod: Object | None, *, scaled_away: bool) -> list[Object]:
    """With whom a claim goes, as references."""
    policy = owner["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    if scaled_away and pod is not None and policy.get("whenScaled") == "Delete":
        return owned_by(pod, "v1", "Pod")
    if policy.get("whenDeleted") == "Delete":
        return owned_by(owner, "apps/v1", "StatefulSet")
    return []


def _new_claim(owner: Object, template: Object, pod_name: str, keeper: list[Object]) -> Create:
    labels = (owner["spec"].get("selector") or {}).get("matchLabels") or {}
    name = claim_name(template, pod_name)
    claim = made_claim(template, name, namespace_of(owner), labels=labels, owners=keeper)
    return Create(PERSISTENT_VOLUME_CLAIMS, claim, tell=owner)


def _belongs(claim: Object, owner: Object, keeper: list[Object]) -> list[Action]:
    """Others' references stay; ours are to the set or to one of its pods."""
    references = claim["metadata"].get("ownerReferences") or []
    ours = [
        each
        for each in references
        if each["uid"] == uid_of(owner)
        or (each["kind"] == "Pod" and claim_of(name_of(claim), each["name"]))
    ]
    if {each["uid"] for each in ours} == {each["uid"] for each in keeper}:
        return []
    kept = [each for each in references if each not in ours]
    body = {"metadata": {"ownerReferences": [*kept, *keeper] or None}}
    return [Patch(PERSISTENT_VOLUME_CLAIMS, claim, body)]


def claim_of(claim: str, pod_name: str) -> bool:
    return claim.endswith(f"-{pod_name}")


def _changes(owner: Object, pods: list[Object], revision: str) -> list[Action]:
    spec = owner["spec"]
    in_order = spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady"
    wanted = _wanted(owner)
    there = {name_of(pod): pod for pod in pods}
    made: list[Action] = []
    for index, name in enumerate(wanted):
        pod = there.get(name)
        if pod is None:
            made.append(Create(PODS, _pod(owner, index, name, revision), tell=owner))
        elif phase(pod) in ("Succeeded", "Failed") and not deleted(pod):
            made.append(Delete(PODS, pod, tell=owner))
        if in_order and (pod is None or not _settled(pod)):
            return made
    surplus = sorted((p for p in pods if name_of(p) not in wanted), key=_number, reverse=True)
    going = [p for p in surplus if not deleted(p)]
    if in_order:
        going = going[:1] if len(going) == len(surplus) else []
    if made or surplus:
        return [*made, *(Delete(PODS, p, tell=owner) for p in going)]
    return _roll(owner, [there[name] for name in wanted], revision)


def _roll(owner: Object, pods: list[Object], revision: str) -> list[Action]:
    """One outdated pod after the other, from the end, while all others are ready."""
    strategy = owner["spec"].get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return []
    first = int((strategy.get("rollingUpdate") or {}).get("partition") or 0)
    for pod in reversed(pods[first:]):
        if (pod["metadata"].get("labels") or {}).get(REVISION) != revision:
            return [] if deleted(pod) else [Delete(PODS, pod, tell=owner)]
        if not _settled(pod):
            return []
    return []


def _settled(pod: Object) -> bool:
    return active(pod) and ready(pod)


def _wanted(owner: Object) -> list[str]:
    spec = owner["spec"]
    first = int((spec.get("ordinals") or {}).get("start") or 0)
    return [f"{name_of(owner)}-{first + i}" for i in range(int(spec.get("replicas", 1)))]


def _number(pod: Object) -> int:
    text = name_of(pod).rpartition("-")[2]
    return int(text) if text.isdigit() else -1


def _pod(owner: Object, index: int, name: str, revision: str) -> Object:
    labels = {REVISION: revision, POD_NAME: name, POD_INDEX: name.rpartition("-")[2]}
    pod = named_pod(owner, name, owner["spec"]["template"], labels=labels)
    pod["spec"].setdefault("hostname", name)
    if owner["spec"].get("serviceName"):
        pod["spec"].setdefault("subdomain", owner["spec"]["serviceName"])
    for template in owner["spec"].get("volumeClaimTemplates") or []:
        _use_claim(pod["spec"], template["metadata"]["name"], claim_name(template, name))
    return pod


def _use_claim(spec: Object, volume: str, claim: str) -> None:
    source = {"claimName": claim}
    others = [v for v in spec.get("volumes") or [] if v.get("name") != volume]
    spec["volumes"] = [*others, {"name": volume, "persistentVolumeClaim": source}]


def _status(owner: Object, pods: list[Object], revision: str) -> Object:
    living = [pod for pod in pods if active(pod)]
    current = [p for p in living if (p["metadata"].get("labels") or {}).get(REVISION) == revision]
    return {
        **{k: v for k, v in status_of(owner).items() if k in ("conditions", "collisionCount")},
        "replicas": len(living),
        "readyReplicas": sum(ready(pod) for pod in living),
        "availableReplicas": sum(ready(pod) for pod in living),
        "currentReplicas": len(current),
        "updatedReplicas": len(current),
        "currentRevision": revision,
        "updateRevision": revision,
        "observedGeneration": int(owner["metadata"].get("generation") or 1),
    }
