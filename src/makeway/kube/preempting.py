"""A preemption on its way: victims told, victims leaving, room taken; or given up.

Planned → Evicting (some victim was told) → Draining (all were told, some still hold room) → Placed. Expired when the hold
ran out first, Cancelled when whoever asked is gone or over.
"""

from __future__ import annotations

from makeway.kinds import pod
from makeway.kinds.metadata import Json, Object, key, seconds, spec, terminating, uid
from makeway.kube import preemptions, standing
from makeway.kube.actions import Steps, patch_status
from makeway.kube.world import World


def reconcile_preemption(record: Json, world: World, now: float) -> Steps:
    steps = Steps()
    if not preemptions.is_open(record):
        return steps
    phase, message = _phase(record, world, now)
    change = preemptions.progress(record, phase, message, now)
    if change:
        steps.actions.append(patch_status("Preemption", record, change))
    steps.look_again(seconds((spec(record).get("hold") or {}).get("until")))
    return steps


def _phase(record: Json, world: World, now: float) -> tuple[str, str]:
    asked = str(spec(record).get("preemptor") or "")
    pods = pods_of(asked, world)
    found = world.copy.get("Workload", asked)
    if found is None and not pods:
        return "Cancelled", f"{asked} is gone"
    if found is not None and (standing.finished(found) or not standing.active(found)):
        return "Cancelled", f"{asked} does not need the room any more"
    if _placed(found, pods):
        return "Placed", f"{asked} has the room"
    until = seconds((spec(record).get("hold") or {}).get("until"))
    if until is not None and now >= until:
        return "Expired", f"{asked} did not get the room in time"
    told = [_told(victim, world) for victim in spec(record).get("victims") or []]
    if all(told):
        return "Draining", f"waiting for {len(told)} victim(s) to leave"
    if any(told):
        return "Evicting", f"{sum(told)} of {len(told)} victim(s) told"
    return "Planned", ""


def _placed(found: Json | None, pods: list[Object]) -> bool:
    if found is not None and not standing.admitted(found):
        return False
    if found is None and not pods:
        return False
    return all(spec(one).get("nodeName") or pod.ended(one) for one in pods)


def _told(victim: Json, world: World) -> bool:
    """Told to go, going, or gone."""
    if victim.get("pods"):
        states = [world.copy.get("Pod", k) for k in victim["pods"]]
        return all(one is None or terminating(one) or pod.ended(one) for one in states)
    found = world.copy.get("Workload", str(victim.get("workload")))
    if found is None:
        held = pods_of(str(victim.get("workload")), world)
        return all(terminating(one) or pod.ended(one) for one in held)
    if victim.get("uid") and uid(found) != victim["uid"]:
        return True
    return standing.evicted(found) or not standing.has_quota(found)


def pods_of(workload_id: str, world: World) -> list[Object]:
    """The pods of a workload that exist: by annotation, by gang, or itself."""
    found = world.copy.by("pods by workload", workload_id)
    for gang in workload_id.split(","):
        found += [p for p in world.copy.by("pods by gang", gang) if p not in found]
    alone = world.copy.get("Pod", workload_id)
    if alone is not None and key(alone) == workload_id:
        found.append(alone)
    parent = world.copy.get("Job", workload_id)
    if parent is not None:
        found += world.copy.by("children", uid(parent))
    return found
