"""JobSets, training jobs, StatefulSets and LeaderWorkerSets: which pods and Jobs they want, look by look."""

from __future__ import annotations

from typing import Any

from makeway.client.resource import Object, Resource
from makeway.control.clock import timestamp
from makeway.embedded.controllers import jobsets, leaderworkersets, statefulsets, training
from makeway.embedded.controllers.plan import Create, Delete, Patch, Plan, Tell
from makeway.embedded.objects import name_of
from makeway.kinds.kubeflow import KINDS
from tests.embedded.controllers.builders import NOW, pod

TEMPLATE: Object = {"metadata": {}, "spec": {"containers": [{"name": "c"}]}}


def owner(kind: str, status: Object | None = None, **spec: Any) -> Object:
    meta = {"name": "it", "namespace": "a", "uid": "u"}
    found = {"apiVersion": "x/v1", "kind": kind, "metadata": meta, "spec": spec}
    return {**found, "status": status or {}}


def made(plan: Plan) -> list[str]:
    return [name_of(a.obj) for a in plan.actions if isinstance(a, Create)]


def removed(plan: Plan) -> list[str]:
    return [name_of(a.obj) for a in plan.actions if isinstance(a, Delete)]


def status(plan: Plan) -> Object:
    (found,) = [a.body for a in plan.actions if isinstance(a, Patch)]
    return dict(found["status"])


def no_claims(name: str) -> None:
    """Nobody has claimed anything."""


def stateful(**spec: Any) -> Object:
    return owner("StatefulSet", template=TEMPLATE, **{"replicas": 3, **spec})


def looked(**spec: Any) -> tuple[Object, list[Object]]:
    """A set whose three pods are ready."""
    found = stateful(podManagementPolicy="Parallel", **spec)
    labels = {"controller-revision-hash": _revision(found)}
    return found, [pod(f"it-{i}", ready=True, labels=labels) for i in range(3)]


def _revision(found: Object) -> str:
    first = statefulsets.reconcile(found, [], no_claims)
    return str(status(first)["updateRevision"])


def test_a_stateful_pod_waits_for_the_one_before_it() -> None:
    assert made(statefulsets.reconcile(stateful(), [], no_claims)) == ["it-0"]
    waiting = [pod("it-0", "Pending")]
    assert made(statefulsets.reconcile(stateful(), waiting, no_claims)) == []
    assert made(statefulsets.reconcile(stateful(), [pod("it-0", ready=True)], no_claims)) == [
        "it-1"
    ]


def test_stateful_pods_come_at_once_when_asked() -> None:
    found = stateful(podManagementPolicy="Parallel")
    assert made(statefulsets.reconcile(found, [], no_claims)) == ["it-0", "it-1", "it-2"]


def test_a_stateful_set_shrinks_from_its_end() -> None:
    found, pods = looked()
    found["spec"].update(replicas=1, podManagementPolicy="OrderedReady")
    assert removed(statefulsets.reconcile(found, pods, no_claims)) == ["it-2"]


def test_a_new_template_replaces_the_last_pod_first() -> None:
    found, pods = looked()
    found["spec"]["template"] = {**TEMPLATE, "metadata": {"labels": {"new": "yes"}}}
    assert removed(statefulsets.reconcile(found, pods, no_claims)) == ["it-2"]


def jobset(status: Object | None = None, **spec: Any) -> Object:
    jobs = [
        {"name": "lead", "template": {"spec": {"template": TEMPLATE}}},
        {"name": "work", "replicas": 2, "template": {"spec": {"template": TEMPLATE}}},
    ]
    return owner("JobSet", status, **{"replicatedJobs": jobs, **spec})


def job(name: str, outcome: str = "", attempt: int = 0, **status: Any) -> Object:
    conditions = [{"type": outcome, "status": "True"}] if outcome else []
    meta = {"name": name, "namespace": "a", "uid": f"uid-{name}"}
    labels = {"jobset.sigs.k8s.io/restart-attempt": str(attempt)}
    return {
        "metadata": {**meta, "labels": labels},
        "spec": {"parallelism": 1},
        "status": {"conditions": conditions, **status},
    }


def test_a_jobset_makes_its_jobs_and_ends_with_them() -> None:
    assert made(jobsets.reconcile(jobset(), [], NOW)) == ["it-lead-0", "it-work-0", "it-work-1"]
    done = [job(n, "Complete") for n in ("it-lead-0", "it-work-0", "it-work-1")]
    assert status(jobsets.reconcile(jobset(), done, NOW))["terminalState"] == "Completed"


def test_jobs_in_order_wait_for_those_before_them() -> None:
    found = jobset(startupPolicy={"startupPolicyOrder": "InOrder"})
    assert made(jobsets.reconcile(found, [], NOW)) == ["it-lead-0"]
    ready = [job("it-lead-0", active=1, ready=1)]
    assert made(jobsets.reconcile(found, ready, NOW)) == ["it-work-0", "it-work-1"]


def test_a_suspended_jobset_keeps_only_what_is_over() -> None:
    jobs = [job("it-lead-0", "Complete"), job("it-work-0", active=1)]
    assert removed(jobsets.reconcile(jobset(suspend=True), jobs, NOW)) == ["it-work-0"]


def test_a_failed_job_fails_the_set_or_starts_it_again() -> None:
    jobs = [job("it-lead-0", "Failed"), job("it-work-0", active=1)]
    failed = jobsets.reconcile(jobset(), jobs, NOW)
    assert status(failed)["terminalState"] == "Failed"
    assert removed(failed) == ["it-work-0"]
    again = jobset(failurePolicy={"maxRestarts": 2})
    assert status(jobsets.reconcile(again, jobs, NOW))["restarts"] == 1
    again["status"] = {"restarts": 1}
    plan = jobsets.reconcile(again, jobs, NOW)
    assert removed(plan) == ["it-lead-0", "it-work-0"]


def failed(
    name: str, reason: str = "BackoffLimitExceeded", at: int = 0, message: str = ""
) -> Object:
    """A Job of `it`, by the name of its replicated Job."""
    found = job(f"it-{name}-0")
    found["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] = name
    found["status"]["conditions"] = [
        {
            "type": "Failed",
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": f"2026-01-01T00:00:{at:02}Z",
        }
    ]
    return found


def outcome(policy: Object, *jobs: Object, status: Object | None = None) -> tuple[str, Object]:
    """The reason that is told, and the status that is written."""
    plan = jobsets.reconcile(jobset(status, failurePolicy=policy), list(jobs), NOW)
    (told,) = [a.reason for a in plan.actions if isinstance(a, Tell)]
    (written,) = [a.body["status"] for a in plan.actions if isinstance(a, Patch)]
    return told, dict(written)


def test_a_set_starts_again_as_often_as_it_may() -> None:
    told, written = outcome({"maxRestarts": 2}, failed("lead"))
    assert told == "RestartJobSetFailurePolicyAction"
    assert (written["restarts"], written["restartsCountTowardsMax"]) == (1, 1)
    spent = {"restarts": 0, "restartsCountTowardsMax": 2}
    told, written = outcome({"maxRestarts": 2}, failed("lead"), status=spent)
    assert (told, written["terminalState"]) == ("ReachedMaxRestarts", "Failed")


def test_the_first_rule_that_matches_is_followed() -> None:
    rules = [
        {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
        {"action": "RestartJobSetAndIgnoreMaxRestarts", "targetReplicatedJobs": ["work"]},
        {"action": "FailJobSet", "onJobFailureMessagePatterns": ["out of mem.*"]},
    ]
    policy = {"maxRestarts": 3, "rules": rules}
    told, written = outcome(policy, failed("work", "PodFailurePolicy"))
    assert (told, written["terminalState"]) == ("FailJobSetFailurePolicyAction", "Failed")
    told, written = outcome(policy, failed("work"))
    assert told == "RestartJobSetAndIgnoreMaxRestartsFailurePolicyAction"
    assert (written["restarts"], written["restartsCountTowardsMax"]) == (1, 0)
    told, _ = outcome(policy, failed("lead", message="it ran out of memory"))
    assert told == "FailJobSetFailurePolicyAction"
    told, written = outcome(policy, failed("lead"))
    assert (told, written["restartsCountTowardsMax"]) == ("RestartJobSetFailurePolicyAction", 1)


def test_the_job_that_failed_first_is_named() -> None:
    plan = jobsets.reconcile(jobset(), [failed("lead", at=9), failed("work", at=3)], NOW)
    (said,) = [a.message for a in plan.actions if isinstance(a, Tell)]
    assert said.endswith("(first failed job: it-work-0)")


def test_one_job_can_start_again_alone() -> None:
    policy = {
        "maxRestarts": 1,
        "rules": [{"action": "RestartJob", "targetReplicatedJobs": ["work"]}],
    }
    plan = jobsets.reconcile(
        jobset(failurePolicy=policy), [job("it-lead-0", active=1), failed("work")], NOW
    )
    assert removed(plan) == ["it-work-0"]
    assert status(plan)["restarts"] == 0
    assert status(plan)["restartsCountTowardsMax"] == 1


def test_a_set_that_starts_blocking_waits_for_all_of_the_last_attempt() -> None:
    policy = {"maxRestarts": 1, "restartStrategy": "BlockingRecreate"}
    leaving = job("it-work-1")
    leaving["metadata"]["deletionTimestamp"] = "now"
    found = jobset({"restarts": 1}, failurePolicy=policy)
    assert made(jobsets.reconcile(found, [leaving], NOW)) == []
    assert len(made(jobsets.reconcile(found, [], NOW))) == 3
    found["spec"]["failurePolicy"] = {"maxRestarts": 1}
    assert made(jobsets.reconcile(found, [leaving], NOW)) == ["it-lead-0", "it-work-0"]


def test_success_can_be_one_job_of_a_kind() -> None:
    policy = {"operator": "Any", "targetReplicatedJobs": ["work"]}
    found = jobset(successPolicy=policy)
    jobs = [job("it-lead-0", "Complete"), job("it-work-0", active=1), job("it-work-1", active=1)]
    assert "terminalState" not in status(jobsets.reconcile(found, jobs, NOW))
    jobs[2] = job("it-work-1", "Complete")
    plan = jobsets.reconcile(found, jobs, NOW)
    assert status(plan)["terminalState"] == "Completed"
    assert removed(plan) == ["it-work-0"]


def test_a_set_goes_some_time_after_its_end() -> None:
    ended = {"type": "Completed", "status": "True", "lastTransitionTime": timestamp(NOW - 50)}
    found = jobset({"terminalState": "Completed", "conditions": [ended]})
    found["spec"]["ttlSecondsAfterFinished"] = 60
    plan = jobsets.reconcile(found, [], NOW)
    assert (removed(plan), plan.look_again_at) == ([], NOW + 10)
    found["spec"]["ttlSecondsAfterFinished"] = 50
    assert removed(jobsets.reconcile(found, [], NOW)) == ["it"]


PYTORCH = next(kind for kind in KINDS if kind.kind == "PyTorchJob")
HOME = Resource("kubeflow.org", "v1", "pytorchjobs")


def pytorch(status: Object | None = None, **more: Any) -> Object:
    specs = {"Master": {"template": TEMPLATE}, "Worker": {"replicas": 2, "template": TEMPLATE}}
    return owner("PyTorchJob", status, pytorchReplicaSpecs=specs, **more)


def look(found: Object, *pods: Object) -> Plan:
    return training.reconcile(PYTORCH, HOME, found, list(pods), NOW)


def test_a_training_job_is_done_when_its_master_is() -> None:
    assert made(look(pytorch())) == ["it-master-0", "it-worker-0", "it-worker-1"]
    plan = look(pytorch(), pod("it-master-0", "Succeeded"), pod("it-worker-0"), pod("it-worker-1"))
    assert "Succeeded" in [c["type"] for c in status(plan)["conditions"]]


def test_a_training_pod_that_was_evicted_is_made_anew() -> None:
    lost = pod("it-worker-0", "Failed", disrupted="PreemptionByScheduler")
    plan = look(pytorch(), pod("it-master-0"), lost, pod("it-worker-1"))
    assert removed(plan) == ["it-worker-0"]
    assert "Failed" not in [c["type"] for c in status(plan)["conditions"]]


def test_a_training_pod_that_fails_fails_the_job() -> None:
    plan = look(pytorch(), pod("it-master-0"), pod("it-worker-0", "Failed"), pod("it-worker-1"))
    assert "Failed" in [c["type"] for c in status(plan)["conditions"]]


def test_a_suspended_training_job_has_no_pods() -> None:
    plan = look(pytorch(runPolicy={"suspend": True}), pod("it-master-0"))
    assert removed(plan) == ["it-master-0"]
    assert status(plan)["replicaStatuses"]["Master"]["active"] == 0


def lws(**form: Any) -> Object:
    return owner(
        "LeaderWorkerSet",
        replicas=2,
        leaderWorkerTemplate={"size": 2, "workerTemplate": TEMPLATE, **form},
    )


def test_a_group_that_lost_a_pod_is_made_anew_as_a_whole() -> None:
    first = leaderworkersets.reconcile(lws(), [], NOW)
    assert made(first) == ["it-0", "it-0-1", "it-1", "it-1-1"]
    pods = [a.obj for a in first.actions if isinstance(a, Create)]
    for number, each in enumerate(pods):
        each["metadata"]["uid"] = f"uid-{number}"
        each["status"] = {"phase": "Running"}
    assert leaderworkersets.reconcile(lws(), pods, NOW).actions[:-1] == []
    pods[1]["status"]["phase"] = "Failed"
    assert removed(leaderworkersets.reconcile(lws(), pods, NOW)) == ["it-0", "it-0-1"]
    assert made(leaderworkersets.reconcile(lws(), pods[2:], NOW)) == ["it-0", "it-0-1"]


def test_workers_may_wait_for_their_leader() -> None:
    found = lws()
    found["spec"].update(replicas=1, startupPolicy="LeaderReady")
    assert made(leaderworkersets.reconcile(found, [], NOW)) == ["it-0"]

    def leader(*, ready: bool) -> Object:
        (first,) = [
            a.obj
            for a in leaderworkersets.reconcile(found, [], NOW).actions
            if isinstance(a, Create)
        ]
        return pod("it-0", ready=ready, labels=first["metadata"]["labels"])

    assert made(leaderworkersets.reconcile(found, [leader(ready=False)], NOW)) == []
    assert made(leaderworkersets.reconcile(found, [leader(ready=True)], NOW)) == ["it-0-1"]


def test_a_group_may_be_made_anew_only_after_it_started() -> None:
    found = lws(restartPolicy="RecreateGroupAfterStart")
    found["spec"]["replicas"] = 1
    pods = [
        a.obj for a in leaderworkersets.reconcile(found, [], NOW).actions if isinstance(a, Create)
    ]
    failed = pod("it-0", "Failed", labels=pods[0]["metadata"]["labels"])
    waiting = pod("it-0-1", "Pending", labels=pods[1]["metadata"]["labels"])
    started = pod("it-0-1", labels=pods[1]["metadata"]["labels"])
    assert removed(leaderworkersets.reconcile(found, [failed, waiting], NOW)) == ["it-0"]
    assert removed(leaderworkersets.reconcile(found, [failed, started], NOW)) == ["it-0", "it-0-1"]
