"""One plan → API calls: quota and nodes given, victims told and deleted, holds written down, reasons published.

Everything here can be done twice without harm: a status that is already so is not written, a pod that is already bound or gone
is left alone, a Preemption has a name of its own attempt. Before the first victim is touched the Preemption is in the API.
"""

from __future__ import annotations

from typing import Final

import msgspec

from makeway.control import explain
from makeway.control.clock import timestamp
from makeway.kinds import conditions, pod, preemption, volumes
from makeway.kinds.metadata import (
    JOB_UID,
    Json,
    Object,
    annotations_of,
    created_at,
    key,
    labels,
    metadata,
    name,
    namespace,
    spec,
    status,
    terminating,
    uid,
)
from makeway.kinds.promises import PLACEMENT
from makeway.kube import preempting, standing, words
from makeway.kube.actions import (
    Action,
    BindPod,
    Create,
    Patch,
    Tell,
    about,
    delete_object,
    patch_object,
    patch_status,
)
from makeway.kube.events import ADMISSION, WORKLOAD_CONTROLLER
from makeway.kube.pods import notice_s
from makeway.kube.projection import Projection, placement_json
from makeway.kube.workloads import queue_trouble
from makeway.kube.world import World
from makeway.model.decision import Admit, Bind, Evict, Hold, Plan, Wait
from makeway.model.reason import Reason
from makeway.model.workload import Workload, WorkloadId

HUMAN: Final = {
    "InClusterQueue": "prioritization in the ClusterQueue",
    "InCohortReclamation": "reclamation within the cohort",
    "InCohortFairSharing": "Fair Sharing within the cohort",
    "InCohortReclaimWhileBorrowing": "reclamation within the cohort while borrowing",
}
# A waiting workload's status follows its reason, but not for ever at once: a few rewrites in a row, then one in this time.
REWRITE_EVERY_S: Final = 10.0
REWRITES_IN_A_ROW: Final = 5.0
MOST_REMEMBERED: Final = 50_000
HOLD_AFTER_S: Final = 60.0
# Reasons that Kueue leaves unsaid: its users find them in the status, and get no event more than they know.
SILENT: Final = frozenset({"behind", "equal-failed"})
NOT_ALL_READY: Final = "waiting for all admitted workloads to be in PodsReady condition"


class Told(msgspec.Struct):
    """What a waiting workload was told last, and when."""

    sense: tuple[str, ...]
    at: float
    left: float = REWRITES_IN_A_ROW  # rewrites that may follow at once

    def refill(self, now: float) -> None:
        self.left = min(REWRITES_IN_A_ROW, self.left + (now - self.at) / REWRITE_EVERY_S)
        self.at = now


class Applier:
    """Turns a plan into lists of actions; lists are carried out side by side, each in its order."""

    def __init__(self, world: World, projection: Projection) -> None:
        self._world = world
        self._copy = world.copy
        self._projection = projection
        self._told: dict[str, Told] = {}
        self._deferred: dict[str, Wait] = {}  # reasons that are to be published later
        self.blocked: set[WorkloadId] = set()  # would have quota if others were ready
        self.later: float | None = None  # a status that was held back is due then

    def first(self, plan: Plan, now: float) -> dict[WorkloadId, list[Action]]:
        """What must be written before anybody is touched: the Preemptions, by who asked."""
        records: dict[WorkloadId, list[Action]] = {}
        for preemptor, evicts in _by_preemptor(plan).items():
            hold = next((h for h in plan.holds if h.workload == preemptor), None)
            record = self._record(preemptor, evicts, hold, now)
            if record is not None:
                records[preemptor] = [record]
        return records

    def then(self, plan: Plan, now: float) -> list[list[Action]]:
        """Everything else."""
        self.later = None
        lists: list[list[Action]] = []
        admits, refused = self._one_at_a_time(plan)
        for admit in admits:
            lists += self._admit(admit, now)
        for wait in refused:
            lists += self._wait(wait, now, nominated=False)
        for evict in plan.evicts:
            if not evict.already:
                lists += self._evict(evict, now)
        for hold in plan.holds:
            lists += self._nominate(hold, plan, now)
        held = {hold.workload for hold in plan.holds}
        decided = {decision.workload for decision in plan.decisions}
        late = [wait for key_, wait in self._deferred.items() if key_ not in decided]
        for wait in (*plan.waits, *late):
            lists += self._wait(wait, now, nominated=wait.workload in held)
        return [actions for actions in lists if actions]

    def _one_at_a_time(self, plan: Plan) -> tuple[list[Admit], list[Wait]]:
        """`blockAdmission`: nobody gets quota before the pods of all who have it are ready."""
        self.blocked = set()
        admits = list(plan.admits)
        if not self._world.config.blocks_admission:
            return admits, []
        found = self._copy.all("Workload")
        open_door = not any(standing.unready(workload) for workload in found)
        passed: list[Admit] = []
        for admit in admits:
            workload = self._copy.get("Workload", admit.workload)
            if admit.admission is None or workload is None or standing.has_quota(workload):
                passed.append(admit)
            elif open_door:
                passed.append(admit)
                open_door = False
            else:
                self.blocked.add(admit.workload)
        reason = Reason(kind="checks", kueue="WaitingForPodsReady", message=NOT_ALL_READY)
        return passed, [Wait(workload=w, reason=reason) for w in sorted(self.blocked)]

    def _model(self, workload_id: str) -> Workload | None:
        found = self._projection.known(Workload, workload_id)
        return found if isinstance(found, Workload) else None

    # Admit

    def _admit(self, admit: Admit, now: float) -> list[list[Action]]:
        lists: list[list[Action]] = []
        found = self._copy.get("Workload", admit.workload)
        if found is not None and admit.admission is not None:
            lists.append(self._reserve(found, admit, now))
        if admit.placement:
            self._projection.assume_placement(admit.workload, admit.placement)
        self._told.pop(admit.workload, None)
        self._deferred.pop(admit.workload, None)
        if len(self._told) > MOST_REMEMBERED:
            self._told.clear()  # costs a rewrite at most
        lists += [self._bind(bind) for bind in admit.binds]
        return lists

    def _reserve(self, found: Object, admit: Admit, now: float) -> list[Action]:
        admission = admit.admission
        assert admission is not None
        if standing.has_quota(found):
            if not admission.admitted or standing.admitted(found):
                return []
            told = self._admitted_event(found, admission.queue, now, WORKLOAD_CONTROLLER)
            return [patch_status("Workload", found, standing.admit(found, now), told)]
        actions: list[Action] = []
        written = placement_json(admit.placement) if self._worth_writing(admit) else None
        if written != annotations_of(found).get(PLACEMENT):
            body = {"metadata": {"annotations": {PLACEMENT: written}}}
            # No version: the status patch that follows checks that nothing else changed.
            actions.append(
                msgspec.structs.replace(patch_object("Workload", found, body), version="")
            )
        change = standing.reserve(found, admission, now, all_checks_ready=admission.admitted)
        events = [self._reserved_event(found, admit, now)]
        if admission.admitted:
            events.append(self._admitted_event(found, admission.queue, now, ADMISSION))
        patch = patch_status("Workload", found, change, *events)
        if actions:
            patch = msgspec.structs.replace(patch, version="")
        return [*actions, patch]

    def _worth_writing(self, admit: Admit) -> bool:
        """A gang's nodes must survive a restart; a single pod's are chosen anew at no loss."""
        found = self._model(admit.workload)
        return bool(admit.placement) and found is not None and found.gang is not None

    def _reserved_event(self, found: Json, admit: Admit, now: float) -> Tell:
        assert admit.admission is not None
        queued_since = conditions.since(found, standing.REQUEUED) or created_at(found)
        note = (
            f"Quota reserved in ClusterQueue {admit.admission.queue}, "
            f"wait time since queued was {max(0, int(now - queued_since))}s"
        )
        considered = explain.flavors_considered(admit.considered)
        return Tell(
            about=about("Workload", found),
            reason="QuotaReserved",
            note=f"{note}; Flavors considered: {considered}" if considered else note,
            component=ADMISSION,
        )

    def _admitted_event(self, found: Json, queue: str, now: float, component: str) -> Tell:
        since = (
            conditions.since(found, standing.QUOTA_RESERVED) if standing.has_quota(found) else now
        )
        waited = max(0, int(now - (since or now)))
        return Tell(
            about=about("Workload", found),
            reason="Admitted",
            note=f"Admitted by ClusterQueue {queue}, wait time since reservation was {waited}s",
            component=component,
        )

    def _bind(self, bind: Bind) -> list[Action]:
        found = self._copy.get("Pod", bind.pod)
        if found is None or spec(found).get("nodeName") or terminating(found):
            return []
        late = list(volumes.late_claims(found, self._copy.get))
        if late:
            # Their volumes are made on the node that was chosen; when they are there, the pod can be bound.
            return [
                _select_node(claim, bind.node) for claim in late if not _selected(claim, bind.node)
            ]
        note = f"Successfully assigned {bind.pod} to {bind.node}"
        told = self._pod_event(found, "Scheduled", note, action="Binding")
        return [
            BindPod(
                namespace=namespace(found),
                name=name(found),
                uid=uid(found),
                node=bind.node,
                then=(told,),
            )
        ]

    def _pod_event(
        self,
        found: Json,
        reason: str,
        note: str,
        *,
        action: str,
        warning: bool = False,
        related: Object | None = None,
    ) -> Tell:
        return Tell(
            about=about("Pod", found),
            type="Warning" if warning else "Normal",
            reason=reason,
            note=note,
            component=pod.scheduler_name(found),
            action=action,
            related=related,
        )

    # Evict

    def _evict(self, evict: Evict, now: float) -> list[list[Action]]:
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
            self._workload_event(victim, "EvictedDueToPreempted", message + more),
            self._workload_event(victim, "Preempted", f"{message}; {priorities}{more}"),
        ]
        preemptor = self._copy.get("Workload", evict.preemptor)
        if preemptor is not None:
            queue = standing.cluster_queue(victim)
            note = f"Preempted workload {key(victim)} (UID: {uid(victim)}) in ClusterQueue {queue}"
            told = self._workload_event(
                preemptor, "PreemptedWorkload", f"{note}; {priorities}{more}"
            )
            events.append(told)
        return [patch_status("Workload", victim, change, *events)]

    def _workload_event(
        self, found: Json, reason: str, note: str, *, warning: bool = False
    ) -> Tell:
        return Tell(
            about=about("Workload", found),
            type="Warning" if warning else "Normal",
            reason=reason,
            note=note,
            component=ADMISSION,
        )

    def _preemption_message(self, victim: Json, evict: Evict, rule: str) -> str:
        preemptor = self._copy.get("Workload", evict.preemptor) or {}
        model = self._model(evict.preemptor)
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
        parts = [name(queue)]
        above = str(spec(queue).get("cohortName") or spec(queue).get("cohort") or "")
        while above and above not in parts:
            parts.append(above)
            cohort = self._copy.get("Cohort", above)
            above = str(spec(cohort or {}).get("parentName") or "")
        return "/" + "/".join(reversed(parts))

    def _priorities(self, evict: Evict) -> str:
        parts = []
        for role, workload_id in (("preemptor", evict.preemptor), ("preemptee", evict.workload)):
            model = self._model(workload_id)
            value, boost = (model.priority, model.boost) if model else (0, 0)
            parts.append(
                f"{role} effective priority: {value} (base: {value - boost}, boost: {boost})"
            )
        return "; ".join(parts)

    def _more(self, evict: Evict) -> str:
        """What Kueue does not say: for whom by name, and at what cost."""
        above, below = self._model(evict.preemptor), self._model(evict.workload)
        over = f" (priority {above.priority} over {below.priority})" if above and below else ""
        return f"; preemptor: {evict.preemptor}{over}; loss: {evict.loss:.0f} GPU-seconds"

    def _evict_pods(self, evict: Evict, now: float) -> list[list[Action]]:
        """Pods are told why, then deleted with time to save; all of a gang together."""
        keys = list(evict.pods) or self._pods_of(evict.workload)
        victims = [p for p in (self._copy.get("Pod", k) for k in keys) if p is not None]
        trigger = self._trigger(evict.preemptor)
        return [
            self._evict_pod(victim, evict, trigger, now)
            for victim in victims
            if not terminating(victim) and not pod.ended(victim)
        ]

    def _pods_of(self, workload_id: str) -> list[str]:
        by_annotation = [key(p) for p in self._copy.by("pods by workload", workload_id)]
        if by_annotation:
            return by_annotation
        if self._copy.get("Pod", workload_id) is not None:
            return [workload_id]
        members = [
            p for gang in workload_id.split(",") for p in self._copy.by("pods by gang", gang)
        ]
        parent = self._copy.get("Job", workload_id)
        if parent is not None:
            members += self._copy.by("children", uid(parent))
        return [key(p) for p in members]

    def _trigger(self, preemptor: str) -> Object | None:
        """The pod that stands for its workload in messages: the last to arrive."""
        found = [p for p in (self._copy.get("Pod", k) for k in self._pods_of(preemptor)) if p]
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
            actions.append(_pod_status(victim, {"conditions": [condition]}))
        asked_by = uid(trigger) if trigger else evict.preemptor
        note = f"Preempted by pod {asked_by} on node {spec(victim).get('nodeName', '')}"
        told = self._pod_event(
            victim,
            "Preempted",
            note + self._more(evict),
            action="Preempting",
            related=about("Pod", trigger) if trigger is not None and self._is_gang(evict) else None,
        )
        if trigger is not None:
            told = msgspec.structs.replace(told, component=pod.scheduler_name(trigger))
        actions.append(delete_object("Pod", victim, told, grace_s=notice_s(victim, self._world)))
        return actions

    def _is_gang(self, evict: Evict) -> bool:
        model = self._model(evict.preemptor)
        return model is not None and model.gang is not None

    def _disruption_message(self, evict: Evict, trigger: Object | None) -> str:
        scheduler = pod.scheduler_name(trigger) if trigger is not None else "makeway"
        if self._is_gang(evict) and trigger is not None:
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
            for done in self._evict(evict, now):
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

    # Hold

    def _record(
        self, preemptor: WorkloadId, evicts: list[Evict], hold: Hold | None, now: float
    ) -> Action | None:
        """The Preemption, unless one is open for these victims already."""
        fresh = [e for e in evicts if not e.already]
        known = self._copy.by("preemptions by preemptor", preemptor)
        if not fresh or any(preemption.covers(o, preemptor, fresh) for o in known):
            return None
        model = self._model(preemptor)
        asked_by = model.uid if model and model.uid else preemptor
        notice = max((self._notice(e) for e in fresh), default=0.0)
        kept = hold or Hold(workload=preemptor, victims=tuple(e.workload for e in evicts))
        if not kept.until:
            kept = msgspec.structs.replace(kept, until=now + notice + HOLD_AFTER_S)
        if not kept.loss:
            kept = msgspec.structs.replace(kept, loss=sum(e.loss for e in evicts))
        models = {e.workload: self._model(e.workload) for e in evicts}
        record = preemption.compose(
            kept,
            evicts,
            attempt=preemption.attempts(known, asked_by) + 1,
            preemptor_uid=asked_by,
            home=preemptor.split("/", 1)[0],
            uids={w: (m.uid, m.owner_uid) for w, m in models.items() if m is not None},
            pod_uids={
                pod_key: uid(found)
                for e in evicts
                for pod_key in e.pods
                if (found := self._copy.get("Pod", pod_key)) is not None
            },
            now=now,
        )
        return Create(kind="Preemption", obj=record)

    def _notice(self, evict: Evict) -> float:
        pods = [self._copy.get("Pod", k) for k in self._pods_of(evict.workload)]
        graces = [max(pod.grace_s(p), float(notice_s(p, self._world) or 0)) for p in pods if p]
        return max([evict.notice_s, *graces])

    def _nominate(self, hold: Hold, plan: Plan, now: float) -> list[list[Action]]:
        """Pods that wait for their victims to leave point at their nodes."""
        reason = next((w.reason for w in plan.waits if w.workload == hold.workload), None)
        lists: list[list[Action]] = []
        for bind in hold.nominations:
            found = self._copy.get("Pod", bind.pod)
            if found is None or spec(found).get("nodeName"):
                continue
            message = words.fit_error(reason) if reason is not None else ""
            lists.append(self._unschedulable(found, message, bind.node, now))
        return lists

    # Wait

    def _wait(self, wait: Wait, now: float, *, nominated: bool) -> list[list[Action]]:
        found = self._copy.get("Workload", wait.workload)
        if found is None:
            self._deferred.pop(wait.workload, None)
            return [] if nominated else self._wait_pods(wait, now)
        if standing.has_quota(found) or standing.finished(found):
            self._deferred.pop(wait.workload, None)
            return self._wait_pods(wait, now)
        if queue_trouble(found, self._world) is not None:
            return []  # a closed queue is told by `workloads.py`
        return [self._publish(found, wait, words.waiting(wait.reason), now)]

    def _publish(self, found: Object, wait: Wait, message: str, now: float) -> list[Action]:
        model = self._model(wait.workload)
        reason = wait.reason.kueue or "PendingEvaluation"
        told_reason = conditions.reason(found, standing.QUOTA_RESERVED)
        sense = (reason, *(h.workload for h in wait.reason.holders), wait.reason.kind)
        told = self._told.setdefault(wait.workload, Told(sense, now))
        told.refill(now)
        same_words = conditions.message(found, standing.QUOTA_RESERVED) == message
        if told.sense == sense and told_reason == reason:
            if same_words:
                self._deferred.pop(wait.workload, None)
                return []
            if told.left < 1:
                self._deferred[wait.workload] = wait
                self._remind(now + (1 - told.left) * REWRITE_EVERY_S)
                return []
        self._deferred.pop(wait.workload, None)
        asked = model.pod_sets if model is not None and message != NOT_ALL_READY else ()
        change = standing.wait(found, reason, message, asked, now)
        told.sense, told.left = sense, max(0.0, told.left - 1)
        if not change:
            return []
        if message == NOT_ALL_READY or wait.reason.kind in SILENT:
            return [patch_status("Workload", found, change)]
        event = self._workload_event(found, reason, message, warning=True)
        return [patch_status("Workload", found, change, event)]

    def _remind(self, at: float) -> None:
        self.later = at if self.later is None else min(self.later, at)

    def _wait_pods(self, wait: Wait, now: float) -> list[list[Action]]:
        """Pods without a Workload object carry their reason themselves."""
        lists: list[list[Action]] = []
        leaving = self._some_have_left(wait.workload)
        for key_ in self._pods_of(wait.workload):
            found = self._copy.get("Pod", key_)
            if (
                found is None
                or spec(found).get("nodeName")
                or pod.gates(found)
                or terminating(found)
            ):
                continue
            node = str(status(found).get("nominatedNodeName") or "")
            if wait.reason.kind != "waiting-for-victims":
                node = ""
            elif node and not leaving:
                continue  # nothing new: it was told whom it waits for
            message = words.unschedulable(
                wait.reason, pod.scheduler_name(found), draining=leaving and bool(node)
            )
            lists.append(self._unschedulable(found, message, node, now))
        return lists

    def _some_have_left(self, workload_id: str) -> bool:
        """Of the victims that it waits for, some are gone and some are not."""
        keys = [
            pod_key
            for record in self._copy.by("open preemptions", workload_id)
            for victim in spec(record).get("victims") or []
            for pod_key in victim.get("pods") or self._pods_of(victim["workload"])
        ]
        found = [self._copy.get("Pod", pod_key) for pod_key in keys]
        gone = [one is None or pod.ended(one) for one in found]
        return any(gone) and not all(gone)

    def _unschedulable(self, found: Object, message: str, node: str, now: float) -> list[Action]:
        known = conditions.find(found, "PodScheduled") or {}
        said = known.get("status") == "False" and known.get("message") == message
        nominated = str(status(found).get("nominatedNodeName") or "")
        if said and nominated == node:
            return []
        change: Object = {}
        events: tuple[Tell, ...] = ()
        if not said and message:
            since = known.get("lastTransitionTime") if known.get("status") == "False" else None
            change["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": message,
                    "lastTransitionTime": since or timestamp(now),
                }
            ]
            told = self._pod_event(
                found, "FailedScheduling", message, action="Scheduling", warning=True
            )
            events = (told,)
        if nominated != node:
            change["nominatedNodeName"] = node or None
        return [msgspec.structs.replace(_pod_status(found, change), then=events)] if change else []


def _pod_status(found: Json, change: Object) -> Patch:
    """Conditions merge by type; nobody else's are touched."""
    return Patch(
        kind="Pod",
        namespace=namespace(found),
        name=name(found),
        body={"metadata": {"uid": metadata(found).get("uid")}, "status": change},
        style="strategic",
        subresource="status",
    )


def _selected(claim: Json, node: str) -> bool:
    return annotations_of(claim).get(volumes.SELECTED_NODE) == node


def _select_node(claim: Json, node: str) -> Patch:
    body = {"metadata": {"annotations": {volumes.SELECTED_NODE: node}}}
    return patch_object("PersistentVolumeClaim", claim, body)


def _by_preemptor(plan: Plan) -> dict[WorkloadId, list[Evict]]:
    found: dict[WorkloadId, list[Evict]] = {}
    for evict in plan.evicts:
        if evict.preemptor:
            found.setdefault(evict.preemptor, []).append(evict)
    return found
