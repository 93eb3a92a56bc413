"""A queued job and its Workload: made, started, stopped, finished, in step with each other.

`reconcile` looks at both as they are and says what to do next. It is called again whenever one of them changes, so each call
takes one step; a restart in the middle of anything goes on with the next. What differs between kinds of jobs is in
`makeway.kinds.frameworks`.
"""

from __future__ import annotations

from typing import Final

from makeway.kinds import composing, conditions
from makeway.kinds.metadata import (
    JOB_UID,
    PREBUILT_WORKLOAD,
    PRIORITY_CLASS,
    QUEUE_NAME,
    Json,
    Object,
    annotations_of,
    created_at,
    key,
    labels,
    metadata,
    name,
    namespace,
    owners,
    spec,
    terminating,
    uid,
)
from makeway.kinds.queued import CannotQueue, QueuedKind
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
from makeway.kube.world import World

UNDECIDED_AFTER_S: Final = 1.5  # creation times have whole seconds
# Fields of a pod spec that admission changes; they say nothing about what the user wrote.
INJECTED: Final = ("nodeSelector", "tolerations", "schedulingGates")


def reconcile(kind: QueuedKind, queued: Json, world: World, now: float) -> Steps:
    """The next step for a job that queues."""
    look = _Look(kind, queued, world, now)
    look.take_a_step()
    return look.steps


class _Look:
    """One look at one job; the attributes are what was seen, the methods what follows from it."""

    def __init__(self, kind: QueuedKind, queued: Json, world: World, now: float) -> None:
        self.kind = kind
        self.queued = queued
        self.world = world
        self.now = now
        self.steps = Steps()

    def take_a_step(self) -> None:
        owned = self.world.copy.by("workloads by owner", uid(self.queued))
        workload = next((w for w in owned if name(w) == self.workload_name()), None)
        for other in owned:
            if other is not workload and not terminating(other):
                self._delete_not_matching(other)
        if workload is None:
            if not self._adopt():
                self._compose()
        elif standing.finished(workload):
            self._close(workload)
        elif terminating(workload):
            self._stop(workload, "Workload is deleted")
            if not self._running and not self.steps.actions:
                self.steps.actions += free("Workload", workload)
        elif (over := self.kind.finished(self.queued)) is not None:
            note = f"Workload '{key(workload)}' is declared finished"
            status = standing.finish(workload, *over, self.now, were_ready=self._ready(workload))
            self._write_status(workload, status, self._tell("FinishedWorkload", note))
        elif standing.evicted(workload):
            self._leave(workload)
        else:
            self._follow(workload)

    # What is seen

    def workload_name(self) -> str:
        prebuilt = annotations_of(self.queued).get(PREBUILT_WORKLOAD)
        prebuilt = prebuilt or labels(self.queued).get(PREBUILT_WORKLOAD)
        return prebuilt or composing.workload_name(
            self.kind.kind, self.kind.group, name(self.queued), uid(self.queued)
        )

    @property
    def _suspended(self) -> bool:
        return self.kind.suspended(self.queued)

    @property
    def _running(self) -> bool:
        return not self._suspended or self.kind.active(self.queued)

    # What is done

    def _tell(self, reason: str, note: str, *, warning: bool = False, once: bool = False) -> Tell:
        return tell(
            self.kind.kind,
            self.queued,
            self.kind.component,
            reason,
            note,
            warning=warning,
            once=once,
        )

    def _write_status(self, workload: Json, status: Object, *then: Tell) -> None:
        self.steps.actions.append(patch_status("Workload", workload, status, *then))

    def _write_job(self, body: Object, *then: Tell) -> None:
        self.steps.actions.append(patch_object(self.kind.kind, self.queued, body, *then))

    def _delete_not_matching(self, workload: Json) -> None:
        gone = self._tell("DeletedWorkload", f"Deleted not matching Workload: {key(workload)}")
        self.steps.actions.append(delete_object("Workload", workload, gone))

    def _adopt(self) -> bool:
        """A Workload that the user made for this job becomes its own."""
        found = self.world.copy.get("Workload", f"{namespace(self.queued)}/{self.workload_name()}")
        if found is None or metadata(found).get("ownerReferences"):
            return False
        owner = composing.owner_reference(self._identified(), controls=True)
        body = {"metadata": {"ownerReferences": [owner], "labels": {JOB_UID: uid(self.queued)}}}
        self.steps.actions.append(patch_object("Workload", found, body))
        return True

    def _identified(self) -> Json:
        """Items of a list come without their kind."""
        return {**self.queued, "apiVersion": self.kind.api_version, "kind": self.kind.kind}

    def _compose(self) -> None:
        """No Workload yet: make one, once nothing of the job runs."""
        if terminating(self.queued) or self.kind.finished(self.queued) is not None:
            return
        if self._running:
            self._suspend()
            return
        try:
            pod_sets = self.kind.pod_sets(self.queued, self.world.copy.get)
            own_class = self.kind.priority_class(self.queued)
            classes = self.world.classes()
            priority = composing.resolve_priority(self.queued, pod_sets, classes, own_class)
        except composing.UnknownClass as unknown:
            self._complain(f"{unknown.kind}NotFound", str(unknown))
            return
        except CannotQueue as refused:
            self._complain(refused.reason, str(refused))
            return
        workload = composing.compose(
            self._identified(), pod_sets, priority, wl_name=self.workload_name()
        )
        made = self._tell("CreatedWorkload", f"Created Workload: {key(workload)}")
        self.steps.actions.append(Create(kind="Workload", obj=workload, then=(made,)))

    def _complain(self, reason: str, note: str) -> None:
        self.steps.actions.append(self._tell(reason, note, warning=True, once=True))

    def _close(self, workload: Json) -> None:
        """Finished: nothing holds the Workload any more."""
        failed = conditions.reason(workload, standing.FINISHED) == "FailedToStart"
        if failed and self._running:
            self._suspend()
        self.steps.actions += free("Workload", workload)

    def _suspend(self) -> None:
        if not self._suspended:
            self._write_job(self.kind.suspend_patch())

    def _stop(self, workload: Json, message: str) -> None:
        """Suspend, and put the templates back as they were."""
        pod_sets = spec(workload).get("podSets") or []
        try:
            step = self.kind.stop(self.queued, pod_sets, self.world.copy.get)
        except CannotQueue:
            self._suspend()  # its templates are somewhere else, and gone
            return
        if step.patch:
            self._write_job(step.patch, *((self._tell("Stopped", message),) if step.done else ()))

    def _leave(self, workload: Json) -> None:
        """Evicted: stop, and when stopped give the quota back."""
        self._stop(workload, conditions.message(workload, standing.EVICTED))
        if self._suspended and not self.kind.active(self.queued):
            self._write_status(workload, standing.release(workload, self.now))

    def _follow(self, workload: Json) -> None:
        if not self._matches(workload):
            self._rewrite(workload)
            return
        self._follow_priority(workload)
        if standing.admitted(workload):
            self._run(workload)
        elif self._running or self.kind.stopping(self.queued):
            self._stop(workload, "Not admitted by cluster queue")
        elif self.world.config.waits_for_pods:
            standing_still(workload, self.steps, self.now)

    def _run(self, workload: Json) -> None:
        if self._suspended:
            self._start(workload)
            return
        status = standing.reclaimable(workload, self.kind.reclaimable(self.queued))
        if self.world.config.waits_for_pods:
            status |= standing.pods_ready(workload, self._ready(workload), self.now)
        if status:
            self._write_status(workload, status)

    def _ready(self, workload: Json) -> bool:
        return (
            self.world.config.waits_for_pods
            and standing.admitted(workload)
            and self.kind.pods_ready(self.queued, _admitted_counts(workload))
        )

    def _start(self, workload: Json) -> None:
        find = self.world.copy.get
        try:
            updates, trouble = self._updates(workload)
        except (starting.CannotStart, CannotQueue) as conflict:
            updates, trouble = {}, str(conflict)
        if trouble:
            self._write_status(
                workload, standing.finish(workload, "FailedToStart", trouble, self.now)
            )
            return
        patch = self.kind.start_patch(self.queued, updates, _admitted_counts(workload), find)
        note = f"Admitted by clusterQueue {standing.cluster_queue(workload)}"
        self._write_job(patch, self._tell("Started", note))

    def _updates(self, workload: Json) -> tuple[dict[str, Object], str]:
        """What each template gets, by its own name in the job, and why that is impossible."""
        updates: dict[str, Object] = {}
        for slot in self.kind.slots(self.queued, self.world.copy.get):
            update = starting.pod_update(workload, slot.name.lower(), self.world.flavor)
            trouble = starting.conflicts(update, metadata(slot.template), spec(slot.template))
            if trouble:
                return {}, trouble
            updates[slot.name] = update
        return updates, ""

    # Whether the two still say the same

    def _matches(self, workload: Json) -> bool:
        """Whether the Workload still says what the job says; a job that runs carries what admission added."""
        if not any(o.get("uid") == uid(self.queued) for o in owners(workload)):
            return False
        limit = spec(workload).get("maximumExecutionTimeSeconds")
        if limit != composing.max_execution_seconds(self.queued):
            return False
        try:
            wanted = self.kind.pod_sets(self.queued, self.world.copy.get)
        except CannotQueue:
            return True  # nothing to compare with: what was agreed stays
        reserved = (
            standing.has_quota(workload) or not self._suspended or self.kind.stopping(self.queued)
        )
        return same_pod_sets(wanted, spec(workload).get("podSets") or [], reserved)

    def _rewrite(self, workload: Json) -> None:
        """The job was changed: its waiting Workload follows; one that holds quota is made anew."""
        if standing.has_quota(workload) or not self._suspended:
            self._delete_not_matching(workload)
            return
        body: Object = {
            "spec": {
                "podSets": self.kind.pod_sets(self.queued, self.world.copy.get),
                "maximumExecutionTimeSeconds": composing.max_execution_seconds(self.queued),
            }
        }
        note = f"Updated not matching Workload for suspended job: {key(workload)}"
        self.steps.actions.append(
            patch_object("Workload", workload, body, self._tell("UpdatedWorkload", note))
        )
        follow_queue(self.queued, workload, self.steps)

    def _follow_priority(self, workload: Json) -> None:
        """The class the job names now, also while it runs; a class that does not exist changes nothing."""
        if not standing.has_quota(workload):
            follow_queue(self.queued, workload, self.steps)
        body = changed_priority(self.queued, workload, self.world)
        if body:
            told = self._tell(
                "UpdatedWorkload", f"Updated workload priority class: {key(workload)}"
            )
            self.steps.actions.append(patch_object("Workload", workload, body, told))


def standing_still(workload: Json, steps: Steps, now: float) -> None:
    """Every Workload says whether its pods are ready. Most say it with their first decision; this is for the others."""
    if conditions.find(workload, standing.PODS_READY) is not None or steps.actions:
        return
    due = created_at(workload) + UNDECIDED_AFTER_S
    if now < due:
        steps.look_again(due)
    else:
        change = standing.pods_ready(workload, False, now)
        steps.actions.append(patch_status("Workload", workload, change))


def _admitted_counts(workload: Json) -> dict[str, int]:
    """Pods by pod set, as admitted; a set without an assignment has the count it asked for."""
    given = standing.assignments(workload)
    return {
        str(s["name"]): int((given.get(s["name"]) or {}).get("count") or s.get("count", 1))
        for s in spec(workload).get("podSets") or []
    }


def same_pod_sets(wanted: list[Object], known: list[Object], reserved: bool) -> bool:
    """With quota `reserved`, what admission may have changed does not count."""
    if [s["name"] for s in wanted] != [s.get("name") for s in known]:
        return False
    return all(
        (reserved or not _differs(mine, theirs))
        and _spec_of(mine, reserved) == _spec_of(theirs, reserved)
        for mine, theirs in zip(wanted, known, strict=True)
    )


def _differs(wanted: Json, known: Json) -> bool:
    return int(wanted["count"]) != int(known.get("count", 1)) or wanted.get(
        "minCount"
    ) != known.get("minCount")


def _spec_of(pod_set: Json, reserved: bool) -> Object:
    found = pod_set["template"].get("spec") or {}
    return {
        k: v
        for k, v in found.items()
        if v not in (None, [], {}) and not (reserved and k in INJECTED)
    }


def follow_queue(queued: Json, workload: Json, steps: Steps) -> None:
    named = labels(queued).get(QUEUE_NAME, "")
    if spec(workload).get("queueName") != named:
        steps.actions.append(patch_object("Workload", workload, {"spec": {"queueName": named}}))


def changed_priority(queued: Json, workload: Json, world: World) -> Object:
    """The patch that brings a Workload to the class its owner names now."""
    wanted = labels(queued).get(PRIORITY_CLASS)
    known = spec(workload).get("priorityClassRef") or {}
    if not wanted or known.get("name") == wanted:
        return {}
    if known and known.get("kind") != "WorkloadPriorityClass":
        return {}
    if not known and standing.has_quota(workload):
        return {}
    found = world.classes().workload.get(wanted)
    if found is None:
        return {}
    ref = ("kueue.x-k8s.io", "WorkloadPriorityClass", wanted)
    return {"spec": composing.Priority(value=found.value, ref=ref).as_json()}
