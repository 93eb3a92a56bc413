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
from makeway.embedded.controllers.indexes import INDEX, format_indexes, index_of, parse_indexes
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
from makeway.embedded.controllers.podfailure import (
    FAIL_INDEX,
    FAIL_JOB,
    IGNORE,
    Verdict,
    judge,
)
from makeway.embedded.objects import (
    active,
    condition,
    deleted,
    deletion_order,
    name_of,
    namespace_of,
    owned_by,
    phase,
    ready,
    status_of,
    true,
    uid_of,
    with_condition,
)

OURS = "kubernetes.io/job-controller"
FINALIZER = "batch.kubernetes.io/job-tracking"
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 10.0, 600.0
# How long pods of a suspended Job may take to go before the Job tells.
ENDING_S = 0.3
# As many pods as one look may make; the rest follow in the next.
MADE_AT_ONCE = 500
FAILURE_COUNT = "batch.kubernetes.io/job-index-failure-count"


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


class _Counted(msgspec.Struct, frozen=True, kw_only=True):
    """The counters with everything folded in that is safely counted, and what still waits."""

    succeeded: int
    failed: int
    waiting_succeeded: list[str]
    waiting_failed: list[str]
    still_held: list[Object]


class Verdicts(msgspec.Struct):
    """What the pods that ended since the last count mean."""

    succeeded: list[Object]
    failed: list[Object]
    ignored: list[Object]
    fail_job: str = ""
    failed_indexes: set[int] = msgspec.field(default_factory=set)


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
    return plan([_release(pod) for pod in pods if _tracked(pod)])


def _after_the_end(job: Object, pods: list[Object], now: float) -> Plan:
    held = [_release(pod) for pod in pods if _tracked(pod)]
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
        self.indexed = self.spec.get("completionMode") == "Indexed"
        self.suspended = bool(self.spec.get("suspend"))
        self.parallelism = int(self.spec.get("parallelism", 1))
        self.completions: int | None = self.spec.get("completions")
        if self.completions is None and "parallelism" not in self.spec:
            self.completions = 1
        self.replace_failed_only = self.spec.get("podReplacementPolicy") == "Failed" or bool(
            self.spec.get("podFailurePolicy")
        )
        self.active = [pod for pod in pods if active(pod)]
        self.terminating = sum(
            deleted(pod) and phase(pod) not in ("Succeeded", "Failed") for pod in pods
        )
        self.conditions: list[Object] = list(self.old.get("conditions") or [])
        self.removed: list[Object] = []
        self.told: list[Action] = []
        self.again: float | None = None

    def plan(self) -> tuple[Plan, Backoff]:
        counted = self._counted()
        ended = self._ended(counted)
        self._remember(ended)
        status = self._status(counted, ended)
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
            _release(pod)
            for pod in [*ended.succeeded, *ended.failed, *ended.ignored, *counted.still_held]
        ]
        steps = plan(
            [_release(pod) for pod in self.removed if _tracked(pod)],
            [*(Delete(PODS, pod, tell=self.job) for pod in self.removed), *made],
            self._write(dict(status)),
            released,
            self.told,
            look_again_at=self.again,
        )
        return steps, self.backoff

    # Counting

    def _counted(self) -> _Counted:
        """Fold in what an earlier look wrote down and whose pods are released by now."""
        waiting = self.old.get("uncountedTerminatedPods") or {}
        held = {uid_of(pod): pod for pod in self.pods if _tracked(pod)}
        succeeded, failed = waiting.get("succeeded") or [], waiting.get("failed") or []
        return _Counted(
            succeeded=int(self.old.get("succeeded") or 0)
            + sum(uid not in held for uid in succeeded),
            failed=int(self.old.get("failed") or 0) + sum(uid not in held for uid in failed),
            waiting_succeeded=[uid for uid in succeeded if uid in held],
            waiting_failed=[uid for uid in failed if uid in held],
            still_held=[held[uid] for uid in [*succeeded, *failed] if uid in held],
        )

    def _ended(self, counted: _Counted) -> Verdicts:
        known = {*counted.waiting_succeeded, *counted.waiting_failed}
        ended = Verdicts(succeeded=[], failed=[], ignored=[])
        done = parse_indexes(self.old.get("completedIndexes") or "")
        for pod in self.pods:
            if not _tracked(pod) or uid_of(pod) in known:
                continue
            if phase(pod) == "Succeeded":
                self._succeed(pod, ended, done)
            elif self._has_failed(pod):
                self._fail(pod, judge(self.job, pod), ended)
        return ended

    def _succeed(self, pod: Object, ended: Verdicts, done: set[int]) -> None:
        index = index_of(pod)
        if self.indexed and (index is None or index in done or index >= (self.completions or 0)):
            # A second success of the same index counts for nothing.
            ended.ignored.append(pod)
            return
        if index is not None:
            done.add(index)
        ended.succeeded.append(pod)

    def _has_failed(self, pod: Object) -> bool:
        if phase(pod) == "Failed":
            return True
        # A pod that somebody deletes may never reach a phase; where a replacement need not wait for
        # its end, it counts as failed from now on.
        return deleted(pod) and not self.replace_failed_only

    def _fail(self, pod: Object, verdict: Verdict, ended: Verdicts) -> None:
        index = index_of(pod)
        if verdict.action == IGNORE:
            ended.ignored.append(pod)
            return
        ended.failed.append(pod)
        if verdict.action == FAIL_JOB and not ended.fail_job:
            ended.fail_job = verdict.message
        if index is not None and self._per_index is not None:
            failures = _failures_before(pod) + 1
            if verdict.action == FAIL_INDEX or failures > self._per_index:
                ended.failed_indexes.add(index)

    @property
    def _per_index(self) -> int | None:
        limit = self.spec.get("backoffLimitPerIndex")
        return None if limit is None else int(limit)

    def _remember(self, ended: Verdicts) -> None:
        if ended.succeeded:
            self.backoff = Backoff()
        if ended.failed:
            last = max(_ended_at(pod, self.now) for pod in ended.failed)
            self.backoff = Backoff(self.backoff.failures + len(ended.failed), last)

    def _status(self, counted: _Counted, ended: Verdicts) -> Object:
        status = {
            key: value
            for key, value in self.old.items()
            if key in ("startTime", "completionTime", "completedIndexes", "failedIndexes")
        }
        status["succeeded"] = counted.succeeded
        status["failed"] = counted.failed
        status["uncountedTerminatedPods"] = {
            key: uids
            for key, uids in (
                ("succeeded", [*counted.waiting_succeeded, *map(uid_of, ended.succeeded)]),
                ("failed", [*counted.waiting_failed, *map(uid_of, ended.failed)]),
            )
            if uids
        }
        if self.indexed:
            done = parse_indexes(self.old.get("completedIndexes") or "")
            done |= {index for pod in ended.succeeded if (index := index_of(pod)) is not None}
            status["completedIndexes"] = format_indexes(done)
            if self._per_index is not None:
                lost = parse_indexes(self.old.get("failedIndexes") or "") | ended.failed_indexes
                status["failedIndexes"] = format_indexes(lost)
        return status

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
            failures += sum(_restarts(pod) for pod in self.active)
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
        if self.indexed:
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
        if self.replace_failed_only:
            room -= self.terminating
        if room <= 0:
            return []
        if self._per_index is None and self.backoff.until() > self.now:
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
        if not self.indexed:
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
        if not self.indexed:
            made = [self._pod() for _ in range(room)]
        else:
            made = [self._indexed_pod(index) for index in self._free_indexes(status)[:room]]
        # Those just made count as active in the status that is written with them.
        self.active = [*self.active, *made]
        return [Create(PODS, pod, tell=self.job) for pod in made]

    def _free_indexes(self, status: Object) -> list[int]:
        taken = {index_of(pod) for pod in self.active}
        if self.replace_failed_only:
            taken |= {
                index_of(pod)
                for pod in self.pods
                if deleted(pod) and phase(pod) not in ("Succeeded", "Failed")
            }
        over = parse_indexes(status.get("completedIndexes") or "")
        over |= parse_indexes(status.get("failedIndexes") or "")
        free = [i for i in range(self.completions or 0) if i not in taken and i not in over]
        if self._per_index is None:
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
        return Backoff(_failures_before(last) + 1, _ended_at(last, self.now))

    def _last_failure(self, index: int) -> Object | None:
        failed = [
            pod
            for pod in self.pods
            if index_of(pod) == index and (phase(pod) == "Failed" or deleted(pod))
        ]
        return max(failed, key=_failures_before, default=None)

    def _pod(self) -> Object:
        template = self.spec["template"]
        metadata = template.get("metadata") or {}
        name, uid = name_of(self.job), uid_of(self.job)
        labels = {
            **(metadata.get("labels") or {}),
            "batch.kubernetes.io/controller-uid": uid,
            "batch.kubernetes.io/job-name": name,
            "controller-uid": uid,
            "job-name": name,
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": f"{name}-",
                "namespace": namespace_of(self.job),
                "labels": labels,
                "annotations": dict(metadata.get("annotations") or {}),
                "finalizers": [*(metadata.get("finalizers") or []), FINALIZER],
                "ownerReferences": owned_by(self.job, "batch/v1", "Job"),
            },
            "spec": template["spec"],
        }

    def _indexed_pod(self, index: int) -> Object:
        pod = self._pod()
        metadata = pod["metadata"]
        metadata["generateName"] = f"{name_of(self.job)}-{index}-"
        metadata["annotations"][INDEX] = str(index)
        metadata["labels"][INDEX] = str(index)
        if self._per_index is not None:
            last = self._last_failure(index)
            count = 0 if last is None else _failures_before(last) + 1
            metadata["annotations"][FAILURE_COUNT] = str(count)
        spec = dict(pod["spec"])
        spec.setdefault("hostname", f"{name_of(self.job)}-{index}")
        for part in ("initContainers", "containers"):
            if spec.get(part):
                spec[part] = [_knows_its_index(container) for container in spec[part]]
        pod["spec"] = spec
        return pod

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


def _tracked(pod: Object) -> bool:
    return FINALIZER in (pod["metadata"].get("finalizers") or ())


def _release(pod: Object) -> Patch:
    kept = [each for each in pod["metadata"].get("finalizers") or [] if each != FINALIZER]
    return Patch(PODS, pod, {"metadata": {"finalizers": kept or None}})


def _ended_at(pod: Object, now: float) -> float:
    ends = [
        parse_timestamp(ended["finishedAt"])
        for container in status_of(pod).get("containerStatuses") or []
        if (ended := (container.get("state") or {}).get("terminated")) and ended.get("finishedAt")
    ]
    return max(ends, default=now)


def _failures_before(pod: Object) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(FAILURE_COUNT, "0")
    return int(text) if text.isdigit() else 0


def _restarts(pod: Object) -> int:
    status = status_of(pod)
    everyone = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    return sum(int(container.get("restartCount") or 0) for container in everyone)


def _knows_its_index(container: Object) -> Object:
    """The index as an environment variable, unless the template sets it itself."""
    given = container.get("env") or []
    if any(variable["name"] == "JOB_COMPLETION_INDEX" for variable in given):
        return container
    source = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
    return {**container, "env": [*given, {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}]}
