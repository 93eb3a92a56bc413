"""CronJobs: a Job each time one is due, as far as the last one allows, and only so many old ones.

After a pause (nobody was looking, or it was suspended) only the last time that was missed is made up for, if it is not too late for it.
"""

from __future__ import annotations

import copy
from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

from makeway.client.resource import CRON_JOBS, JOBS, Object
from makeway.control.clock import parse_timestamp, timestamp
from makeway.embedded.controllers.plan import (
    Action,
    Create,
    Delete,
    Patch,
    Plan,
    Tell,
    merge_patch,
    plan,
    soonest,
)
from makeway.embedded.objects import (
    created_at,
    deleted,
    name_of,
    namespace_of,
    owned_by,
    status_of,
    true,
    uid_of,
)
from makeway.kinds.schedule import Schedule, parse_schedule

SCHEDULED_FOR = "batch.kubernetes.io/cronjob-scheduled-timestamp"


def reconcile(owner: Object, jobs: list[Object], now: float) -> Plan:
    if deleted(owner):
        return Plan()
    return _Look(owner, jobs, now).plan()


class _Look:
    def __init__(self, owner: Object, jobs: list[Object], now: float) -> None:
        self.owner = owner
        self.spec: Object = owner["spec"]
        self.now = now
        self.jobs = [job for job in jobs if not deleted(job)]
        # Jobs that somebody made from its template by hand are nobody's turn.
        self.running = [job for job in self.jobs if not _over(job) and _scheduled(job)]
        self.old = status_of(owner)
        self.status: Object = {
            key: self.old[key]
            for key in ("lastScheduleTime", "lastSuccessfulTime")
            if key in self.old
        }
        self.again: float | None = None

    def plan(self) -> Plan:
        history, told = self._forget(), self._notice()
        changes = [] if self.spec.get("suspend") else self._start()
        if self.running:
            self.status["active"] = [_reference(job) for job in self.running]
        body = merge_patch(self.old, self.status)
        write = [Patch(CRON_JOBS, self.owner, {"status": body}, "status")] if body else []
        return plan(changes, write, [*told, *history], look_again_at=self.again)

    # When

    def _zone(self) -> tzinfo:
        named = self.spec.get("timeZone")
        return ZoneInfo(str(named)) if named else UTC

    def _start(self) -> list[Action]:
        schedule, zone = parse_schedule(str(self.spec["schedule"])), self._zone()
        self.again = schedule.next_after(self.now, zone)
        due = schedule.last_between(self._since(), self.now, zone)
        if due is None:
            self.again = soonest(self.again, self._next_every(schedule))
            return []
        return self._make(due)

    def _next_every(self, schedule: Schedule) -> float | None:
        return self._since() + schedule.every_s if schedule.every_s else None

    def _since(self) -> float:
        """It was looked at up to here; what is past its deadline is not looked at any more."""
        last = self.old.get("lastScheduleTime")
        since = parse_timestamp(last) if last else created_at(self.owner)
        late_s = self.spec.get("startingDeadlineSeconds")
        return since if late_s is None else max(since, self.now - float(late_s))

    # What

    def _make(self, due: float) -> list[Action]:
        policy = self.spec.get("concurrencyPolicy", "Allow")
        if policy == "Forbid" and self.running:
            said = "Not starting job because prior execution is running and concurrency policy is Forbid"
            return [Tell(self.owner, "JobAlreadyActive", said)]
        replaced: list[Action] = []
        if policy == "Replace":
            replaced = [Delete(JOBS, job, tell=self.owner) for job in self.running]
            self.running = []
        job = self._job(due)
        self.status["lastScheduleTime"] = timestamp(due)
        known = {name_of(job) for job in self.jobs}
        return (
            replaced if name_of(job) in known else [*replaced, Create(JOBS, job, tell=self.owner)]
        )

    def _job(self, due: float) -> Object:
        template = copy.deepcopy(self.spec["jobTemplate"])
        metadata = template.get("metadata") or {}
        notes = {**(metadata.get("annotations") or {}), SCHEDULED_FOR: timestamp(due)}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                # The same name for the same time: nothing is started twice.
                "name": f"{name_of(self.owner)}-{int(due) // 60}",
                "namespace": namespace_of(self.owner),
                "labels": dict(metadata.get("labels") or {}),
                "annotations": notes,
                "ownerReferences": owned_by(self.owner, "batch/v1", "CronJob"),
            },
            "spec": template["spec"],
        }

    # What was

    def _notice(self) -> list[Action]:
        """Those that were running at the last look and are over."""
        known = {str(each.get("uid")) for each in self.old.get("active") or []}
        ended = [job for job in self.jobs if _over(job) and uid_of(job) in known]
        for job in self.jobs:
            finished = status_of(job).get("completionTime")
            if finished and finished > str(self.status.get("lastSuccessfulTime") or ""):
                self.status["lastSuccessfulTime"] = finished
        return [
            Tell(
                self.owner,
                "SawCompletedJob",
                f"Saw completed job: {name_of(job)}, condition: {_over(job)}",
            )
            for job in ended
        ]

    def _forget(self) -> list[Action]:
        found: list[Action] = []
        for outcome, field, usual in (
            ("Complete", "successfulJobsHistoryLimit", 3),
            ("Failed", "failedJobsHistoryLimit", 1),
        ):
            kept = self.spec.get(field)
            over = sorted((j for j in self.jobs if _over(j) == outcome), key=created_at)
            surplus = max(0, len(over) - int(usual if kept is None else kept))
            found += [Delete(JOBS, job, tell=self.owner) for job in over[:surplus]]
        return found


def _over(job: Object) -> str:
    return next((kind for kind in ("Complete", "Failed") if true(job, kind)), "")


def _scheduled(job: Object) -> bool:
    return SCHEDULED_FOR in (job["metadata"].get("annotations") or {})


def _reference(job: Object) -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "namespace": namespace_of(job),
        "name": name_of(job),
        "uid": uid_of(job),
    }
