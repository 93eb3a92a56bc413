"""One plan → API calls: quota and nodes given, victims told and deleted, holds written down, reasons published.

Everything here can be done twice without harm: a status that is already so is not written, a pod that is already bound or gone
is left alone, a Preemption has a name of its own attempt. Before the first victim is touched the Preemption is in the API.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from makeway.control import explain
from makeway.kinds import conditions, preemption, volumes
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
    Chain,
    Create,
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
from makeway.model.node import NodeName
from makeway.model.reason import Reason
from makeway.model.workload import WorkloadId

FLOOD: Final = 16  # preemptions in one plan, above which words wait for deeds
IN_ONE_RECORD: Final = (
    32  # of a flood, in one call instead of as many; small enough to be read and stored at ease
)
TOLD_WITHIN_S: Final = 10.0


class _Begun(NamedTuple):
    """A preemption to be written down before its victims are touched."""

    preemptor: WorkloadId
    record: Object
    victims: list[Chain]


class Applier:
    """Turns a plan into chains of actions; chains are carried out side by side, each in its order."""

    def __init__(self, world: World, projection: Projection) -> None:
        self._world = world
        self._copy = world.copy
        self._projection = projection
        self.evictor = Evictor(world, projection)
        self.publisher = Publisher(world, projection)
        self.blocked: set[WorkloadId] = set()  # would have quota if others were ready
        # Nominations that were put off: when they are due, the hold, and why its workload waits.
        self._untold: dict[WorkloadId, tuple[float, Hold, Reason | None]] = {}

    def chains(self, plan: Plan, now: float, *, on_record: bool) -> list[Chain]:
        """The plan but for its nominations. `on_record`: victims are touched only when their Preemption is in the API."""
        self.publisher.begin({bind.pod for admit in plan.admits for bind in admit.binds})
        admits, refused = self._one_at_a_time(plan)
        chains: list[Chain] = []
        for admit in admits:
            chains += _about(admit.workload, self._admit(admit, now))
        chains += self._evictions(plan, now, on_record=on_record)
        for holder, taker in plan.lost_holds:
            chains += _about(holder, [self.evictor.lost(holder, taker, now)])
        held = {*self._untold, *(hold.workload for hold in plan.holds)}
        late = self.publisher.late({decision.workload for decision in plan.decisions})
        for wait in (*refused, *plan.waits, *late):
            nominated = wait.workload in held
            chains += _about(wait.workload, self.publisher.wait(wait, now, nominated=nominated))
        return chains

    def _evictions(self, plan: Plan, now: float, *, on_record: bool) -> list[Chain]:
        chains: list[Chain] = []
        begun: list[_Begun] = []
        holds = {hold.workload: hold for hold in plan.holds}
        for preemptor, evicts in _by_preemptor(plan).items():
            victims: list[Chain] = []
            for evict in evicts:
                if not evict.already:
                    victims += _about(evict.workload, self.evictor.evict(evict, now))
            record = (
                self.evictor.record(preemptor, evicts, holds.get(preemptor), now)
                if on_record
                else None
            )
            if record is None:
                chains += victims
            else:
                begun.append(_Begun(preemptor, record, victims))
        return chains + _on_record(begun)

    def nominations(self, plan: Plan, now: float) -> list[Chain]:
        """What follows when the victims were told and deleted: their places are promised.

        Of many at once this is told later, and most never: they are bound before, and a word that is out of date when it is
        read is worth no call.
        """
        told_at = now + TOLD_WITHIN_S if len(plan.holds) > FLOOD else now
        reasons = {wait.workload: wait.reason for wait in plan.waits}
        for hold in plan.holds:
            self._untold[hold.workload] = (told_at, hold, reasons.get(hold.workload))
        chains: list[Chain] = []
        for workload, (due, hold, reason) in list(self._untold.items()):
            waiting = self._still_waiting(hold)
            if due <= now or not waiting:
                del self._untold[workload]
                chains += _about(workload, self._nominate(waiting, reason, now))
        return chains

    @property
    def later(self) -> float | None:
        """A word that was put off is due then."""
        return min((due for due, _, _ in self._untold.values()), default=None)

    def _still_waiting(self, hold: Hold) -> list[tuple[Object, NodeName]]:
        found = ((self._copy.get("Pod", bind.pod), bind.node) for bind in hold.nominations)
        return [(p, node) for p, node in found if p is not None and not spec(p).get("nodeName")]

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
        late = volumes.late_claims(found, self._world.storage)
        if late:
            return self._volumes_first(late, bind.node)
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

    def _volumes_first(self, late: list[Json], node: NodeName) -> list[Action]:
        """Claims that waited for the node get their volumes; when all are bound to them, the pod can be bound."""
        found = self._copy.get("Node", node)
        served = volumes.served_on(found, late, self._world.storage) if found is not None else None
        actions: list[Action] = []
        for claim, volume in served or ():
            if volume is None:
                actions += [] if _selected(claim, node) else [_select_node(claim, node)]
            elif (body := volumes.give(volume, claim)) is not None:
                actions.append(patch_object("PersistentVolume", volume, body))
        return actions

    def _nominate(
        self, waiting: list[tuple[Object, NodeName]], reason: Reason | None, now: float
    ) -> list[list[Action]]:
        """Pods that wait for their victims to leave point at their nodes."""
        message = words.fit_error(reason) if reason is not None else ""
        return [self.publisher.unschedulable(one, message, node, now) for one, node in waiting]


def _selected(claim: Json, node: str) -> bool:
    return annotations_of(claim).get(volumes.SELECTED_NODE) == node


def _select_node(claim: Json, node: str) -> Patch:
    body = {"metadata": {"annotations": {volumes.SELECTED_NODE: node}}}
    return patch_object("PersistentVolumeClaim", claim, body)


def _about(workload: WorkloadId, lists: list[list[Action]]) -> list[Chain]:
    return [Chain(workload=workload, actions=actions) for actions in lists if actions]


def _on_record(begun: list[_Begun]) -> list[Chain]:
    """Each is written down, then its victims are touched; of a flood several are in one object."""
    size = IN_ONE_RECORD if len(begun) > FLOOD else 1
    homes: dict[str, list[_Begun]] = {}
    for one in begun:
        homes.setdefault(namespace(one.record), []).append(one)
    return [
        _one_record(here[first : first + size])
        for here in homes.values()
        for first in range(0, len(here), size)
    ]


def _one_record(begun: list[_Begun]) -> Chain:
    record = preemption.together([one.record for one in begun])
    first, *others = (one.preemptor for one in begun)
    return Chain(
        workload=first,
        others=tuple(others),
        actions=[Create(kind="Preemption", obj=record)],
        then=[chain for one in begun for chain in one.victims],
    )


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
