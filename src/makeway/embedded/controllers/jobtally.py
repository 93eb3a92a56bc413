"""Counting a Job's pods that have ended, so that a crash in between counts none of them twice and loses none.

What an earlier look wrote down and whose pods are released by now is folded into the counters; what ended since is judged, and
written down to be counted by the next.
"""

from __future__ import annotations

import msgspec

from makeway.client.resource import Object
from makeway.embedded.controllers.indexes import format_indexes, index_of, parse_indexes
from makeway.embedded.controllers.jobpods import failures_before, tracked
from makeway.embedded.controllers.podfailure import (
    FAIL_INDEX,
    FAIL_JOB,
    IGNORE,
    Verdict,
    judge,
)
from makeway.embedded.objects import deleted, phase, status_of, uid_of


class Counted(msgspec.Struct, frozen=True, kw_only=True):
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


class Tally:
    """One count of one Job."""

    def __init__(self, job: Object, pods: list[Object], completions: int | None) -> None:
        spec: Object = job["spec"]
        self.job = job
        self.pods = pods
        self.old: Object = status_of(job)
        self.completions = completions
        self.indexed = spec.get("completionMode") == "Indexed"
        limit = spec.get("backoffLimitPerIndex")
        self.per_index: int | None = None if limit is None else int(limit)
        self.replace_failed_only = spec.get("podReplacementPolicy") == "Failed" or bool(
            spec.get("podFailurePolicy")
        )

    def counted(self) -> Counted:
        """Fold in what an earlier look wrote down and whose pods are released by now."""
        waiting = self.old.get("uncountedTerminatedPods") or {}
        held = {uid_of(pod): pod for pod in self.pods if tracked(pod)}
        succeeded, failed = waiting.get("succeeded") or [], waiting.get("failed") or []
        return Counted(
            succeeded=int(self.old.get("succeeded") or 0)
            + sum(uid not in held for uid in succeeded),
            failed=int(self.old.get("failed") or 0) + sum(uid not in held for uid in failed),
            waiting_succeeded=[uid for uid in succeeded if uid in held],
            waiting_failed=[uid for uid in failed if uid in held],
            still_held=[held[uid] for uid in [*succeeded, *failed] if uid in held],
        )

    def ended(self, counted: Counted) -> Verdicts:
        known = {*counted.waiting_succeeded, *counted.waiting_failed}
        ended = Verdicts(succeeded=[], failed=[], ignored=[])
        done = parse_indexes(self.old.get("completedIndexes") or "")
        for pod in self.pods:
            if not tracked(pod) or uid_of(pod) in known:
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
        if index is not None and self.per_index is not None:
            failures = failures_before(pod) + 1
            if verdict.action == FAIL_INDEX or failures > self.per_index:
                ended.failed_indexes.add(index)

    def status(self, counted: Counted, ended: Verdicts) -> Object:
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
            if self.per_index is not None:
                lost = parse_indexes(self.old.get("failedIndexes") or "") | ended.failed_indexes
                status["failedIndexes"] = format_indexes(lost)
        return status
