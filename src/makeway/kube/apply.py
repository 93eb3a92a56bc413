"""One plan → API calls: quota and nodes given, victims told and deleted, holds written down, reasons published.

Everything here can be done twice without harm: a status that is already so is not written, a pod that is already bound or gone
is left alone, a Preemption has a name of its own attempt. Before the first victim is touched the Preemption is in the API.
"""

from __future__ import annotations

import msgspec

from makeway.control import explain
from makeway.kinds import conditions, volumes
from makeway.kinds.metadata import (
    Json,
    Object,
    annotations_of,
    created_at,
    name,
    namespace,
    spec,
    terminating,
    uid,
)
from makeway.kinds.promises import PLACEMENT
from makeway.kube import standing, words
from makeway.kube.actions import (
    Action,
    BindPod,
    Patch,
    Tell,
    about,
    patch_object,
    patch_status,
    pod_event,
)
from makeway.kube.events import ADMISSION, WORKLOAD_CONTROLLER
from makeway.kube.evicting import Evictor
from makeway.kube.projection import Projection, placement_json
from makeway.kube.publishing import NOT_ALL_READY, Publisher
from makeway.kube.world import World
from makeway.model.decision import Admit, Bind, Evict, Hold, Plan, Wait
from makeway.model.reason import Reason
from makeway.model.workload import WorkloadId


class Applier:
    """Turns a plan into lists of actions; lists are carried out side by side, each in its order."""

    def __init__(self, world: World, projection: Projection) -> None:
        self._world = world
        self._copy = world.copy
        self._projection = projection
        self.evictor = Evictor(world, projection)
        self.publisher = Publisher(world, projection)
        self.blocked: set[WorkloadId] = set()  # would have quota if others were ready

    def first(self, plan: Plan, now: float) -> dict[WorkloadId, list[Action]]:
        """What must be written before anybody is touched: the Preemptions, by who asked."""
        records: dict[WorkloadId, list[Action]] = {}
        for preemptor, evicts in _by_preemptor(plan).items():
            hold = next((h for h in plan.holds if h.workload == preemptor), None)
            record = self.evictor.record(preemptor, evicts, hold, now)
            if record is not None:
                records[preemptor] = [record]
        return records

    def then(self, plan: Plan, now: float) -> list[tuple[WorkloadId, list[Action]]]:
        """Everything else, with the workload that each list is about."""
        self.publisher.begin({bind.pod for admit in plan.admits for bind in admit.binds})
        work: list[tuple[WorkloadId, list[Action]]] = []

        def ask(workload: WorkloadId, lists: list[list[Action]]) -> None:
            work.extend((workload, actions) for actions in lists if actions)

        admits, refused = self._one_at_a_time(plan)
        for admit in admits:
            ask(admit.workload, self._admit(admit, now))
        for evict in plan.evicts:
            if not evict.already:
                ask(evict.workload, self.evictor.evict(evict, now))
        held = {hold.workload for hold in plan.holds}
        late = self.publisher.late({decision.workload for decision in plan.decisions})
        for wait in (*refused, *plan.waits, *late):
            nominated = wait.workload in held
            ask(wait.workload, self.publisher.wait(wait, now, nominated=nominated))
        return work

    def last(self, plan: Plan, now: float) -> list[tuple[WorkloadId, list[Action]]]:
        """What follows when the victims were told and deleted: their places are promised."""
        return [
            (hold.workload, actions)
            for hold in plan.holds
            for actions in self._nominate(hold, plan, now)
            if actions
        ]

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

    def _admit(self, admit: Admit, now: float) -> list[list[Action]]:
        lists: list[list[Action]] = []
        found = self._copy.get("Workload", admit.workload)
        if found is not None and admit.admission is not None:
            lists.append(self._reserve(found, admit, now))
        if admit.placement:
            self._projection.assume_placement(admit.workload, admit.placement)
        self.publisher.forget(admit.workload)
        lists += [self._bind(bind) for bind in admit.binds]
        return lists

    def _reserve(self, found: Object, admit: Admit, now: float) -> list[Action]:
        admission = admit.admission
        assert admission is not None
        if standing.has_quota(found):
            if not admission.admitted or standing.admitted(found):
                return []
            told = self._admitted_event(found, admission.queue, now, WORKLOAD_CONTROLLER)
            change = standing.admit(found, now)
            return _in_turn(
                self._placement(found, admit), patch_status("Workload", found, change, told)
            )
        change = standing.reserve(found, admission, now, all_checks_ready=admission.admitted)
        events = [self._reserved_event(found, admit, now)]
        if admission.admitted:
            events.append(self._admitted_event(found, admission.queue, now, ADMISSION))
        patch = patch_status("Workload", found, change, *events)
        return _in_turn(self._placement(found, admit), patch)

    def _placement(self, found: Object, admit: Admit) -> list[Patch]:
        """The nodes that were chosen, where they must survive a restart."""
        written = placement_json(admit.placement) if self._worth_writing(admit) else None
        if written == annotations_of(found).get(PLACEMENT):
            return []
        body = {"metadata": {"annotations": {PLACEMENT: written}}}
        return [patch_object("Workload", found, body)]

    def _worth_writing(self, admit: Admit) -> bool:
        """A gang's nodes must survive a restart; a single pod's are chosen anew at no loss."""
        found = self._projection.workload(admit.workload)
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
        told = pod_event(found, "Scheduled", note, action="Binding")
        return [
            BindPod(
                namespace=namespace(found),
                name=name(found),
                uid=uid(found),
                node=bind.node,
                then=(told,),
            )
        ]

    def _nominate(self, hold: Hold, plan: Plan, now: float) -> list[list[Action]]:
        """Pods that wait for their victims to leave point at their nodes."""
        reason = next((w.reason for w in plan.waits if w.workload == hold.workload), None)
        lists: list[list[Action]] = []
        for bind in hold.nominations:
            found = self._copy.get("Pod", bind.pod)
            if found is None or spec(found).get("nodeName"):
                continue
            message = words.fit_error(reason) if reason is not None else ""
            lists.append(self.publisher.unschedulable(found, message, bind.node, now))
        return lists


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


def _in_turn(first: list[Patch], then: Patch) -> list[Action]:
    """Two patches of one object: the first changes its version, so that neither may insist on one."""
    if not first:
        return [then]
    patches = [msgspec.structs.replace(patch, version="") for patch in first]
    return [*patches, msgspec.structs.replace(then, version="")]
