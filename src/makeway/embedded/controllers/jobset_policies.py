"""What the failure of a Job means for its JobSet: the set's failure policy, rule by rule.

Without a policy any failed Job fails the set. With one, the first rule that a failed Job matches says what is done, and restarting the
set is what is done where none does. Restarts count towards `maxRestarts` unless the rule says that they do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from makeway.client.resource import Object
from makeway.control.clock import parse_timestamp
from makeway.embedded.objects import condition, name_of
from makeway.kinds.sets import REPLICATED_JOB

RESTART: Final = "RestartJobSet"
_COUNTED: Final = ("RestartJobSet", "RestartJob")
_ALONE: Final = ("RestartJob", "RestartJobAndIgnoreMaxRestarts")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the set, and the sentence for whoever asks why."""

    reason: str
    message: str
    fails: bool = False
    alone: Object | None = None  # the one Job that starts again; else all do
    counts: bool = False  # towards maxRestarts


def judge(policy: Object | None, failed: Iterable[Object], counted: int) -> Verdict | None:
    """`counted` are the restarts so far that count; None when no Job has failed."""
    jobs = sorted(failed, key=_failed_at)
    if not jobs:
        return None
    if policy is None:
        said = "jobset failed due to one or more job failures"
        return Verdict(reason="FailedJobs", message=_with_first(said, jobs[0]), fails=True)
    action, job = _asked_for(policy, jobs)
    if action == "FailJobSet":
        return _verdict(action, "failing", job, fails=True)
    most = int(policy.get("maxRestarts") or 0)
    if action in _COUNTED and counted >= most:
        said = "jobset failed due to reaching max number of restarts"
        return Verdict(reason="ReachedMaxRestarts", message=_with_first(said, job), fails=True)
    alone = job if action in _ALONE else None
    return _verdict(action, "restarting", job, alone=alone, counts=action in _COUNTED)


def _verdict(
    action: str,
    doing: str,
    job: Object,
    *,
    fails: bool = False,
    alone: Object | None = None,
    counts: bool = False,
) -> Verdict:
    what = "jobset" if alone is None else "job"
    said = f"{doing} {what} due to {action} failure policy action"
    return Verdict(
        reason=f"{action}FailurePolicyAction",
        message=_with_first(said, job),
        fails=fails,
        alone=alone,
        counts=counts,
    )


def _asked_for(policy: Object, jobs: list[Object]) -> tuple[str, Object]:
    """The first rule that a Job matches, with the Job that failed first of those that match it."""
    for rule in policy.get("rules") or []:
        for job in jobs:
            if _matches(rule, job):
                return str(rule.get("action") or RESTART), job
    return RESTART, jobs[0]


def _matches(rule: Object, job: Object) -> bool:
    """Every question that a rule asks; one that it leaves out is about all."""
    targets = rule.get("targetReplicatedJobs")
    reasons = rule.get("onJobFailureReasons")
    patterns = rule.get("onJobFailureMessagePatterns")
    why = condition(job, "Failed") or {}
    return (
        (not targets or (job["metadata"].get("labels") or {}).get(REPLICATED_JOB) in targets)
        and (not reasons or why.get("reason") in reasons)
        and (not patterns or any(_found(each, str(why.get("message"))) for each in patterns))
    )


def _found(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False


def _failed_at(job: Object) -> tuple[float, str]:
    at = (condition(job, "Failed") or {}).get("lastTransitionTime")
    return (parse_timestamp(at) if at else 0.0, name_of(job))


def _with_first(said: str, job: Object) -> str:
    return f"{said} (first failed job: {name_of(job)})"
