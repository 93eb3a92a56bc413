"""StatefulSets and LeaderWorkerSets that queue: a Workload for each group of pods, and gates that open and close with it.

Nothing here makes pods. A group that has to stop has its pods deleted, with time to save; their controller makes new ones
that wait at their gates, and the group's quota is free as soon as none of the old ones runs.
"""

from __future__ import annotations

from makeway.kinds import composing, conditions, pod, podgroup
from makeway.kinds.gated import GatedKind, Group
from makeway.kinds.metadata import (
    GROUP_NAME,
    Json,
    Object,
    annotations_of,
    key,
    metadata,
    name,
    namespace,
    owners,
    seconds,
    spec,
    terminating,
    uid,
)
from makeway.kube import standing, starting
from makeway.kube.actions import (
    Create,
    Steps,
    Tell,
    delete_object,
    free,
    patch_object,
    patch_status,
    tell,
)
from makeway.kube.events import POD_CONTROLLER
from makeway.kube.jobs import (
    changed_priority,
    follow_queue,
    same_pod_sets,
    standing_still,
)
from makeway.kube.pods import add_owners, let_go, stop
from makeway.kube.world import World


def reconcile(kind: GatedKind, owner: Json, world: World, now: float) -> Steps:
    steps = Steps()
    groups = kind.groups(owner)
    wanted = {group.workload for group in groups}
    for known in world.copy.by("workloads by owner", uid(owner)):
        if kind.on_hold and not groups and not terminating(owner):
            _put_on_hold(known, kind.on_hold, steps, now)
        elif name(known) not in wanted:
            _retire(known, steps)
    pods = world.copy.by("pods by parent", f"{kind.kind}/{key(owner)}")
    for group in groups:
        mine = [p for p in pods if kind.index_of(p) == group.index]
        _Look(kind, owner, group, mine, world, steps, now).take_a_step()
    return steps


def _retire(workload: Json, steps: Steps) -> None:
    """Of a group that is no longer wanted: its pods are their controller's to remove."""
    if not terminating(workload):
        steps.actions.append(delete_object("Workload", workload))
    else:
        steps.actions += free("Workload", workload)


def _put_on_hold(workload: Json, message: str, steps: Steps, now: float) -> None:
    """No pods are wanted for now; whoever runs is its controller's to remove."""
    over = standing.finished(workload) or terminating(workload) or not standing.active(workload)
    if not over and not standing.on_hold(workload):
        change = standing.put_on_hold(workload, message, now)
        steps.actions.append(patch_status("Workload", workload, change))


class _Look:
    """One look at one group."""

    def __init__(
        self,
        kind: GatedKind,
        owner: Json,
        group: Group,
        pods: list[Object],
        world: World,
        steps: Steps,
        now: float,
    ) -> None:
        self.kind = kind
        self.owner = owner
        self.group = group
        self.pods = pods
        self.world = world
        self.steps = steps
        self.now = now
        self.open = [p for p in pods if not pod.gated_for_admission(p) and not pod.ended(p)]

    def take_a_step(self) -> None:
        for one in self.pods:
            if terminating(one) or pod.ended(one):
                self.steps.actions += let_go(one)
            else:
                self._mark(one)
        workload = self.world.copy.get("Workload", f"{namespace(self.owner)}/{self.group.workload}")
        if workload is not None and all(o.get("uid") != uid(self.owner) for o in owners(workload)):
            return  # somebody else's, under the name that is ours
        if workload is None:
            self._compose()
        elif standing.finished(workload):
            self.steps.actions += free("Workload", workload)
        elif terminating(workload):
            if self._stopped("WorkloadDeleted", "Workload is deleted"):
                self.steps.actions += free("Workload", workload)
        elif standing.evicted(workload):
            reason = f"WorkloadEvictedDueTo{conditions.reason(workload, standing.EVICTED)}"
            if self._stopped(reason, conditions.message(workload, standing.EVICTED)):
                self._write_status(workload, standing.release(workload, self.now))
        else:
            self._adopt(workload)
            self._follow(workload)

    def _adopt(self, workload: Json) -> None:
        known = {owner.get("uid") for owner in owners(workload)}
        fresh = [p for p in self.pods if podgroup.runnable(p) and uid(p) not in known]
        if fresh:
            self.steps.actions.append(add_owners(workload, fresh, self.pods))

    def _mark(self, one: Json) -> None:
        """Its group stands on the pod, for those who look there."""
        if annotations_of(one).get(GROUP_NAME) != self.group.workload:
            marks = self.kind.marks(self.group, self.kind.pod_set_of(one, self.owner))
            self.steps.actions.append(patch_object("Pod", one, {"metadata": marks}))

    def _tell(self, reason: str, note: str, *, warning: bool = False, once: bool = False) -> Tell:
        return tell(
            self.kind.kind,
            self.owner,
            self.kind.component,
            reason,
            note,
            warning=warning,
            once=once,
        )

    def _write_status(self, workload: Json, status: Object) -> None:
        self.steps.actions.append(patch_status("Workload", workload, status))

    def _compose(self) -> None:
        if terminating(self.owner) or not self._stopped(
            "NoMatchingWorkload", "No matching Workload"
        ):
            return
        try:
            priority = composing.resolve_priority(
                self.owner, self.group.pod_sets, self.world.classes()
            )
        except composing.UnknownClass as unknown:
            told = self._tell(f"{unknown.kind}NotFound", str(unknown), warning=True, once=True)
            self.steps.actions.append(told)
            return
        identity = {"apiVersion": self.kind.api_version, "kind": self.kind.kind}
        workload = composing.compose(
            {**self.owner, **identity},
            self.group.pod_sets,
            priority,
            wl_name=self.group.workload,
        )
        workload["metadata"].setdefault("annotations", {}).update(
            self.kind.workload_notes(self.owner)
        )
        made = self._tell("CreatedWorkload", f"Created Workload: {key(workload)}")
        self.steps.actions.append(Create(kind="Workload", obj=workload, then=(made,)))

    def _stopped(self, reason: str, message: str) -> bool:
        """Whether nothing of the group runs; what does is told to stop."""
        running = [p for p in self.open if not self._past_grace(p)]
        for one in running:
            self.steps.actions += stop(one, reason, message, self.world, self.now)
            self.steps.look_again(seconds(metadata(one).get("deletionTimestamp")))
        return not running

    def _past_grace(self, one: Json) -> bool:
        gone_by = seconds(metadata(one).get("deletionTimestamp"))
        return gone_by is not None and self.now >= gone_by

    def _follow(self, workload: Json) -> None:
        reserved = standing.has_quota(workload)
        if not same_pod_sets(self.group.pod_sets, spec(workload).get("podSets") or [], reserved):
            self._rewrite(workload, reserved)
            return
        if standing.on_hold(workload):
            self._write_status(workload, standing.take_off_hold(workload, self.now))
            return
        if not reserved:
            follow_queue(self.owner, workload, self.steps)
        body = changed_priority(self.owner, workload, self.world)
        if body:
            note = f"Updated workload priority class: {key(workload)}"
            told = self._tell("UpdatedWorkload", note)
            self.steps.actions.append(patch_object("Workload", workload, body, told))
        if standing.admitted(workload):
            self._run(workload)
            return
        stopped = self._stopped("NotAdmitted", "Not admitted by cluster queue")
        if stopped and self.world.config.waits_for_pods:
            standing_still(workload, self.steps, self.now)

    def _rewrite(self, workload: Json, reserved: bool) -> None:
        if reserved:
            gone = self._tell("DeletedWorkload", f"Deleted not matching Workload: {key(workload)}")
            self.steps.actions.append(delete_object("Workload", workload, gone))
            return
        note = f"Updated not matching Workload for suspended job: {key(workload)}"
        body = {"spec": {"podSets": self.group.pod_sets}}
        told = self._tell("UpdatedWorkload", note)
        self.steps.actions.append(patch_object("Workload", workload, body, told))

    def _run(self, workload: Json) -> None:
        for one in self.pods:
            if pod.gated_for_admission(one) and not terminating(one) and not pod.ended(one):
                self._open_gate(one, workload)
        if self.world.config.waits_for_pods:
            wanted = sum(int(s.get("count", 1)) for s in self.group.pod_sets)
            ready = sum(pod.ready(one) for one in self.pods) >= wanted
            status = standing.pods_ready(workload, ready, self.now)
            if status:
                self._write_status(workload, status)

    def _open_gate(self, one: Json, workload: Json) -> None:
        pod_set = self.kind.pod_set_of(one, self.owner)
        try:
            update = starting.pod_update(workload, pod_set, self.world.flavor)
            trouble = starting.conflicts(update, metadata(one), spec(one))
        except starting.CannotStart as conflict:
            update, trouble = {}, str(conflict)
        if trouble:
            self._write_status(
                workload, standing.finish(workload, "FailedToStart", trouble, self.now)
            )
            return
        note = f"Admitted by clusterQueue {standing.cluster_queue(workload)}"
        started = tell("Pod", one, POD_CONTROLLER, "Started", note)
        self.steps.actions.append(patch_object("Pod", one, pod.start_patch(one, update), started))
