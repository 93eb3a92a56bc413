"""`makeway status`: is it up, since when, what the nodes and queues have, who runs, and who waits and why."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from makeway import __version__
from makeway.cli.cluster import with_client
from makeway.cli.home import Home
from makeway.cli.output import out
from makeway.cli.waiting import Scene, condition_is, display_name, reserved_in, scene, why_in
from makeway.client import Client, Resource
from makeway.client.resource import CORE_EVENTS, JOBS, NODES, PODS
from makeway.control.clock import SystemClock, parse_timestamp
from makeway.kinds.metadata import QUEUE_NAME
from makeway.kinds.preemption import apart
from makeway.kinds.serving.columns import human_duration
from makeway.model.resources import amount_of, format_amount

Object = dict[str, Any]
PREEMPTIONS = Resource("makeway.dev", "v1alpha1", "preemptions")
_SHOWN = 20
_LATELY = 5
_RESOURCES = ("cpu", "memory")
_OPEN_PHASES = ("Pending", "Running")


class NodeLine(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    ready: bool
    used: dict[str, str]
    offered: dict[str, str]
    pods: int


class QueueLine(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cohort: str
    pending: int
    admitted: int
    used: dict[str, str]
    quota: dict[str, str]


class WorkLine(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    namespace: str
    kind: str
    priority: int = 0
    queue: str = ""
    since: float = 0.0
    pods: str = ""  # how many of its pods run
    why: str = ""


class EvictionLine(msgspec.Struct, frozen=True, kw_only=True):
    victim: str
    preemptor: str
    rule: str
    loss_gpu_seconds: float
    at: float
    afterwards: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    up: bool
    home: str
    version: str = __version__
    pid: int = 0
    since: float = 0.0
    kubeconfig: str = ""
    nodes: list[NodeLine] = []
    queues: list[QueueLine] = []
    running: list[WorkLine] = []
    waiting: list[WorkLine] = []
    evicted: list[EvictionLine] = []  # the latest first


def status(home_option: Path | None) -> bool:
    """Whether it is up: the exit code tells scripts."""
    home = Home.chosen(home_option)
    pid = home.running_pid()
    if pid is None:
        out.result(
            Status(up=False, home=str(home.path)),
            f"makeway does not run in {home.path}. Start it: makeway up --detach",
        )
        return False

    async def work(client: Client) -> Status:
        return await _status(client, home, pid)

    found = with_client(home.path, work)
    if out.as_json:
        out.result(found)
    else:
        _print(found)
    return True


async def _status(client: Client, home: Home, pid: int) -> Status:
    pods = await client.list(PODS)
    seen = await scene(client)
    open_workloads = [w for w in seen.workloads if not condition_is(w, "Finished")]
    running = [
        _with_pods(_work_line(w), w, pods) for w in open_workloads if condition_is(w, "Admitted")
    ]
    waiting = [
        msgspec.structs.replace(_work_line(w), why=why_in(seen, w))
        for w in open_workloads
        if not condition_is(w, "Admitted")
    ]
    unqueued = [p for p in pods if _is_unqueued(p) and p["status"].get("phase") in _OPEN_PHASES]
    if stranded := await _not_in_line(client, seen):
        events = await client.list(CORE_EVENTS)
        waiting += [_job_line(job, events) for job in stranded]
    running += [_pod_line(pod) for pod in unqueued if pod["spec"].get("nodeName")]
    waiting += [_pod_line(pod) for pod in unqueued if not pod["spec"].get("nodeName")]
    return Status(
        up=True,
        home=str(home.path),
        pid=pid,
        since=_started(pid),
        kubeconfig=str(home.kubeconfig),
        nodes=[_node_line(node, pods) for node in await client.list(NODES)],
        queues=[_queue_line(queue) for queue in seen.cluster_queues.values()],
        running=sorted(running, key=_by_priority),
        waiting=sorted(waiting, key=_by_priority),
        evicted=[
            line
            for obj in await client.list(PREEMPTIONS)
            for record in apart(obj)
            for line in _evictions(record)
        ],
    )


def _evictions(record: Object) -> list[EvictionLine]:
    said = record["spec"]
    return [
        EvictionLine(
            victim=str(victim["workload"]),
            preemptor=str(said["preemptor"]),
            rule=str(victim.get("rule") or ""),
            loss_gpu_seconds=float(victim.get("lossGPUSeconds") or 0.0),
            at=parse_timestamp(record["metadata"]["creationTimestamp"]),
            afterwards=str(victim.get("afterwards") or ""),
        )
        for victim in said.get("victims") or []
    ]


def _with_pods(line: WorkLine, workload: Object, pods: list[Object]) -> WorkLine:
    """Admitted is not yet running: how many of its pods are."""
    metadata = workload["metadata"]
    mine = [
        pod
        for pod in pods
        if pod["metadata"]["namespace"] == metadata["namespace"]
        and (pod["metadata"].get("annotations") or {}).get("kueue.x-k8s.io/workload")
        == metadata["name"]
    ]
    running = sum(pod["status"].get("phase") == "Running" for pod in mine)
    wanted = sum(
        int(pod_set.get("count") or 1) for pod_set in workload["spec"].get("podSets") or []
    )
    return msgspec.structs.replace(line, pods=f"{running}/{wanted}")


def _by_priority(line: WorkLine) -> tuple[int, str, str]:
    return -line.priority, line.namespace, line.name


def _started(pid: int) -> float:
    import psutil

    with contextlib.suppress(psutil.Error):
        return float(psutil.Process(pid).create_time())
    return 0.0


def _is_unqueued(pod: Object) -> bool:
    """A pod that no queue speaks for."""
    metadata = pod["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    queued = QUEUE_NAME in labels or "kueue.x-k8s.io/workload" in annotations
    return not queued and not any(
        gate["name"].startswith("kueue.x-k8s.io/")
        for gate in pod["spec"].get("schedulingGates") or []
    )


def _work_line(workload: Object) -> WorkLine:
    return WorkLine(
        name=display_name(workload),
        namespace=workload["metadata"]["namespace"],
        kind="Workload",
        priority=int(workload["spec"].get("priority") or 0),
        queue=reserved_in(workload) or str(workload["spec"].get("queueName") or ""),
        since=parse_timestamp(workload["metadata"]["creationTimestamp"]),
    )


async def _not_in_line(client: Client, seen: Scene) -> list[Object]:
    """Jobs that name a queue and have no Workload: something keeps them from getting in line at all."""
    owners = {
        owner["uid"] for w in seen.workloads for owner in w["metadata"].get("ownerReferences") or []
    }
    return [
        job
        for job in await client.list(JOBS, label_selector=QUEUE_NAME)
        if job["spec"].get("suspend") and job["metadata"]["uid"] not in owners
    ]


def _job_line(job: Object, events: list[Object]) -> WorkLine:
    warnings = [
        event
        for event in events
        if event.get("type") == "Warning"
        and event["involvedObject"].get("uid") == job["metadata"]["uid"]
    ]
    last = max(warnings, key=_seen_at, default={})
    return WorkLine(
        name=job["metadata"]["name"],
        namespace=job["metadata"]["namespace"],
        kind="Job",
        queue=job["metadata"]["labels"][QUEUE_NAME],
        since=parse_timestamp(job["metadata"]["creationTimestamp"]),
        why=f"{last.get('message') or 'no Workload was made for it yet'}.",
    )


def _seen_at(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _pod_line(pod: Object) -> WorkLine:
    reason = ""
    for condition in pod["status"].get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            reason = str(condition.get("message") or condition.get("reason") or "")
    return WorkLine(
        name=pod["metadata"]["name"],
        namespace=pod["metadata"]["namespace"],
        kind="Pod",
        priority=int(pod["spec"].get("priority") or 0),
        pods="1/1" if pod["status"].get("phase") == "Running" else "0/1",
        since=parse_timestamp(pod["metadata"]["creationTimestamp"]),
        why=reason,
    )


def _node_line(node: Object, pods: list[Object]) -> NodeLine:
    name = node["metadata"]["name"]
    here = [
        pod
        for pod in pods
        if pod["spec"].get("nodeName") == name and pod["status"].get("phase") in _OPEN_PHASES
    ]
    offered = {
        resource: _short(resource, amount_of(resource, str(amount)))
        for resource, amount in ((node.get("status") or {}).get("allocatable") or {}).items()
        if resource in _RESOURCES or "/" in resource
    }
    used = {resource: _short(resource, _requested(here, resource)) for resource in offered}
    return NodeLine(name=name, ready=_is_ready(node), used=used, offered=offered, pods=len(here))


def _requested(pods: list[Object], resource: str) -> int:
    return sum(
        amount_of(
            resource, str((container.get("resources") or {}).get("requests", {}).get(resource, "0"))
        )
        for pod in pods
        for container in pod["spec"]["containers"]
    )


def _short(resource: str, amount: int) -> str:
    """Memory as people speak of it; everything else as it is written."""
    if resource == "memory" and amount % 2**30:
        return f"{amount / 2**30:.1f}Gi"
    return format_amount(resource, amount)


def _is_ready(node: Object) -> bool:
    return condition_is(node, "Ready") and not (node.get("spec") or {}).get("unschedulable")


def _queue_line(queue: Object) -> QueueLine:
    spec, status_ = queue["spec"], queue.get("status") or {}
    quota: dict[str, int] = {}
    for group in spec.get("resourceGroups") or []:
        for flavor in group["flavors"]:
            for each in flavor["resources"]:
                amount = amount_of(each["name"], str(each["nominalQuota"]))
                quota[each["name"]] = quota.get(each["name"], 0) + amount
    used: dict[str, int] = {}
    for flavor in status_.get("flavorsUsage") or []:
        for each in flavor["resources"]:
            used[each["name"]] = used.get(each["name"], 0) + amount_of(
                each["name"], str(each.get("total") or "0")
            )
    return QueueLine(
        name=queue["metadata"]["name"],
        cohort=str(spec.get("cohortName") or spec.get("cohort") or ""),
        pending=int(status_.get("pendingWorkloads") or 0),
        admitted=int(status_.get("admittedWorkloads") or 0),
        used={name: _short(name, used.get(name, 0)) for name in quota},
        quota={name: _short(name, amount) for name, amount in quota.items()},
    )


# -- for people --


def _print(found: Status) -> None:
    now = SystemClock().now()
    age = f", up for {human_duration(now - found.since)}" if found.since else ""
    print(f"makeway {found.version} runs in {found.home} (process {found.pid}{age}).")
    print(f"kubectl: export KUBECONFIG={found.kubeconfig}")
    _section(
        "Nodes",
        [_node_row(node) for node in found.nodes],
        ("NAME", "READY", "IN USE / OFFERED", "PODS"),
    )
    _section(
        "Queues",
        [_queue_row(queue) for queue in found.queues],
        ("NAME", "COHORT", "IN USE / QUOTA", "ADMITTED", "PENDING"),
    )
    head = ("NAMESPACE", "NAME", "PRIORITY", "QUEUE", "PODS RUNNING", "AGE")
    _section("Running or starting", [_work_row(line, now) for line in found.running], head)
    _section("Waiting", [_work_row(line, now) for line in found.waiting], head)
    lately = sorted(found.evicted, key=lambda line: -line.at)[:_LATELY]
    _section(
        "Evicted lately",
        [_eviction_row(line, now) for line in lately],
        ("VICTIM", "FOR", "RULE", "LOST", "AFTERWARDS", "AGE"),
    )
    for line in found.waiting[:_SHOWN]:
        print(f"\n{line.namespace}/{line.name} waits: {line.why or 'no reason is known yet'}")


def _eviction_row(line: EvictionLine, now: float) -> list[str]:
    lost = f"{line.loss_gpu_seconds:.3g} GPU-s"
    age = human_duration(now - line.at)
    return [line.victim, line.preemptor, line.rule, lost, line.afterwards, age]


def _section(title: str, rows: list[list[str]], columns: tuple[str, ...]) -> None:
    print(f"\n{title}: {len(rows) or 'none'}")
    if rows:
        out.table(columns, rows[:_SHOWN])
    if len(rows) > _SHOWN:
        print(f"… and {len(rows) - _SHOWN} more (--json shows all)")


def _pairs(used: dict[str, str], total: dict[str, str]) -> str:
    return ", ".join(f"{name} {used.get(name, '0')}/{total[name]}" for name in sorted(total))


def _node_row(node: NodeLine) -> list[str]:
    return [
        node.name,
        "yes" if node.ready else "no",
        _pairs(node.used, node.offered),
        str(node.pods),
    ]


def _queue_row(queue: QueueLine) -> list[str]:
    used = _pairs(queue.used, queue.quota)
    return [queue.name, queue.cohort or "-", used, str(queue.admitted), str(queue.pending)]


def _work_row(line: WorkLine, now: float) -> list[str]:
    return [
        line.namespace,
        line.name,
        str(line.priority),
        line.queue or "-",
        line.pods or "-",
        human_duration(now - line.since),
    ]
