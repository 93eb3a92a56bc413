"""Who has to go: victims are told why and at what cost, then stopped; and all of it is on record before the first is touched.

A queued workload is told by its conditions, and its job framework stops it. Pods without a queue are told by a condition of
their own and deleted with time to save. Messages begin as Kueue's, kube-scheduler's and Koordinator's users know them, and go on
with who asked, the priorities and the loss.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

import msgspec

from makeway.control.clock import timestamp
from makeway.engine.assume import lowered, without_places
from makeway.kinds import conditions, job, pod, podgroup, preemption
from makeway.kinds.frameworks import job_kind
from makeway.kinds.metadata import (
    JOB_UID,
    Json,
    Object,
    annotations_of,
    controller,
    created_at,
    finalizers,
    key,
    labels,
    name,
    owners,
    spec,
    terminating,
    uid,
)
from makeway.kinds.promises import PLACEMENT
from makeway.kinds.workload import read
from makeway.kube import preempting, standing, words
from makeway.kube.actions import (
    Action,
    Patch,
    about,
    delete_object,
    patch_object,
    patch_status,
    pod_event,
    pod_status,
    tell,
    workload_event,
)
from makeway.kube.pods import notice_s
from makeway.kube.projection import Projection, placement_json
from makeway.kube.world import World
from makeway.model.decision import Evict, Hold
from makeway.model.history import owner_of
from makeway.model.workload import WorkloadId

HUMAN: Final = {
    "InClusterQueue": "prioritization in the ClusterQueue",
    "InCohortReclamation": "reclamation within the cohort",
    "InCohortFairSharing": "Fair Sharing within the cohort",
    "InCohortReclaimWhileBorrowing": "reclamation within the cohort while borrowing",
}
HOLD_AFTER_S: Final = 60.0


class Evictor:
    def __init__(self, world: World, projection: Projection) -> None:
        self._world = world
        self._copy = world.copy
        self._projection = projection

    def evict(self, evict: Evict, now: float) -> list[list[Action]]:
        if not evict.preemptor:
            return []  # stopped queues and failed checks: `workloads.py` sees to them
        found = self._copy.get("Workload", evict.workload)
        if found is None or evict.pods:
            return self._evict_pods(evict, now)
        if standing.evicted(found):
            return []
        return [self._evict_workload(found, evict, now)]

    def _evict_workload(self, victim: Object, evict: Evict, now: float) -> list[Action]:
        rule = evict.reason.rule or "InClusterQueue"
        rule = rule[0].upper() + rule[1:]  # a condition's reason is one word in PascalCase
        message = self._preemption_message(victim, evict, rule)
        more = self._more(evict)
        change = standing.evict(victim, "Preempted", message + more, now, preempted=rule)
        priorities = self._priorities(evict)
        events = [
            workload_event(victim, "EvictedDueToPreempted", message + more),
            workload_event(victim, "Preempted", f"{message}; {priorities}{more}"),
        ]
        preemptor = self._copy.get("Workload", evict.preemptor)
        if preemptor is not None:
            queue = standing.cluster_queue(victim)
            note = f"Preempted workload {key(victim)} (UID: {uid(victim)}) in ClusterQueue {queue}"
            told = workload_event(preemptor, "PreemptedWorkload", f"{note}; {priorities}{more}")
            events.append(told)
        return [patch_status("Workload", victim, change, *events)]

    def _preemption_message(self, victim: Json, evict: Evict, rule: str) -> str:
        preemptor = self._copy.get("Workload", evict.preemptor) or {}
        model = self._projection.workload(evict.preemptor)
        asked_by = uid(preemptor) or (model.uid if model else "") or "UNKNOWN"
        job_uid = labels(preemptor).get(JOB_UID) or "UNKNOWN"
        human = HUMAN.get(rule, "a higher priority on its nodes")
        return (
            f"Preempted to accommodate a workload (UID: {asked_by}, JobUID: {job_uid}) due to {human}; "
            f"preemptor path: {self._path(preemptor)}; preemptee path: {self._path(victim)}"
        )

    def _path(self, found: Json) -> str:
        """`/root/…/queue` in the tree of cohorts."""
        queue = self._world.cluster_queue_of(found) if found else None
        if queue is None:
            return "/"
        return "/" + "/".join([*reversed(self._world.cohorts_above(queue)), name(queue)])

    def _priorities(self, evict: Evict) -> str:
        parts = []
        for role, workload_id in (("preemptor", evict.preemptor), ("preemptee", evict.workload)):
            model = self._projection.workload(workload_id)
            value, boost = (model.priority, model.boost) if model else (0, 0)
            parts.append(
                f"{role} effective priority: {value} (base: {value - boost}, boost: {boost})"
            )
        return "; ".join(parts)

    def _more(self, evict: Evict) -> str:
        """What Kueue does not say: for whom by name, and at what cost."""
        above, below = (
            self._projection.workload(evict.preemptor),
            self._projection.workload(evict.workload),
        )
        over = f" (priority {above.priority} over {below.priority})" if above and below else ""
        return f"; preemptor: {evict.preemptor}{over}; loss: {evict.loss:.0f} GPU-seconds"

    def _evict_pods(self, evict: Evict, now: float) -> list[list[Action]]:
        """Pods are told why, then deleted with time to save; all of a gang together."""
        named = [self._copy.get("Pod", pod_key) for pod_key in evict.pods]
        victims = (
            [p for p in named if p is not None] if named else self._world.pods_of(evict.workload)
        )
        trigger = self._trigger(evict.preemptor)
        told = [
            self._evict_pod(victim, evict, trigger, now)
            for victim in victims
            if not terminating(victim) and not pod.ended(victim)
        ]
        places = self._keep_other_places(evict)
        if evict.keeps is None:
            return [list(places), *told] if places else told
        # The pods that were chosen first, then the job is lowered before it replaces them: a job that is lowered first
        # picks others.
        return [[*chain(*told), *self._lower(evict), *map(_whatever_version, places)]]

    def _lower(self, evict: Evict) -> list[Action]:
        """Its job goes on with fewer pods, and their quota is given back: as if it had been admitted with so many."""
        found = self._copy.get("Workload", evict.workload)
        if found is None or not standing.has_quota(found) or standing.evicted(found):
            return []
        kind, owner, admission = job_kind(found), self._world.owner_of(found), read(found).admission
        if kind is None or owner is None or admission is None:
            return []
        keeps = evict.keeps or 0
        note = self._lowered_message(evict, keeps)
        actions: list[Action] = []
        body = kind.lower_patch(owner, keeps)
        if body:
            told = tell(kind.kind, owner, kind.component, "Lowered", note)
            actions.append(_whatever_version(patch_object(kind.kind, owner, body, told)))
        if keeps < admission.assignments[0].count:
            change = {"admission": standing.admission_json(lowered(admission, keeps))}
            told = workload_event(found, "Lowered", note)
            actions.append(patch_status("Workload", found, change, told))
        return actions

    def _lowered_message(self, evict: Evict, keeps: int) -> str:
        human = HUMAN.get(evict.reason.rule, "a higher priority on its nodes")
        names = ", ".join(pod_key.split("/", 1)[-1] for pod_key in evict.pods)
        return (
            f"Lowered from {keeps + len(evict.pods)} to {keeps} pods due to {human}; "
            f"stopped: {names}{self._more(evict)}"
        )

    def _keep_other_places(self, evict: Evict) -> list[Patch]:
        """Pods that fall singly lose the nodes they were promised; the rest of the workload keeps its own."""
        model = self._projection.workload(evict.workload)
        if model is None or not model.placement or not evict.pods:
            return []
        named = set(evict.pods)
        pods = [p for p in self._projection.members(evict.workload) if p.id in named]
        left = without_places(model, pods)
        self._projection.assume_placement(evict.workload, left)
        found = self._copy.get("Workload", evict.workload)
        if found is None or PLACEMENT not in annotations_of(found):
            return []
        body = {"metadata": {"annotations": {PLACEMENT: placement_json(left)}}}
        return [patch_object("Workload", found, body)]

    def _trigger(self, preemptor: str) -> Object | None:
        """The pod that stands for its workload in messages: the last to arrive."""
        found = self._world.pods_of(preemptor)
        return max(found, key=lambda p: (created_at(p), name(p)), default=None)

    def _evict_pod(
        self, victim: Object, evict: Evict, trigger: Object | None, now: float
    ) -> list[Action]:
        actions: list[Action] = []
        message = self._disruption_message(evict, trigger)
        if conditions.message(victim, "DisruptionTarget") != message:
            condition = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "PreemptionByScheduler",
                "message": message,
                "lastTransitionTime": timestamp(now),
            }
            actions.append(pod_status(victim, {"conditions": [condition]}))
        asked_by = uid(trigger) if trigger else evict.preemptor
        note = f"Preempted by pod {asked_by} on node {spec(victim).get('nodeName', '')}"
        told = pod_event(
            victim,
            "Preempted",
            note + self._more(evict),
            action="Preempting",
            related=about("Pod", trigger) if trigger is not None and self._is_gang(evict) else None,
        )
        if trigger is not None:
            told = msgspec.structs.replace(told, component=pod.scheduler_name(trigger))
        if evict.keeps is not None and job.TRACKING in finalizers(victim):
            # As the job controller does when it removes surplus pods itself: none of them counts as a failure.
            actions.append(_uncounted(victim))
        actions.append(delete_object("Pod", victim, told, grace_s=notice_s(victim, self._world)))
        return actions

    def _is_gang(self, evict: Evict) -> bool:
        model = self._projection.workload(evict.preemptor)
        return model is not None and model.gang is not None

    def _disruption_message(self, evict: Evict, trigger: Object | None) -> str:
        scheduler = pod.scheduler_name(trigger) if trigger is not None else "makeway"
        job_level = self._is_gang(evict) or scheduler == words.KOORDINATOR
        if job_level and trigger is not None:
            message = (
                f"{scheduler}: preempting to accommodate higher priority pods, "
                f"preemptor: {evict.preemptor}, triggerPod: {key(trigger)}"
            )
            return message + self._more(evict)
        return f"{scheduler}: preempting to accommodate a higher priority pod{self._more(evict)}"

    def resume(self, record: Json, now: float) -> list[Action]:
        """Evictions that are on record and were not done: somebody was stopped in between, or refused."""
        actions: list[Action] = []
        victims = spec(record).get("victims") or []
        for victim, evict in zip(victims, preemption.evictions(record), strict=True):
            if preempting.told(victim, self._world) or not self._same(victim):
                continue
            for done in self.evict(evict, now):
                actions += done
        return actions

    def _same(self, victim: Json) -> bool:
        """What the record names is what is there now, not a successor of that name."""
        for pod_key, known in zip(
            victim.get("pods") or [], victim.get("podUIDs") or [], strict=False
        ):
            found = self._copy.get("Pod", pod_key)
            if found is not None and uid(found) != known:
                return False
        found = self._copy.get("Workload", str(victim.get("workload")))
        return found is None or not victim.get("uid") or uid(found) == victim["uid"]

    def record(
        self, preemptor: WorkloadId, evicts: list[Evict], hold: Hold | None, now: float
    ) -> Object | None:
        """The Preemption, unless one is open for these victims already."""
        fresh = [e for e in evicts if not e.already]
        known = self._copy.by("preemptions by preemptor", preemptor)
        if not fresh or any(preemption.covers(o, preemptor, fresh) for o in known):
            return None
        model = self._projection.workload(preemptor)
        asked_by = model.uid if model and model.uid else preemptor
        notice = max((self._notice(e) for e in fresh), default=0.0)
        kept = hold or Hold(workload=preemptor, victims=tuple(e.workload for e in evicts))
        if not kept.until:
            kept = msgspec.structs.replace(kept, until=now + notice + HOLD_AFTER_S)
        if not kept.loss:
            kept = msgspec.structs.replace(kept, loss=sum(e.loss for e in evicts))
        models = {e.workload: self._projection.workload(e.workload) for e in evicts}
        return preemption.compose(
            kept,
            evicts,
            attempt=preemption.attempts(known, asked_by) + 1,
            preemptor_uid=asked_by,
            preemptor_owner=owner_of(model) if model is not None else "",
            home=preemptor.split("/", 1)[0],
            uids={w: (m.uid, owner_of(m)) for w, m in models.items() if m is not None},
            pod_uids={
                pod_key: uid(found)
                for e in evicts
                for pod_key in e.pods
                if (found := self._copy.get("Pod", pod_key)) is not None
            },
            afterwards={e.workload: self._afterwards(e) for e in evicts},
            now=now,
        )

    def lost(self, holder: WorkloadId, taker: WorkloadId, now: float) -> list[Action]:
        """Somebody stronger took the room that was made for it: its records say so, and keep nothing for it any more."""
        stronger = self._projection.workload(taker)
        rank = f" (priority {stronger.rank})" if stronger is not None else ""
        message = f"{taker}{rank} took the room"
        return [
            preempting.patch_record(record, change)
            for record in self._copy.by("open preemptions", holder)
            if (change := preemption.progress(record, "Cancelled", message, now))
        ]

    def _afterwards(self, evict: Evict) -> str:
        """What will become of a victim when it has stopped; without an owner that brings it back it is over."""
        if evict.keeps is not None:
            return preemption.LOWERED
        pods = self._world.pods_of(evict.workload)
        found = self._copy.get("Workload", evict.workload)
        if found is None or evict.pods:
            owned = bool(pods) and all(controller(one) is not None for one in pods)
            return preemption.RECREATED if owned else preemption.ENDED
        if any(owner["kind"] != "Pod" for owner in owners(found)):
            return preemption.REQUEUED
        grouped = any(pod.group_of(one) is not None for one in pods)
        again = grouped and podgroup.retriable(pods)
        return preemption.WAITS_FOR_PODS if again else preemption.ENDED

    def _notice(self, evict: Evict) -> float:
        pods = self._world.pods_of(evict.workload)
        graces = [max(pod.grace_s(p), float(notice_s(p, self._world) or 0)) for p in pods]
        return max([evict.notice_s, *graces])


def _uncounted(victim: Json) -> Patch:
    rest = [f for f in finalizers(victim) if f != job.TRACKING]
    body = {"metadata": {"uid": uid(victim), "finalizers": rest or None}}
    return _whatever_version(patch_object("Pod", victim, body))


def _whatever_version(patch: Patch) -> Patch:
    """Earlier steps of the same chain, or other controllers, have changed the object meanwhile."""
    return msgspec.structs.replace(patch, version="")
