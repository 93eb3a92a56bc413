"""A preemption on its way: victims told, victims leaving, room taken; or given up.

Planned → Evicting (some victim was told) → Draining (all were told, some still hold room) → Placed. Expired when the hold
ran out first, Cancelled when whoever asked is gone or over, or when somebody stronger took the room.
"""

from __future__ import annotations

from typing import Final

import msgspec

from makeway.kinds import pod, preemption
from makeway.kinds.metadata import (
    Json,
    Object,
    created_at,
    key,
    seconds,
    spec,
    status,
    terminating,
    uid,
)
from makeway.kube import standing
from makeway.kube.actions import Patch, Steps, delete_object, patch_status
from makeway.kube.world import World

# One that is over in a moment is told once: how it ended. Of many at once more are.
TOLD_AFTER_S: Final = 2.0
MANY: Final = 16
TOLD_AFTER_IF_MANY_S: Final = 30.0
KEPT_S: Final = 7 * 86_400.0  # the record outlives the longest window that is counted from it


def reconcile_preemption(record: Json, world: World, now: float) -> Steps:
    steps = Steps()
    if not preemption.is_open(record):
        ended = seconds(status(record).get("completedAt")) or now
        if now < ended + KEPT_S:
            steps.look_again(ended + KEPT_S)
        elif not preemption.is_part(record):
            steps.actions.append(delete_object("Preemption", record))
        return steps
    phase, message = _phase(record, world, now)
    change = preemption.progress(record, phase, message, now)
    saves = _new_saves(record, world, now)
    if saves:
        change["saveSeconds"] = saves
    told_from = (seconds(spec(record).get("plannedAt")) or 0.0) + _patience_s(world)
    if change and phase in preemption.OPEN and now < told_from:
        steps.look_again(told_from)
    elif change:
        # The record is the word of what was done, and those who wait for the deeds of others come first.
        steps.actions.append(msgspec.structs.replace(patch_record(record, change), later=True))
    steps.look_again(seconds((spec(record).get("hold") or {}).get("until")))
    return steps


def patch_record(record: Json, change: Object) -> Patch:
    """A change of its status. Where others share its object they are written too, so that no version can be insisted on."""
    place, body = preemption.written(record, change)
    patch = patch_status("Preemption", record, body)
    version = "" if preemption.shared(record) else patch.version
    return msgspec.structs.replace(patch, name=place, version=version)


def _patience_s(world: World) -> float:
    many = world.copy.count_by("open preemptions", "") > MANY
    return TOLD_AFTER_IF_MANY_S if many else TOLD_AFTER_S


def unfinished(record: Json, world: World, now: float) -> bool:
    """Victims are named that nobody has told yet, and the room is still wanted."""
    return preemption.is_open(record) and _phase(record, world, now)[0] in ("Planned", "Evicting")


def _phase(record: Json, world: World, now: float) -> tuple[str, str]:
    asked = str(spec(record).get("preemptor") or "")
    pods = world.pods_of(asked)
    found = world.copy.get("Workload", asked)
    if found is None and not pods:
        return "Cancelled", f"{asked} is gone"
    if found is not None and (standing.finished(found) or not standing.active(found)):
        return "Cancelled", f"{asked} does not need the room any more"
    # A job that was begun to be lowered is lowered to the end, wherever the room came from meanwhile.
    lowered = all(_lowered(victim, world) for victim in spec(record).get("victims") or [])
    if lowered and _placed(record, found, pods):
        return "Placed", f"{asked} has the room"
    until = seconds((spec(record).get("hold") or {}).get("until"))
    if until is not None and now >= until:
        return "Expired", f"{asked} did not get the room in time"
    done = [told(victim, world) for victim in spec(record).get("victims") or []]
    if all(done):
        return "Draining", f"waiting for {len(done)} victim(s) to leave"
    if any(done):
        return "Evicting", f"{sum(done)} of {len(done)} victim(s) told"
    return "Planned", ""


def _new_saves(record: Json, world: World, now: float) -> dict[str, float]:
    """Victims that have left since the last look, and how long that took: the next price goes by it."""
    planned = seconds(spec(record).get("plannedAt"))
    known = status(record).get("saveSeconds") or {}
    if planned is None:
        return {}
    return {
        str(victim["workload"]): round(max(0.0, now - planned), 1)
        for victim in spec(record).get("victims") or []
        if victim["workload"] not in known and _left(victim, world, planned)
    }


def _left(victim: Json, world: World, planned: float) -> bool:
    """None of its pods that ran when it was chosen is there any more."""
    if victim.get("pods"):
        found = [world.copy.get("Pod", pod_key) for pod_key in victim["pods"]]
        named = set(victim.get("podUIDs") or [])
        return all(one is None or uid(one) not in named or pod.ended(one) for one in found)
    return not any(
        spec(one).get("nodeName") and not pod.ended(one) and created_at(one) <= planned
        for one in world.pods_of(str(victim.get("workload")))
    )


def _placed(record: Json, found: Json | None, pods: list[Object]) -> bool:
    """An admitted workload has its nodes promised, which is as good as a hold; pods without a queue must be bound.

    Those that were promised a place, where the record names them: a gang's surplus may wait on.
    """
    if found is not None:
        return standing.admitted(found)
    promised = {b["pod"] for b in (spec(record).get("hold") or {}).get("nominations") or ()}
    mine = [one for one in pods if key(one) in promised] or pods
    return bool(mine) and all(spec(one).get("nodeName") or pod.ended(one) for one in mine)


def told(victim: Json, world: World) -> bool:
    """Told to go, going, or gone."""
    if victim.get("pods"):
        uids = victim.get("podUIDs") or [""] * len(victim["pods"])
        named = zip(victim["pods"], uids, strict=False)
        leave = all(_leaves(world.copy.get("Pod", k), known) for k, known in named)
        return leave and _lowered(victim, world)
    found = world.copy.get("Workload", str(victim.get("workload")))
    if found is None:
        held = world.pods_of(str(victim.get("workload")))
        return all(terminating(one) or pod.ended(one) for one in held)
    if victim.get("uid") and uid(found) != victim["uid"]:
        return True
    return standing.evicted(found) or not standing.has_quota(found)


def _lowered(victim: Json, world: World) -> bool:
    """A job that gives up pods has to be lowered too, lest it replaces them; unless it stopped meanwhile."""
    found = world.copy.get("Workload", str(victim.get("workload")))
    if victim.get("loweredTo") is None or found is None or uid(found) != victim.get("uid"):
        return True
    given = standing.assignments(found).values()
    gone = standing.finished(found) or standing.evicted(found) or not standing.has_quota(found)
    return gone or all(int(a.get("count") or 0) <= int(victim["loweredTo"]) for a in given)


def _leaves(one: Object | None, known: str) -> bool:
    """A pod of another uid is a successor: the one that was named is gone."""
    return one is None or uid(one) != known or terminating(one) or pod.ended(one)
