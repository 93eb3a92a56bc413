from __future__ import annotations

from typing import Any

import pytest

from makeway.client.resource import Object
from makeway.control.clock import timestamp
from makeway.embedded.controllers.indexes import format_indexes, index_of, parse_indexes
from makeway.embedded.controllers.jobs import NO_BACKOFF, Backoff, reconcile, release_orphans
from makeway.embedded.controllers.plan import Create, Delete, Patch, Plan, Tell
from tests.embedded.controllers.builders import NOW, job, pod


class Look:
    """A plan, seen by what it does."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def created(self) -> list[Object]:
        return [each.obj for each in self.plan.actions if isinstance(each, Create)]

    @property
    def deleted(self) -> list[str]:
        return [
            each.obj["metadata"]["name"] for each in self.plan.actions if isinstance(each, Delete)
        ]

    @property
    def released(self) -> list[str]:
        return [
            each.obj["metadata"]["name"]
            for each in self.plan.actions
            if isinstance(each, Patch) and "finalizers" in (each.body.get("metadata") or {})
        ]

    @property
    def status(self) -> Object:
        for each in self.plan.actions:
            if isinstance(each, Patch) and each.subresource == "status":
                return dict(each.body["status"])
        return {}

    @property
    def conditions(self) -> dict[str, tuple[str, str]]:
        return {
            each["type"]: (each["status"], each["reason"])
            for each in self.status.get("conditions") or []
        }

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(each.reason, each.message) for each in self.plan.actions if isinstance(each, Tell)]


def look(
    obj: Object, pods: list[Object] | None = None, now: float = NOW, backoff: Backoff = NO_BACKOFF
) -> Look:
    return Look(reconcile(obj, pods or [], now, backoff)[0])


def after(obj: Object, seen: Look) -> Object:
    """The Job with the status that was written."""
    status = {**obj["status"]}
    for key, value in seen.status.items():
        if value is None:
            status.pop(key, None)
        elif isinstance(value, dict) and isinstance(status.get(key), dict):
            merged = {**status[key], **value}
            status[key] = {name: each for name, each in merged.items() if each is not None}
        else:
            status[key] = value
    return {**obj, "status": status}


def test_a_new_job_makes_its_pods() -> None:
    seen = look(job(parallelism=3, completions=5))
    assert len(seen.created) == 3
    made = seen.created[0]
    assert made["metadata"]["generateName"] == "train-"
    assert made["metadata"]["labels"] == {
        "team": "x",
        "batch.kubernetes.io/controller-uid": "job-uid",
        "batch.kubernetes.io/job-name": "train",
        "controller-uid": "job-uid",
        "job-name": "train",
    }
    assert made["metadata"]["annotations"] == {"note": "y"}
    assert made["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    assert seen.status["active"] == 3
    assert seen.status["startTime"] == timestamp(NOW)
    assert seen.status["ready"] == 0
    assert seen.status["terminating"] == 0


def test_nothing_changed_asks_for_nothing() -> None:
    fresh = job()
    started = after(fresh, look(fresh))
    pods = [pod("p")]
    assert look(started, pods).plan.actions == []


def test_a_suspended_job_makes_none_and_says_so() -> None:
    seen = look(job(suspend=True))
    assert seen.created == []
    assert seen.conditions == {"Suspended": ("True", "JobSuspended")}
    assert seen.told == [("Suspended", "Job suspended")]
    assert "startTime" not in seen.status
    assert seen.status["terminating"] == 0


def test_suspending_releases_before_it_deletes_and_counts_no_failure() -> None:
    running = job(suspend=True, status={"active": 1, "ready": 1, "startTime": timestamp(NOW)})
    plan, _ = reconcile(running, [pod("p", ready=True)], NOW)
    assert [type(each) for each in plan.actions] == [Patch, Delete]
    assert (Look(plan).released, Look(plan).deleted) == (["p"], ["p"])
    assert plan.look_again_at == NOW + 0.3
    # It tells when the pod is gone, or that it is still ending.
    ending = look(running, [pod("p", deleted=True, tracked=False)])
    assert ending.status["terminating"] == 1
    seen = look(running)
    for each in (ending, seen):
        assert each.conditions == {"Suspended": ("True", "JobSuspended")}
        assert each.status["active"] is None
        assert each.status["startTime"] is None
        assert "failed" not in each.status
    assert look(after(running, seen)).plan.actions == []


def test_resuming_starts_the_clock_anew() -> None:
    held = job(suspend=True)
    held = after(held, look(held))
    held["spec"]["suspend"] = False
    seen = look(held, now=NOW + 50)
    assert len(seen.created) == 1
    assert seen.conditions == {"Suspended": ("False", "JobResumed")}
    assert seen.status["startTime"] == timestamp(NOW + 50)
    assert ("Resumed", "Job resumed") in seen.told


def test_success_is_counted_in_three_steps() -> None:
    running = job(status={"active": 1, "startTime": timestamp(NOW), "ready": 1, "terminating": 0})
    done = pod("p", "Succeeded", code=0)
    first = look(running, [done])
    assert first.status["uncountedTerminatedPods"] == {"succeeded": ["uid-p"]}
    assert "succeeded" not in first.status
    assert first.conditions == {"SuccessCriteriaMet": ("True", "CompletionsReached")}
    assert first.released == ["p"]
    # The status goes out before the pod is released.
    kinds = [
        "status" if each.subresource else "release"
        for each in first.plan.actions
        if isinstance(each, Patch)
    ]
    assert kinds == ["status", "release"]
    written = after(running, first)
    # A crash before the release: it is released, and not counted twice.
    again = look(written, [done])
    assert again.released == ["p"]
    assert "succeeded" not in again.status
    free = pod("p", "Succeeded", code=0, tracked=False)
    last = look(written, [free])
    assert last.status["succeeded"] == 1
    assert last.status["completionTime"] == timestamp(NOW)
    assert last.conditions["Complete"] == ("True", "CompletionsReached")
    assert last.told == [("Completed", "Job completed")]
    assert look(after(written, last), [free]).plan.actions == []


def test_a_pod_that_vanished_after_it_was_noted_still_counts() -> None:
    noted = job(
        status={"uncountedTerminatedPods": {"failed": ["uid-p"]}, "startTime": timestamp(NOW)}
    )
    assert look(noted).status["failed"] == 1


def count_failures(obj: Object, times: int) -> Look:
    """Let `times` pods fail one after another; the last look."""
    backoff, now = NO_BACKOFF, NOW
    for number in range(times):
        failed = pod(f"p{number}", "Failed", code=1, ended=now)
        plan, backoff = reconcile(obj, [failed], now, backoff)
        obj = after(obj, Look(plan))
        freed = pod(f"p{number}", "Failed", code=1, ended=now, tracked=False)
        plan, backoff = reconcile(obj, [freed], now, backoff)
        seen = Look(plan)
        obj = after(obj, seen)
        now = backoff.until() + 1
    return seen


def test_failures_are_replaced_after_a_growing_pause() -> None:
    running = job(status={"active": 1, "startTime": timestamp(NOW)})
    plan, backoff = reconcile(running, [pod("p", "Failed", code=1)], NOW)
    assert Look(plan).created == []
    assert plan.look_again_at == NOW + 10
    assert backoff == Backoff(1, NOW)
    noted = after(running, Look(plan))
    free = [pod("p", "Failed", code=1, tracked=False)]
    assert len(look(noted, free, NOW + 10, backoff).created) == 1
    assert Backoff(3, NOW).until() == NOW + 40
    assert Backoff(30, NOW).until() == NOW + 600


def test_too_many_failures_end_the_job() -> None:
    seen = count_failures(job(backoffLimit=2, status={"startTime": timestamp(NOW)}), 3)
    assert seen.conditions["Failed"] == ("True", "BackoffLimitExceeded")
    assert seen.status["failed"] == 3
    assert ("BackoffLimitExceeded", "Job has reached the specified backoff limit") in seen.told


def test_failing_deletes_what_still_runs_and_waits_for_it() -> None:
    obj = job(backoffLimit=0, parallelism=2, completions=2, status={"startTime": timestamp(NOW)})
    seen = look(obj, [pod("bad", "Failed", code=1), pod("good")])
    assert seen.conditions == {"FailureTarget": ("True", "BackoffLimitExceeded")}
    assert seen.deleted == ["good"]
    noted = after(obj, seen)
    ending = pod("good", deleted=True, tracked=False)
    bad = pod("bad", "Failed", code=1, tracked=False)
    assert "Failed" not in look(noted, [bad, ending]).conditions
    assert look(noted, [bad]).conditions["Failed"] == ("True", "BackoffLimitExceeded")


def test_restarts_inside_pods_count_when_the_policy_is_on_failure() -> None:
    obj = job(backoffLimit=2, policy="OnFailure", status={"startTime": timestamp(NOW)})
    assert look(obj, [pod("p", restarts=2)]).conditions == {}
    seen = look(obj, [pod("p", restarts=3)])
    assert seen.conditions == {"FailureTarget": ("True", "BackoffLimitExceeded")}


def test_a_deleted_pod_counts_as_failed_unless_replacement_waits() -> None:
    obj = job(status={"startTime": timestamp(NOW)})
    gone = [pod("p", deleted=True)]
    assert look(obj, gone).status["uncountedTerminatedPods"] == {"failed": ["uid-p"]}
    patient = job(podReplacementPolicy="Failed", status={"startTime": timestamp(NOW)})
    seen = look(patient, gone)
    assert "failed" not in (seen.status.get("uncountedTerminatedPods") or {})
    assert seen.created == []
    assert seen.status["terminating"] == 1


IGNORE = {
    "rules": [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
}


def test_pod_failure_policy_ignores_disruptions() -> None:
    obj = job(backoffLimit=0, podFailurePolicy=IGNORE, status={"startTime": timestamp(NOW)})
    evicted = pod("p", "Failed", code=137, disrupted="PreemptionByScheduler")
    seen = look(obj, [evicted])
    assert seen.released == ["p"]
    assert "failed" not in (seen.status.get("uncountedTerminatedPods") or {})
    # Like any other attempt, the next one comes after a while.
    step, backoff = reconcile(obj, [evicted], NOW)
    assert seen.created == []
    assert step.look_again_at == backoff.until() > NOW
    assert len(look(obj, [], backoff.until(), backoff).created) == 1


def test_pod_failure_policy_fails_the_job() -> None:
    obj = job(podFailurePolicy=IGNORE, status={"startTime": timestamp(NOW)})
    seen = look(obj, [pod("p", "Failed", code=42)])
    assert seen.conditions == {"FailureTarget": ("True", "PodFailurePolicy")}
    message = seen.status["conditions"][0]["message"]
    assert message == (
        "Container main for pod a/p failed with exit code 42 matching FailJob rule at index 0"
    )


def test_switching_the_machine_off_is_no_failure() -> None:
    obj = job(backoffLimit=0, status={"startTime": timestamp(NOW)})
    seen = look(obj, [pod("p", "Failed", code=143, disrupted="TerminationByKubelet")])
    assert len(seen.created) == 1
    assert seen.conditions == {}


def test_a_deadline_fails_the_job_when_it_passes() -> None:
    obj = job(activeDeadlineSeconds=60, status={"startTime": timestamp(NOW), "active": 1})
    assert reconcile(obj, [pod("p")], NOW)[0].look_again_at == NOW + 60
    seen = look(obj, [pod("p")], NOW + 60)
    assert seen.conditions == {"FailureTarget": ("True", "DeadlineExceeded")}
    assert seen.deleted == ["p"]


def test_a_fresh_job_looks_again_at_its_deadline() -> None:
    assert reconcile(job(activeDeadlineSeconds=60), [], NOW)[0].look_again_at == NOW + 60


@pytest.mark.parametrize(("wanted", "kept"), [(1, 1), (0, 0)])
def test_lower_parallelism_deletes_the_least_valuable(wanted: int, kept: int) -> None:
    obj = job(parallelism=wanted, completions=5, status={"startTime": timestamp(NOW)})
    pods = [pod("ready", ready=True), pod("waiting", "Pending", bound=False)]
    seen = look(obj, pods)
    assert seen.deleted == (["waiting"] if kept else ["waiting", "ready"])


def test_work_queue_jobs_end_with_the_first_success_when_all_have_left() -> None:
    obj = job(completions=None, parallelism=2, status={"startTime": timestamp(NOW)})
    seen = look(obj, [pod("a", "Succeeded", code=0), pod("b")])
    assert seen.created == []
    assert "SuccessCriteriaMet" not in seen.conditions
    noted = after(obj, seen)
    both = [pod("a", "Succeeded", tracked=False), pod("b", "Succeeded", code=0)]
    assert look(noted, both).conditions == {"SuccessCriteriaMet": ("True", "CompletionsReached")}


# Indexed


def indexed(**spec: Any) -> Object:
    return job(completionMode="Indexed", **{"completions": 3, "parallelism": 3, **spec})


def test_indexed_pods_know_their_index() -> None:
    seen = look(indexed())
    assert [index_of(each) for each in seen.created] == [0, 1, 2]
    second = seen.created[1]
    assert second["metadata"]["generateName"] == "train-1-"
    assert second["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "1"
    assert second["spec"]["hostname"] == "train-1"
    env = second["spec"]["containers"][0]["env"][0]
    assert env["name"] == "JOB_COMPLETION_INDEX"
    assert env["valueFrom"]["fieldRef"]["fieldPath"] == (
        "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    )


def test_indexed_success_is_by_index_and_the_missing_one_is_made() -> None:
    obj = indexed(status={"startTime": timestamp(NOW)})
    pods = [pod("a", "Succeeded", code=0, index=0), pod("c", index=2)]
    seen = look(obj, pods)
    assert seen.status["completedIndexes"] == "0"
    assert [index_of(each) for each in seen.created] == [1]
    # The same index again counts for nothing.
    noted = after(obj, seen)
    twice = [pod("a", "Succeeded", tracked=False, index=0), pod("d", "Succeeded", code=0, index=0)]
    later = look(noted, twice)
    assert "d" in later.released
    assert later.status["succeeded"] == 1


def test_two_pods_of_one_index_become_one() -> None:
    obj = indexed(status={"startTime": timestamp(NOW)})
    seen = look(obj, [pod("a", index=0, ready=True), pod("b", index=0), pod("c", index=7)])
    assert sorted(seen.deleted) == ["b", "c"]
    assert [index_of(each) for each in seen.created] == [1, 2]


def test_backoff_per_index_gives_up_one_index_only() -> None:
    obj = indexed(
        backoffLimitPerIndex=1, backoffLimit=2147483647, status={"startTime": timestamp(NOW)}
    )
    first = look(
        obj,
        [pod("a", "Failed", code=1, index=0, failures=0), pod("b", index=1), pod("c", index=2)],
        NOW + 11,
    )
    assert first.status.get("failedIndexes") is None
    again = first.created[0]
    assert index_of(again) == 0
    assert again["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] == "1"
    second = look(
        obj, [pod("a", "Failed", code=1, index=0, failures=1), pod("b", index=1), pod("c", index=2)]
    )
    assert second.status["failedIndexes"] == "0"
    assert second.created == []
    over = {"completedIndexes": "1,2", "failedIndexes": "0", "startTime": timestamp(NOW)}
    seen = look(indexed(backoffLimitPerIndex=1, status=over))
    assert seen.conditions["FailureTarget"] == ("True", "FailedIndexes")


def test_success_policy() -> None:
    rules = {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]}
    obj = indexed(successPolicy=rules, status={"startTime": timestamp(NOW)})
    seen = look(obj, [pod("a", "Succeeded", code=0, index=0), pod("b", index=1)])
    assert seen.conditions == {"SuccessCriteriaMet": ("True", "SuccessPolicy")}
    assert seen.deleted == ["b"]


@pytest.mark.parametrize(
    ("text", "indexes"),
    [("", set()), ("3", {3}), ("0,2-4,7", {0, 2, 3, 4, 7}), ("1,2", {1, 2})],
)
def test_index_texts(text: str, indexes: set[int]) -> None:
    assert parse_indexes(text) == indexes
    assert format_indexes(indexes) == text


# After the end


def finished(**spec: Any) -> Object:
    ended = [{"type": "Complete", "status": "True", "lastTransitionTime": timestamp(NOW)}]
    return job(status={"conditions": ended}, **spec)


def test_time_to_live() -> None:
    assert look(finished()).plan.actions == []
    early = reconcile(finished(ttlSecondsAfterFinished=30), [], NOW + 10)[0]
    assert (early.actions, early.look_again_at) == ([], NOW + 30)
    assert look(finished(ttlSecondsAfterFinished=30), now=NOW + 30).deleted == ["train"]


def test_pods_are_let_go_when_their_job_is_over_or_gone() -> None:
    held = [pod("p", "Succeeded"), pod("q", tracked=False)]
    assert look(finished(), held).released == ["p"]
    assert Look(release_orphans(held)).released == ["p"]


def test_jobs_managed_by_others_are_left_alone() -> None:
    assert look(job(managedBy="kueue.x-k8s.io/multikueue")).plan.actions == []


def test_a_job_on_its_way_out_makes_no_pods() -> None:
    going = job()
    going["metadata"]["deletionTimestamp"] = timestamp(NOW)
    assert look(going).created == []
