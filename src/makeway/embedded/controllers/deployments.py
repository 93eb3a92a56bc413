"""Deployments: one ReplicaSet per version of the template, and the way from the old to the new.

Rolling: the new set grows and the old ones shrink, never more than `maxSurge` above the wanted number and
never more than `maxUnavailable` below it. Recreate: the old pods go first, all of them.
"""

from __future__ import annotations

import msgspec

from makeway.client.resource import DEPLOYMENTS, REPLICA_SETS, Object
from makeway.control.clock import parse_timestamp, timestamp
from makeway.embedded.controllers.hashing import short_hash
from makeway.embedded.controllers.making import share_of
from makeway.embedded.controllers.plan import (
    Action,
    Create,
    Delete,
    Patch,
    Plan,
    Tell,
    merge_patch,
    plan,
)
from makeway.embedded.objects import (
    condition,
    created_at,
    deleted,
    name_of,
    namespace_of,
    owned_by,
    status_of,
    with_condition,
)

REVISION = "deployment.kubernetes.io/revision"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
HASH = "pod-template-hash"


class _Room(msgspec.Struct, frozen=True):
    """How many pods there may be at most, and must be at least."""

    wanted: int
    most: int
    least: int


def reconcile(deployment: Object, sets: list[Object], now: float) -> Plan:
    if deleted(deployment):
        return plan(_write_status(deployment, None, sets, now)[0])
    new = _current(deployment, sets)
    old = [each for each in sets if each is not new]
    write, again = _write_status(deployment, new, sets, now)
    if new is None and not deployment["spec"].get("paused"):
        return plan(_make_set(deployment, old), write, look_again_at=again)
    changes = [
        *_revise(deployment, new, sets),
        *_scale(deployment, new, old),
        *_forget_history(deployment, old),
    ]
    return plan(changes, write, look_again_at=again)


def _current(deployment: Object, sets: list[Object]) -> Object | None:
    """The oldest set made from this very template."""
    wanted = deployment["spec"]["template"]
    same = [each for each in sets if _bare(each["spec"]["template"]) == _bare(wanted)]
    return min(same, key=lambda each: (created_at(each), name_of(each)), default=None)


def _bare(template: Object) -> Object:
    metadata = template.get("metadata") or {}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != HASH}
    return {
        "labels": labels,
        "annotations": metadata.get("annotations") or {},
        "spec": template["spec"],
    }


# Making and naming sets


def _make_set(deployment: Object, old: list[Object]) -> list[Action]:
    template = deployment["spec"]["template"]
    hashed = short_hash(_bare(template))
    metadata = template.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), HASH: hashed}
    room = _room(deployment)
    if _strategy(deployment) == "Recreate" and any(_has_pods(each) for each in old):
        start = 0
    else:
        start = max(0, min(room.wanted, room.most - sum(_asked(each) for each in old)))
    name = f"{name_of(deployment)}-{hashed}"
    selector = deployment["spec"].get("selector") or {}
    matched = {**(selector.get("matchLabels") or {}), HASH: hashed}
    spec: Object = {
        "replicas": start,
        "selector": {**selector, "matchLabels": matched},
        "template": {**template, "metadata": {**metadata, "labels": labels}},
    }
    if deployment["spec"].get("minReadySeconds"):
        spec["minReadySeconds"] = deployment["spec"]["minReadySeconds"]
    revision = str(_last_revision(old) + 1)
    made = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": name,
            "namespace": namespace_of(deployment),
            "labels": labels,
            "annotations": {**_inherited(deployment), **_sizes(room), REVISION: revision},
            "ownerReferences": owned_by(deployment, "apps/v1", "Deployment"),
        },
        "spec": spec,
    }
    actions: list[Action] = [Create(REPLICA_SETS, made)]
    if start:
        said = f"Scaled up replica set {name} from 0 to {start}"
        actions.append(Tell(deployment, "ScalingReplicaSet", said))
    return [*actions, *_note_revision(deployment, revision)]


def _revise(deployment: Object, new: Object | None, sets: list[Object]) -> list[Action]:
    """A template that came back becomes the newest revision again."""
    if new is None:
        return []
    latest = _last_revision([each for each in sets if each is not new])
    mine = _revision(new)
    if mine > latest:
        return _note_revision(deployment, str(mine))
    revision = str(latest + 1)
    body = {"metadata": {"annotations": {REVISION: revision}}}
    return [Patch(REPLICA_SETS, new, body), *_note_revision(deployment, revision)]


def _note_revision(deployment: Object, revision: str) -> list[Action]:
    if (deployment["metadata"].get("annotations") or {}).get(REVISION) == revision:
        return []
    # By its status: a change of annotations by itself would be a new generation.
    body = {"metadata": {"annotations": {REVISION: revision}}}
    return [Patch(DEPLOYMENTS, deployment, body, "status")]


def _inherited(deployment: Object) -> Object:
    skipped = {REVISION, DESIRED, MAXIMUM, "kubectl.kubernetes.io/last-applied-configuration"}
    given = deployment["metadata"].get("annotations") or {}
    return {key: value for key, value in given.items() if key not in skipped}


def _sizes(room: _Room) -> Object:
    return {DESIRED: str(room.wanted), MAXIMUM: str(room.most)}


def _revision(replica_set: Object) -> int:
    text = (replica_set["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def _last_revision(sets: list[Object]) -> int:
    return max((_revision(each) for each in sets), default=0)


# Scaling


def _scale(deployment: Object, new: Object | None, old: list[Object]) -> list[Action]:
    room = _room(deployment)
    if new is None:
        return []
    if deployment["spec"].get("paused"):
        # A paused roll-out still follows a new number of replicas, in the set that has the pods.
        live = [each for each in old if _asked(each)]
        return _set_size(deployment, new, room.wanted) if not live else []
    if _strategy(deployment) == "Recreate":
        shrink = [act for each in old for act in _set_size(deployment, each, 0)]
        if shrink or any(_has_pods(each) for each in old):
            return shrink
        return _set_size(deployment, new, room.wanted)
    return _roll(deployment, new, old, room)


def _roll(deployment: Object, new: Object, old: list[Object], room: _Room) -> list[Action]:
    others = sum(_asked(each) for each in old)
    if _asked(new) > room.wanted:
        return _set_size(deployment, new, room.wanted)
    grown = max(_asked(new), min(room.wanted, room.most - others))
    actions = _set_size(deployment, new, grown)
    available = sum(_available(each) for each in [new, *old])
    # Pods of the new set that are not available yet keep old ones alive.
    not_yet = max(0, grown - _available(new))
    spare = max(0, others + grown - room.least - not_yet)
    for each in sorted(old, key=created_at):
        broken = max(0, _asked(each) - _available(each))
        healthy_spare = max(0, available - room.least)
        drop = min(_asked(each), spare, broken + healthy_spare)
        if drop:
            actions += _set_size(deployment, each, _asked(each) - drop)
            spare -= drop
            available -= max(0, drop - broken)
    return actions


def _set_size(deployment: Object, replica_set: Object, size: int) -> list[Action]:
    before = _asked(replica_set)
    if before == size:
        return []
    body = {"spec": {"replicas": size}, "metadata": {"annotations": _sizes(_room(deployment))}}
    direction = "up" if size > before else "down"
    said = f"Scaled {direction} replica set {name_of(replica_set)} from {before} to {size}"
    return [
        Patch(REPLICA_SETS, replica_set, body),
        Tell(deployment, "ScalingReplicaSet", said),
    ]


def _forget_history(deployment: Object, old: list[Object]) -> list[Action]:
    keep = int(deployment["spec"].get("revisionHistoryLimit", 10))
    idle = [each for each in old if not _asked(each) and not _has_pods(each) and not deleted(each)]
    surplus = sorted(idle, key=_revision)[: max(0, len(idle) - keep)]
    return [Delete(REPLICA_SETS, each) for each in surplus]


def _strategy(deployment: Object) -> str:
    return str((deployment["spec"].get("strategy") or {}).get("type") or "RollingUpdate")


def _room(deployment: Object) -> _Room:
    wanted = int(deployment["spec"].get("replicas", 1))
    if _strategy(deployment) == "Recreate":
        return _Room(wanted, wanted, 0)
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    surge = share_of(rolling.get("maxSurge", "25%"), wanted)
    missing = share_of(rolling.get("maxUnavailable", "25%"), wanted, up=False)
    if not surge and not missing:
        # Both rounded to nothing would never move.
        missing = 1
    return _Room(wanted, wanted + surge, max(0, wanted - missing))


def _asked(replica_set: Object) -> int:
    return int(replica_set["spec"].get("replicas", 1))


def _available(replica_set: Object) -> int:
    return min(_asked(replica_set), int(status_of(replica_set).get("availableReplicas") or 0))


def _has_pods(replica_set: Object) -> bool:
    status = status_of(replica_set)
    return bool(status.get("replicas") or status.get("terminatingReplicas"))


# Status


def _write_status(
    deployment: Object, new: Object | None, sets: list[Object], now: float
) -> tuple[list[Action], float | None]:
    def count(replica_sets: list[Object], field: str) -> int:
        return sum(int(status_of(each).get(field) or 0) for each in replica_sets)

    room = _room(deployment)
    available = count(sets, "availableReplicas")
    asked = sum(_asked(each) for each in sets)
    status: Object = {
        "observedGeneration": int(deployment["metadata"].get("generation") or 1),
        "replicas": count(sets, "replicas"),
        "updatedReplicas": count([new], "replicas") if new else 0,
        "readyReplicas": count(sets, "readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": max(0, max(asked, room.wanted) - available),
        "terminatingReplicas": count(sets, "terminatingReplicas"),
    }
    done = (
        new is not None
        and status["updatedReplicas"] == room.wanted == status["replicas"]
        and available >= room.wanted
    )
    conditions, again = _conditions(deployment, new, room, status, now, done=done)
    status["conditions"] = conditions
    optional = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    for key in (*optional, "unavailableReplicas"):
        if not status[key]:
            del status[key]
    body = merge_patch(status_of(deployment), status)
    return ([Patch(DEPLOYMENTS, deployment, {"status": body}, "status")] if body else []), again


def _conditions(
    deployment: Object,
    new: Object | None,
    room: _Room,
    status: Object,
    now: float,
    *,
    done: bool,
) -> tuple[list[Object], float | None]:
    enough = status["availableReplicas"] >= room.least
    conditions = with_condition(
        list(status_of(deployment).get("conditions") or []),
        "Available",
        status="True" if enough else "False",
        reason="MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        message=f"Deployment {'has' if enough else 'does not have'} minimum availability.",
        now=now,
        also="lastUpdateTime",
    )
    name = name_of(new) if new else name_of(deployment)
    before = condition(deployment, "Progressing")
    moved = not before or _progress(deployment, status)
    since = now if moved or before is None else _updated(before, now)
    limit = deployment["spec"].get("progressDeadlineSeconds", 600)
    again: float | None = None
    if done:
        state = (
            "True",
            "NewReplicaSetAvailable",
            f'ReplicaSet "{name}" has successfully progressed.',
        )
    elif limit is not None and now - since >= float(limit):
        state = (
            "False",
            "ProgressDeadlineExceeded",
            f'ReplicaSet "{name}" has timed out progressing.',
        )
    else:
        state = ("True", "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.')
        again = since + float(limit) if limit is not None else None
    conditions = with_condition(
        conditions,
        "Progressing",
        status=state[0],
        reason=state[1],
        message=state[2],
        now=now,
        also="lastUpdateTime",
    )
    if moved:
        # The deadline runs from the last step forward, also where the words stay the same.
        for each in conditions:
            if each["type"] == "Progressing" and not done:
                each["lastUpdateTime"] = timestamp(now)
    return conditions, again


def _progress(deployment: Object, status: Object) -> bool:
    old = status_of(deployment)
    fields = ("updatedReplicas", "readyReplicas", "availableReplicas", "observedGeneration")
    return any(int(old.get(field) or 0) != status[field] for field in fields)


def _updated(progressing: Object, now: float) -> float:
    text = progressing.get("lastUpdateTime") or progressing.get("lastTransitionTime")
    return parse_timestamp(text) if text else now
