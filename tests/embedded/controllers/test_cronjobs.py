"""CronJobs: which Jobs they make, and when; what they keep."""

from __future__ import annotations

from typing import Any

from makeway.client.resource import CRON_JOBS, JOBS, Object
from makeway.control.clock import timestamp
from makeway.embedded.controllers import cronjobs
from makeway.embedded.controllers.plan import Create, Delete, Patch, Plan, Tell
from makeway.embedded.objects import name_of
from tests.embedded.conftest import Cluster
from tests.embedded.controllers.test_live import start

NOON = 1_800_014_400.0  # a full hour
TEMPLATE = {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": []}}}}


def cron(*, last: float | None = None, created: float = NOON - 600, **spec: Any) -> Object:
    status = {"lastScheduleTime": timestamp(last)} if last else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {
            "name": "report",
            "namespace": "a",
            "uid": "u",
            "creationTimestamp": timestamp(created),
        },
        "spec": {"schedule": "0 * * * *", "jobTemplate": TEMPLATE, **spec},
        "status": status,
    }


def job(name: str, outcome: str = "", at: float = NOON, *, by_hand: bool = False) -> Object:
    notes = {} if by_hand else {cronjobs.SCHEDULED_FOR: timestamp(at)}
    conditions = [{"type": outcome, "status": "True"}] if outcome else []
    return {
        "metadata": {
            "name": name,
            "namespace": "a",
            "uid": f"uid-{name}",
            "creationTimestamp": timestamp(at),
            "annotations": notes,
        },
        "spec": {},
        "status": {"conditions": conditions},
    }


def made(plan: Plan) -> list[str]:
    return [name_of(a.obj) for a in plan.actions if isinstance(a, Create)]


def removed(plan: Plan) -> list[str]:
    return [name_of(a.obj) for a in plan.actions if isinstance(a, Delete)]


def told(plan: Plan) -> list[str]:
    return [a.reason for a in plan.actions if isinstance(a, Tell)]


def test_a_job_is_made_when_it_is_due_and_once() -> None:
    early = cronjobs.reconcile(cron(), [], NOON - 1)
    assert (made(early), early.look_again_at) == ([], NOON)
    plan = cronjobs.reconcile(cron(), [], NOON + 1)
    assert made(plan) == [f"report-{int(NOON) // 60}"]
    (written,) = [a.body["status"] for a in plan.actions if isinstance(a, Patch)]
    assert written["lastScheduleTime"] == timestamp(NOON)
    assert plan.look_again_at == NOON + 3600
    assert made(cronjobs.reconcile(cron(last=NOON), [], NOON + 60)) == []


def test_after_a_pause_only_the_last_is_made_up_for() -> None:
    plan = cronjobs.reconcile(cron(created=NOON - 5 * 3600), [], NOON + 60)
    assert made(plan) == [f"report-{int(NOON) // 60}"]
    late = cron(created=NOON - 5 * 3600, startingDeadlineSeconds=30)
    assert made(cronjobs.reconcile(late, [], NOON + 60)) == []
    assert made(cronjobs.reconcile(late, [], NOON + 20)) == [f"report-{int(NOON) // 60}"]


def test_what_still_runs_is_heeded_as_the_policy_says() -> None:
    running = [job("report-1")]
    assert len(made(cronjobs.reconcile(cron(), running, NOON))) == 1
    forbids = cronjobs.reconcile(cron(concurrencyPolicy="Forbid"), running, NOON)
    assert (made(forbids), told(forbids)) == ([], ["JobAlreadyActive"])
    replaces = cronjobs.reconcile(cron(concurrencyPolicy="Replace"), running, NOON)
    assert removed(replaces) == ["report-1"]
    assert len(made(replaces)) == 1


def test_what_was_started_by_hand_keeps_nobody_waiting() -> None:
    by_hand = [job("mine", by_hand=True)]
    plan = cronjobs.reconcile(cron(concurrencyPolicy="Forbid"), by_hand, NOON)
    assert len(made(plan)) == 1
    replaced = cronjobs.reconcile(cron(concurrencyPolicy="Replace"), by_hand, NOON)
    assert removed(replaced) == []


def test_a_suspended_one_makes_nothing() -> None:
    plan = cronjobs.reconcile(cron(suspend=True), [], NOON)
    assert (made(plan), plan.look_again_at) == ([], None)


def test_only_so_many_are_kept() -> None:
    jobs = [job(f"good-{i}", "Complete", NOON + i) for i in range(5)]
    jobs += [job(f"bad-{i}", "Failed", NOON + i) for i in range(3)]
    plan = cronjobs.reconcile(cron(last=NOON), jobs, NOON + 9)
    assert removed(plan) == ["good-0", "good-1", "bad-0", "bad-1"]


def test_its_time_zone_counts() -> None:
    midnight = NOON - NOON % 86400
    plan = cronjobs.reconcile(
        cron(created=midnight - 60, schedule="30 5 * * *", timeZone="Asia/Kolkata"),
        [],
        midnight + 1,
    )
    assert len(made(plan)) == 1


async def test_jobs_come_and_are_seen_to_complete(cluster: Cluster) -> None:
    await start(cluster)
    container = {"name": "c", "image": "busybox", "command": ["true"]}
    template = {
        "metadata": {"annotations": {"makeway.dev/pretend-exit-after": "100ms"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    body = cron(schedule="@every 1s", jobTemplate={"spec": {"template": template}})
    body["metadata"] = {"name": "often", "namespace": "default"}
    await cluster.client.create(CRON_JOBS, body)
    found = await cluster.until(
        CRON_JOBS, "often", lambda it: bool((it.get("status") or {}).get("lastSuccessfulTime"))
    )
    assert found["status"]["lastScheduleTime"]
    first = (await cluster.client.list(JOBS))[0]
    assert first["metadata"]["ownerReferences"][0]["kind"] == "CronJob"
