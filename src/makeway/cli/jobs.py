"""`makeway jobs launch|queue|cancel|logs`: SkyPilot's managed jobs, as Indexed Jobs that come back when they were evicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from makeway.cli.cluster import with_client
from makeway.cli.nearby import did_you_mean
from makeway.cli.output import out
from makeway.cli.podlogs import find_pod, follow, show
from makeway.cli.tasks import (
    chosen_name,
    moment,
    place_for,
    read_task,
    show_request,
    user_name,
    warn,
    workdir_of,
)
from makeway.client import ApiError, Client, Resource
from makeway.client.resource import JOBS, PODS
from makeway.control.clock import SystemClock, parse_timestamp
from makeway.errors import UserError
from makeway.kinds.preemption import apart
from makeway.kinds.skypilot import Launch, managed_job
from makeway.kinds.skypilot.objects import CLUSTER, MANAGED_ID, REQUESTED

Object = dict[str, Any]
PREEMPTIONS = Resource("makeway.dev", "v1alpha1", "preemptions")
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
_COLUMNS = (
    "ID",
    "TASK",
    "NAME",
    "REQUESTED",
    "SUBMITTED",
    "TOT. DURATION",
    "JOB DURATION",
    "#RECOVERIES",
    "STATUS",
)
_TERMINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
_TRIES = 5


class ManagedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the queue."""

    id: int
    name: str
    job: str
    namespace: str
    requested: str
    submitted_at: float
    ended_at: float | None
    running_s: float
    recoveries: int
    status: str
    why: str = ""


# -- launch --


def launch(
    home: Path | None, file: Path, name: str | None, namespace: str, env: list[str], *, detach: bool
) -> None:
    task = read_task(file, env, name)
    chosen = chosen_name(name, task, file, "-n")
    workdir = workdir_of(task, file)

    async def work(client: Client) -> None:
        found = await place_for(client, task)
        show_request(task)
        warn(found)
        base = Launch(
            name=chosen,
            namespace=namespace,
            user=user_name(),
            at=moment(),
            place=found,
            workdir=workdir,
        )
        created, asked = await _submit(client, task, base)
        _tell(created["metadata"]["name"], asked, task.requested)
        if not detach:
            pod = await _first_pod(client, created)
            await follow(client, namespace, pod, "", wait_for_start=True)

    with_client(home, work)


async def _submit(client: Client, task: Any, base: Launch) -> tuple[Object, Launch]:
    """Ids count up; two who submit at once may both take the next one, and then the name decides who takes another."""
    for _ in range(_TRIES):
        asked = msgspec.structs.replace(base, job_id=await _next_id(client))
        try:
            return await client.create(JOBS, managed_job(task, asked), base.namespace), asked
        except ApiError as error:
            if not error.already_exists:
                raise
    raise UserError(f'"{base.name}" could not be submitted: others submit at the same time.')


async def _next_id(client: Client) -> int:
    ids = [_id(job) for job in await client.list(JOBS, label_selector=MANAGED_ID)]
    return max(ids, default=0) + 1


def _id(job: Object) -> int:
    text = (job["metadata"].get("labels") or {}).get(MANAGED_ID, "")
    return int(text) if text.isdigit() else 0


async def _first_pod(client: Client, job: Object) -> str:
    import asyncio

    with out.progress(f"waiting for {job['metadata']['name']} to be admitted…"):
        while True:
            pods = await client.list(
                PODS,
                job["metadata"]["namespace"],
                label_selector=f"job-name={job['metadata']['name']}",
            )
            if pods:
                return str(min(pod["metadata"]["name"] for pod in pods))
            await asyncio.sleep(0.2)


def _tell(job: str, asked: Launch, requested: str) -> None:
    if out.as_json:
        out.result(
            {
                "job_id": asked.job_id,
                "name": asked.name,
                "job": job,
                "namespace": asked.namespace,
                "requested": requested,
            }
        )
        return
    out.say(f"\nManaged Job ID: {asked.job_id}\n")
    out.say("Useful Commands")
    out.say("├── To see all jobs:    makeway jobs queue")
    out.say(f"├── To see its output:  makeway jobs logs {asked.job_id}")
    out.say(f"└── To cancel it:       makeway jobs cancel {asked.job_id}")


# -- queue --


def queue(home: Path | None) -> None:
    async def work(client: Client) -> list[ManagedJob]:
        return await managed_jobs(client)

    jobs = with_client(home, work)
    if out.as_json:
        out.result([msgspec.to_builtins(job) for job in jobs])
        return
    if not jobs:
        out.say("No managed jobs. Start one: makeway jobs launch FILE")
        return
    counts: dict[str, int] = {}
    for job in jobs:
        if job.status not in _TERMINAL:
            counts[job.status] = counts.get(job.status, 0) + 1
    under_way = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    out.say(f"Managed jobs{f'   in progress: {under_way}' if under_way else ''}")
    now = SystemClock().now()
    out.table(_COLUMNS, [_row(job, now) for job in jobs])
    for job in jobs:
        if job.why:
            out.say(f"{job.name} ({job.id}) waits: {job.why}")


def _row(job: ManagedJob, now: float) -> tuple[str, ...]:
    total = (job.ended_at or now) - job.submitted_at
    return (
        str(job.id),
        "-",
        job.name,
        job.requested,
        f"{_length(now - job.submitted_at)} ago",
        _length(total),
        _length(job.running_s) if job.running_s else "-",
        str(job.recoveries),
        job.status,
    )


def _length(seconds: float) -> str:
    whole = max(int(seconds), 0)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {whole % 60}s" if minutes else f"{whole}s"


async def managed_jobs(client: Client) -> list[ManagedJob]:
    jobs = await client.list(JOBS, label_selector=MANAGED_ID)
    pods = await client.list(PODS, label_selector=MANAGED_ID)
    workloads = {
        owner["uid"]: workload
        for workload in await client.list(WORKLOADS)
        for owner in workload["metadata"].get("ownerReferences") or []
    }
    fallen = [
        str(victim["workload"])
        for obj in await client.list(PREEMPTIONS)
        for record in apart(obj)
        for victim in record["spec"].get("victims") or []
    ]
    now = SystemClock().now()
    rows = [
        _managed(
            job,
            [p for p in pods if _owned_by(p, job)],
            workloads.get(job["metadata"]["uid"]),
            fallen.count(f"{job['metadata']['namespace']}/{job['metadata']['name']}"),
            now,
        )
        for job in jobs
    ]
    return sorted(rows, key=lambda row: -row.id)


def _owned_by(pod: Object, job: Object) -> bool:
    owners = pod["metadata"].get("ownerReferences") or []
    return any(owner["uid"] == job["metadata"]["uid"] for owner in owners)


def _managed(
    job: Object, pods: list[Object], workload: Object | None, fallen: int, now: float
) -> ManagedJob:
    """`fallen`: how often a job without a queue was evicted from its nodes; the queue counts for the others."""
    metadata, status = job["metadata"], job.get("status") or {}
    recoveries = _evictions(workload) or fallen
    ended = _ended_at(job)
    # Work of earlier starts counts too; the queue keeps its sum.
    past = float(
        ((workload or {}).get("status") or {}).get("accumulatedPastExecutionTimeSeconds") or 0
    )
    started = status.get("startTime")
    running = (ended or now) - parse_timestamp(started) if started else 0.0
    state, why = _state(job, pods, workload, recoveries)
    return ManagedJob(
        id=_id(job),
        name=(metadata.get("labels") or {}).get(CLUSTER, metadata["name"]),
        job=metadata["name"],
        namespace=metadata["namespace"],
        requested=(metadata.get("annotations") or {}).get(REQUESTED, ""),
        submitted_at=parse_timestamp(metadata["creationTimestamp"]),
        ended_at=ended,
        running_s=past + running,
        recoveries=recoveries,
        status=state,
        why=why,
    )


def _evictions(workload: Object | None) -> int:
    """How often it was stopped and came back, or will."""
    stats = ((workload or {}).get("status") or {}).get("schedulingStats") or {}
    return sum(int(one.get("count") or 0) for one in stats.get("evictions") or [])


def _ended_at(job: Object) -> float | None:
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return parse_timestamp(condition["lastTransitionTime"])
    return None


def _state(
    job: Object, pods: list[Object], workload: Object | None, recoveries: int
) -> tuple[str, str]:
    """SkyPilot's word for where the job is, and why where it waits."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition["status"] == "True" and condition["type"] == "Complete":
            return "SUCCEEDED", ""
        if condition["status"] == "True" and condition["type"] == "Failed":
            return "FAILED", ""
    if job["metadata"].get("deletionTimestamp"):
        return "CANCELLING", ""
    living = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    if any((pod.get("status") or {}).get("phase") == "Running" for pod in living):
        return "RUNNING", ""
    why = _waiting(workload) or _no_node(living)
    if recoveries:
        return "RECOVERING", why
    return ("STARTING", why) if living and not why else ("PENDING", why)


def _waiting(workload: Object | None) -> str:
    for condition in ((workload or {}).get("status") or {}).get("conditions") or []:
        if condition["type"] == "QuotaReserved" and condition["status"] == "False":
            return str(condition.get("message") or "")
    return ""


def _no_node(pods: list[Object]) -> str:
    for pod in pods:
        for condition in (pod.get("status") or {}).get("conditions") or []:
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return str(condition.get("message") or "")
    return ""


# -- cancel, logs --


def cancel(home: Path | None, ids: list[str], *, everything: bool) -> None:
    if not ids and not everything:
        raise UserError(
            "which job?", hint="Name ids or names, or --all. List them: makeway jobs queue"
        )

    async def work(client: Client) -> list[ManagedJob]:
        jobs = await managed_jobs(client)
        chosen = [job for job in jobs if everything] or [_named(jobs, said) for said in ids]
        for job in chosen:
            await client.delete(JOBS, job.job, job.namespace, propagation="Background")
        return chosen

    cancelled = with_client(home, work)
    out.result(
        [{"id": job.id, "name": job.name} for job in cancelled],
        "\n".join(f"Managed job {job.id} ({job.name}) is cancelled." for job in cancelled)
        or "There is no managed job.",
    )


def _named(jobs: list[ManagedJob], said: str) -> ManagedJob:
    for job in jobs:
        if said in (str(job.id), job.name, job.job):
            return job
    known = [name for job in jobs for name in (str(job.id), job.name)]
    raise UserError(
        f'no managed job "{said}".',
        hint=did_you_mean(said, known) or "List them: makeway jobs queue",
    )


def logs(home: Path | None, said: str | None, *, following: bool) -> None:
    async def work(client: Client) -> None:
        jobs = await managed_jobs(client)
        if not jobs:
            raise UserError("there is no managed job.", hint="Start one: makeway jobs launch FILE")
        job = _named(jobs, said) if said else jobs[0]
        try:
            pod = await find_pod(client, job.job, job.namespace)
        except UserError as error:
            raise UserError(
                f"managed job {job.id} ({job.name}) has no pod now; it is {job.status}. {job.why}".rstrip()
            ) from error
        if following:
            await follow(client, job.namespace, pod, "", wait_for_start=True)
        else:
            await show(client, job.namespace, pod, "", {})

    with_client(home, work)
