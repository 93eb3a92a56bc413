"""Jobs: make pods until enough have succeeded, or too many have failed.

Each look at a Job goes through the same questions: which pods have ended and are not yet counted; is
the Job decided; if not, are there too few or too many pods. Counting survives crashes because it has
three steps: the uid of an ended pod is written into `uncountedTerminatedPods`, then the pod's finalizer
is removed, and only then is the counter raised and the uid dropped. Whoever dies in between continues
from what is written.
"""

from __future__ import annotations

import msgspec

from makeway.client.resource import JOBS, PODS, Object
from makeway.control.clock import parse_timestamp, timestamp
from makeway.embedded.controllers.indexes import index_of, parse_indexes
from makeway.embedded.controllers.jobpods import (
    ended_at,
    failures_before,
    make_indexed_pod,
    make_pod,
    release,
    restarts,
    tracked,
)
from makeway.embedded.controllers.jobtally import Tally, Verdicts
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
from makeway.embedded.controllers.podfailure import stopped_with_the_machine
from makeway.embedded.objects import (
    active,
    condition,
    deleted,
    deletion_order,
    phase,
    ready,
    status_of,
    true,
    uid_of,
    with_condition,
)

OURS = "kubernetes.io/job-controller"
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 10.0, 600.0
# How long pods of a suspended Job may take to go before the Job tells.
ENDING_S = 0.3
# As many pods as one look may make; the rest follow in the next.
MADE_AT_ONCE = 500


class Backoff(msgspec.Struct, frozen=True):
    """Failures since the last success, and when the last one was: remembered by the driver."""

    failures: int = 0
    last: float = 0.0

    def until(self) -> float:
        if not self.failures:
            return 0.0
        doubled: float = FIRST_BACKOFF_S * 2 ** min(self.failures - 1, 10)
        return self.last + min(LONGEST_BACKOFF_S, doubled)


NO_BACKOFF = Backoff()


def reconcile(
    job: Object, pods: list[Object], now: float, backoff: Backoff = NO_BACKOFF
) -> tuple[Plan, Backoff]:
    if job["spec"].get("managedBy", OURS) != OURS:
        return Plan(), backoff
    if _finished(job):
        return _after_the_end(job, pods, now), backoff
    return _Look(job, pods, now, backoff).plan()


def release_orphans(pods: list[Object]) -> Plan:
    """The Job is gone: nobody will count its pods, so nothing must hold them."""
    return plan([release(pod) for pod in pods if tracked(pod)])


def _waited_for(pod: Object) -> bool:
    return phase(pod) != "Succeeded" and not stopped_with_the_machine(pod)


def _after_the_end(job: Object, pods: list[Object], now: float) -> Plan:
    held = [release(pod) for pod in pods if tracked(pod)]
    ttl = job["spec"].get("ttlSecondsAfterFinished")
    if ttl is None or deleted(job):
        return plan(held)
    due = _finished_at(job, now) + float(ttl)
    if due <= now:
        return plan(held, [Delete(JOBS, job, propagation="Background")])
    return plan(held, look_again_at=due)


class _Look:
    """One look at one Job; the attributes are what was seen, the methods what follows from it."""

    def __init__(self, job: Object, pods: list[Object], now: float, backoff: Backoff) -> None:
        self.job = job
        self.spec: Object = job["spec"]
        self.old: Object = status_of(job)
        self.now = now
        self.backoff = backoff
        self.pods = pods
        self.suspended = bool(self.spec.get("suspend"))
        self.parallelism = int(self.spec.get("parallelism", 1))
        self.completions: int | None = self.spec.get("completions")
        if self.completions is None and "parallelism" not in self.spec:
            self.completions = 1
        self.tally = Tally(job, pods, self.completions)
        self.active = [pod for pod in pods if active(pod)]
        self.terminating = sum(
            deleted(pod) and phase(pod) not in ("Succeeded", "Failed") for pod in pods
        )
        self.conditions: list[Object] = list(self.old.get("conditions") or [])
        self.removed: list[Object] = []
        self.told: list[Action] = []
        self.again: float | None = None

    def plan(self) -> tuple[Plan, Backoff]:
        counted = self.tally.counted()
        ended = self.tally.ended(counted)
        self._remember(ended)
        status = self.tally.status(counted, ended)
        made = self._decide(status, ended)
        status["active"] = len(self.active)
        status["ready"] = sum(ready(pod) for pod in self.active)
        status["terminating"] = self.terminating
        self._conclude(status, ended)
        status["conditions"] = self.conditions
        if self.removed and self.suspended:
            # Told when the pods are gone, or a moment later with those still ending.
            self.again = soonest(self.again, self.now + ENDING_S)
            status, self.told = self.old, []
        released = [
            release(pod)
            for pod in [*ended.succeeded, *ended.failed, *ended.ignored, *counted.still_held]
        ]
        steps = plan(
            [release(pod) for pod in self.removed if tracked(pod)],
            [*(Delete(PODS, pod, tell=self.job) for pod in self.removed), *made],
            self._write(dict(status)),
            released,
            self.told,
            look_again_at=self.again,
        )
        return steps, self.backoff

    def _remember(self, ended: Verdicts) -> None:
        if ended.succeeded:
            self.backoff = Backoff()
        # A failure that a rule ignores counts for nothing, but the next attempt waits all the same.
        failed = [*ended.failed, *(pod for pod in ended.ignored if _waited_for(pod))]
        if failed:
            last = max(ended_at(pod, self.now) for pod in failed)
            self.backoff = Backoff(self.backoff.failures + len(failed), last)

    # Deciding

    def _decide(self, status: Object, ended: Verdicts) -> list[Action]:
        if deleted(self.job):
            return []
        self._judge(status, ended)
        if self._has("FailureTarget") or self._has("SuccessCriteriaMet"):
            self._remove(self.active)
            return []
        if self.suspended:
            self._suspend(status)
            return []
        self._resume(status)
        return self._staff(status)

    def _judge(self, status: Object, ended: Verdicts) -> None:
        """Has enough succeeded, or too much failed?"""
        if self._has("FailureTarget") or self._has("SuccessCriteriaMet"):
            return
        failure = self._failure(status, ended)
        if failure:
            self._set("FailureTarget", *failure)
        elif self._complete(status):
            self._set(
                "SuccessCriteriaMet",
                "CompletionsReached",
                "Reached expected number of succeeded pods",
            )
        elif (met := self._success_policy(status)) is not None:
            self._set("SuccessCriteriaMet", "SuccessPolicy", met)

    def _failure(self, status: Object, ended: Verdicts) -> tuple[str, str] | None:
        if ended.fail_job:
            return "PodFailurePolicy", ended.fail_job
        if self._failures(status) > int(self.spec.get("backoffLimit", 6)):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        if self._past_deadline():
            return "DeadlineExceeded", "Job was active longer than specified deadline"
        lost = parse_indexes(status.get("failedIndexes") or "")
        most = self.spec.get("maxFailedIndexes")
        if most is not None and len(lost) > int(most):
            return (
                "MaxFailedIndexesExceeded",
                "Job has exceeded the specified maximal number of failed indexes",
            )
        done = parse_indexes(status.get("completedIndexes") or "")
        if lost and len(lost | done) >= (self.completions or 0):
            return "FailedIndexes", "Job has failed indexes"
        return None

    def _failures(self, status: Object) -> int:
        failures = int(status["failed"]) + len(status["uncountedTerminatedPods"].get("failed", ()))
        if self.spec["template"]["spec"].get("restartPolicy") == "OnFailure":
            # Containers restart inside their pods here: each restart is a failure too.
            failures += sum(restarts(pod) for pod in self.active)
        return failures

    def _past_deadline(self) -> bool:
        limit, start = self.spec.get("activeDeadlineSeconds"), self.old.get("startTime")
        if limit is None or not start or self.suspended:
            return False
        due = parse_timestamp(start) + float(limit)
        self.again = soonest(self.again, due if due > self.now else None)
        return due <= self.now

    def _complete(self, status: Object) -> bool:
        succeeded = self._succeeded(status)
        if self.completions is None:
            return succeeded > 0 and not self.active and not self.terminating
        return succeeded >= self.completions

    def _succeeded(self, status: Object) -> int:
        if self.tally.indexed:
            return len(parse_indexes(status.get("completedIndexes") or ""))
        waiting = status["uncountedTerminatedPods"].get("succeeded", ())
        return int(status["succeeded"]) + len(waiting)

    def _success_policy(self, status: Object) -> str | None:
        done = parse_indexes(status.get("completedIndexes") or "")
        for number, rule in enumerate((self.spec.get("successPolicy") or {}).get("rules") or []):
            asked = rule.get("succeededIndexes")
            among = done & parse_indexes(asked) if asked else done
            needed = rule.get("succeededCount", len(parse_indexes(asked or "")))
            if needed and len(among) >= int(needed):
                return f"Matched rules at index {number}"
        return None

    def _conclude(self, status: Object, ended: Verdicts) -> None:
        """The last word is said only when every pod has ended and is counted."""
        waiting = status["uncountedTerminatedPods"] or ended.ignored
        if waiting or self.active or self.terminating or deleted(self.job):
            return
        if self._has("FailureTarget"):
            cause = self._get("FailureTarget")
            self._set("Failed", cause["reason"], cause["message"])
            self.told.append(Tell(self.job, cause["reason"], cause["message"], warning=True))
        elif self._has("SuccessCriteriaMet"):
            cause = self._get("SuccessCriteriaMet")
            self._set("Complete", cause["reason"], cause["message"])
            status["completionTime"] = timestamp(self.now)
            self.told.append(Tell(self.job, "Completed", "Job completed"))

    # Suspending and resuming

    def _suspend(self, status: Object) -> None:
        self._remove(self.active)
        if not self._has("Suspended"):
            self._set("Suspended", "JobSuspended", "Job suspended")
            self.told.append(Tell(self.job, "Suspended", "Job suspended"))
        status.pop("startTime", None)
        self.backoff = Backoff()

    def _resume(self, status: Object) -> None:
        if self._has("Suspended"):
            self._set("Suspended", "JobResumed", "Job resumed", status="False")
            self.told.append(Tell(self.job, "Resumed", "Job resumed"))
            # The clock of activeDeadlineSeconds starts anew.
            status["startTime"] = timestamp(self.now)
        if not status.get("startTime"):
            status["startTime"] = timestamp(self.now)
            limit = self.spec.get("activeDeadlineSeconds")
            if limit is not None:
                self.again = soonest(self.again, self.now + float(limit))

    # Pods

    def _staff(self, status: Object) -> list[Action]:
        wanted = self._wanted(status)
        self._remove(self._without_work(status))
        if len(self.active) > wanted:
            self._remove(deletion_order(self.active)[: len(self.active) - wanted])
        room = wanted - len(self.active)
        if self.tally.replace_failed_only:
            room -= self.terminating
        if room <= 0:
            return []
        if self.tally.per_index is None and self.backoff.until() > self.now:
            self.again = soonest(self.again, self.backoff.until())
            return []
        return self._hire(status, min(room, MADE_AT_ONCE))

    def _wanted(self, status: Object) -> int:
        succeeded = self._succeeded(status)
        if self.completions is None:
            return len(self.active) if succeeded else self.parallelism
        lost = len(parse_indexes(status.get("failedIndexes") or ""))
        return max(0, min(self.parallelism, self.completions - succeeded - lost))

    def _without_work(self, status: Object) -> list[Object]:
        """Pods of indexes that are done, given up, above the completions, or there twice."""
        if not self.tally.indexed:
            return []
        over = parse_indexes(status.get("completedIndexes") or "")
        over |= parse_indexes(status.get("failedIndexes") or "")
        surplus, taken = [], set()
        for pod in reversed(deletion_order(self.active)):
            index = index_of(pod)
            if index is None or index in over or index in taken or index >= (self.completions or 0):
                surplus.append(pod)
            else:
                taken.add(index)
        return surplus

    def _hire(self, status: Object, room: int) -> list[Action]:
        if not self.tally.indexed:
            made = [make_pod(self.job) for _ in range(room)]
        else:
            made = [
                make_indexed_pod(self.job, index, self._failures_of(index))
                for index in self._free_indexes(status)[:room]
            ]
        # Those just made count as active in the status that is written with them.
        self.active = [*self.active, *made]
        return [Create(PODS, pod, tell=self.job) for pod in made]

    def _free_indexes(self, status: Object) -> list[int]:
        taken = {index_of(pod) for pod in self.active}
        if self.tally.replace_failed_only:
            taken |= {
                index_of(pod)
                for pod in self.pods
                if deleted(pod) and phase(pod) not in ("Succeeded", "Failed")
            }
        over = parse_indexes(status.get("completedIndexes") or "")
        over |= parse_indexes(status.get("failedIndexes") or "")
        free = [i for i in range(self.completions or 0) if i not in taken and i not in over]
        if self.tally.per_index is None:
            return free
        ready_now = [i for i in free if self._index_backoff(i).until() <= self.now]
        if len(ready_now) < len(free):
            later = [self._index_backoff(i).until() for i in free if i not in ready_now]
            self.again = soonest(self.again, min(later))
        return ready_now

    def _index_backoff(self, index: int) -> Backoff:
        last = self._last_failure(index)
        if last is None:
            return Backoff()
        return Backoff(failures_before(last) + 1, ended_at(last, self.now))

    def _last_failure(self, index: int) -> Object | None:
        failed = [
            pod
            for pod in self.pods
            if index_of(pod) == index and (phase(pod) == "Failed" or deleted(pod))
        ]
        return max(failed, key=failures_before, default=None)

    def _failures_of(self, index: int) -> int | None:
        if self.tally.per_index is None:
            return None
        last = self._last_failure(index)
        return 0 if last is None else failures_before(last) + 1

    def _remove(self, pods: list[Object]) -> None:
        """Our own deletions are no failures: released first, they are never counted."""
        gone = {uid_of(pod) for pod in pods}
        self.active = [pod for pod in self.active if uid_of(pod) not in gone]
        self.terminating += len(pods)
        self.removed += pods

    # Conditions

    def _has(self, kind: str) -> bool:
        return any(each["type"] == kind and each["status"] == "True" for each in self.conditions)

    def _get(self, kind: str) -> Object:
        return next(each for each in self.conditions if each["type"] == kind)

    def _set(self, kind: str, reason: str, message: str, status: str = "True") -> None:
        self.conditions = with_condition(
            self.conditions,
            kind,
            status=status,
            reason=reason,
            message=message,
            now=self.now,
            also="lastProbeTime",
        )

    def _write(self, status: Object) -> list[Action]:
        for key in (
            "active",
            "succeeded",
            "failed",
            "completedIndexes",
            "failedIndexes",
            "conditions",
        ):
            if not status.get(key):
                status.pop(key, None)
        body = merge_patch(self.old, status)
        return [Patch(JOBS, self.job, {"status": body}, subresource="status")] if body else []


def _finished(job: Object) -> bool:
    return true(job, "Complete") or true(job, "Failed")


def _finished_at(job: Object, now: float) -> float:
    for kind in ("Complete", "Failed"):
        found = condition(job, kind)
        if found is not None and found["status"] == "True" and found.get("lastTransitionTime"):
            return parse_timestamp(found["lastTransitionTime"])
    return now
