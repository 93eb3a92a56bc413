"""The adapter on a board: the real reconciles, projection, engine and loop over an API held in memory.

Writes land in the local copy at once, as answers of an API server would; nothing is awaited that could take time. A clock that
the test moves stands in for the real one.
"""

from __future__ import annotations

import copy as copies
import itertools
from collections.abc import Iterable
from typing import Any, cast

from makeway.client import Client
from makeway.control.clock import timestamp
from makeway.control.config import Configuration, parse, policy_of
from makeway.control.loop import Loop
from makeway.kinds.preemption import is_part
from makeway.kube.actions import Action, BindPod, Chain, Create, Delete, Patch, Tell
from makeway.kube.adapter import KubeCluster
from makeway.kube.resources import API_VERSIONS, RESOURCES
from makeway.kube.writer import Writer

Object = dict[str, Any]
START = 1_800_000_000.0


class HandClock:
    def __init__(self) -> None:
        self.time = START

    def now(self) -> float:
        return self.time


class MemoryApi:
    """What the writer asks for is done on the copy, with versions and uids as a server gives them."""

    def __init__(self, cluster: KubeCluster, clock: HandClock) -> None:
        self.cluster = cluster
        self.clock = clock
        self.told: list[Tell] = []
        self.log: list[str] = []
        self.refuse: set[str] = set()  # "patch Workload", "bindpod Pod one", …
        self.calls = 0
        self.quiet = True
        self._numbers = itertools.count(1)

    def put(self, kind: str, obj: Object) -> Object:
        obj = copies.deepcopy(obj)
        meta = obj.setdefault("metadata", {})
        number = next(self._numbers)
        meta.setdefault("uid", f"uid-{meta['name']}-{number}")
        meta.setdefault("creationTimestamp", timestamp(self.clock.now()))
        meta["resourceVersion"] = str(number)
        obj.setdefault("apiVersion", API_VERSIONS[kind])
        obj.setdefault("kind", kind.split(".")[0])
        if RESOURCES[kind].namespaced:
            meta.setdefault("namespace", "default")
        self.cluster.copy.take(kind, obj)
        return obj

    async def run_all(self, chains: Iterable[Chain]) -> list[tuple[Chain, bool]]:
        done: list[tuple[Chain, bool]] = []
        for chain in chains:
            well = await self.run(chain.actions)
            done.append((chain, well))
            if well:
                done += await self.run_all(chain.then)
        return done

    async def run(self, actions: Iterable[Action]) -> bool:
        return all(self._do(action) for action in actions)  # stops at the first that fails

    def tell(self, tell: Tell) -> None:
        if not (tell.once and tell in self.told):
            self.told.append(tell)

    def _do(self, action: Action) -> bool:
        if isinstance(action, Tell):
            self.tell(action)
            return True
        kind = "Pod" if isinstance(action, BindPod) else action.kind
        verb = type(action).__name__.lower()
        if self.refuse & {f"{verb} {kind}", f"{verb} {kind} {_name(action)}"}:
            return False
        self.calls += 1
        match action:
            case Create():
                self.log.append(f"create {kind} {action.obj['metadata']['name']}")
                self.put(kind, action.obj)
            case Patch():
                self.log.append(f"patch {kind} {action.name}")
                if not self._patch(action):
                    return False
            case Delete():
                self.log.append(f"delete {kind} {action.name}")
                self._delete(action)
            case BindPod():
                self.log.append(f"bind {action.name} {action.node}")
                found = self._get("Pod", action.namespace, action.name)
                assert found is not None
                found["spec"]["nodeName"] = action.node
                found.setdefault("status", {}).pop("nominatedNodeName", None)
                self.put("Pod", found)
        for tell in action.then:
            self.tell(tell)
        return True

    def _get(self, kind: str, namespace: str, name: str) -> Object | None:
        found = self.cluster.copy.get(kind, f"{namespace}/{name}" if namespace else name)
        return copies.deepcopy(found)

    def _patch(self, action: Patch) -> bool:
        found = self._get(action.kind, action.namespace, action.name)
        if found is None:
            return False
        if action.version and action.version != found["metadata"]["resourceVersion"]:
            return False
        body = copies.deepcopy(action.body)
        if action.style == "strategic":
            _merge_conditions(found, body)
        _merge(found, body)
        meta = found["metadata"]
        runs = action.kind == "Pod" and found["spec"].get("nodeName")
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not runs:
            self.cluster.copy.drop(action.kind, found)
            return True
        self.put(action.kind, found)
        return True

    def _delete(self, action: Delete) -> None:
        found = self._get(action.kind, action.namespace, action.name)
        if found is None or found["metadata"]["uid"] != action.uid:
            return
        running = action.kind == "Pod" and found["spec"].get("nodeName")
        if not running and not found["metadata"].get("finalizers"):
            self.cluster.copy.drop(action.kind, found)
            return
        grace = action.grace_s
        if grace is None:
            grace = (
                int(found.get("spec", {}).get("terminationGracePeriodSeconds", 30))
                if running
                else 0
            )
        found["metadata"]["deletionTimestamp"] = timestamp(self.clock.now() + grace)
        found["metadata"]["deletionGracePeriodSeconds"] = grace
        self.put(action.kind, found)


def _name(action: Create | Patch | Delete | BindPod) -> str:
    return str(action.obj["metadata"]["name"]) if isinstance(action, Create) else action.name


def _merge(target: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            inner = target.setdefault(key, {})
            if not isinstance(inner, dict):
                inner = target[key] = {}
            _merge(inner, value)
        else:
            target[key] = value


def _merge_conditions(target: Object, patch: Object) -> None:
    fresh = (patch.get("status") or {}).get("conditions")
    if fresh is None:
        return
    known = {c["type"]: c for c in (target.get("status") or {}).get("conditions") or []}
    patch["status"]["conditions"] = list((known | {c["type"]: c for c in fresh}).values())


class Board:
    """`board.put(...)`, `await board.settle()`, then look."""

    def __init__(self, config: str = "", *, queues_are_ours: bool = True) -> None:
        self.clock = HandClock()
        self._config_text = config
        self.config: Configuration = parse(config)
        self.cluster = KubeCluster(
            cast("Client", None), self.config, self.clock, queues_are_ours=queues_are_ours
        )
        self.api = MemoryApi(self.cluster, self.clock)
        self.cluster.writer = cast("Writer", self.api)
        self.cluster.served.update(RESOURCES)
        self.cluster.world.watched.update(RESOURCES)
        self.cluster.world.subresources.update(f"{kind}/status" for kind in RESOURCES)
        self.loop = Loop(
            self.cluster,
            self.clock,
            policy_of(self.config),
            on_cycle=lambda state, _plan, now: self.cluster.observe(state, now),
        )

    def put(self, kind: str, obj: Object) -> Object:
        return self.api.put(kind, obj)

    def restarted(self) -> Board:
        """Another replica that knows what the API holds, and nothing else."""
        fresh = Board(self._config_text)
        fresh.clock.time = self.clock.time
        for kind in RESOURCES:
            for obj in self.cluster.copy.all(kind):
                if not (kind == "Preemption" and is_part(obj)):  # has no object of its own
                    fresh.put(kind, obj)
        return fresh

    def patch(self, kind: str, key: str, change: Object) -> None:
        """What a user or another controller writes."""
        found = copies.deepcopy(self.cluster.copy.get(kind, key))
        assert found is not None, f"no {kind} {key}"
        _merge(found, change)
        self.put(kind, found)

    def drop(self, kind: str, key: str) -> None:
        found = self.cluster.copy.get(kind, key)
        assert found is not None, f"no {kind} {key}"
        self.cluster.copy.drop(kind, found)

    def get(self, kind: str, key: str) -> Object:
        found = self.cluster.copy.get(kind, key)
        assert found is not None, f"no {kind} {key}; there are {self.cluster.copy.keys(kind)}"
        return found

    def workload_of(self, owner: str) -> Object:
        """The Workload of a job or pod, by the owner's name."""
        for found in self.cluster.copy.all("Workload"):
            if any(o["name"] == owner for o in found["metadata"].get("ownerReferences", [])):
                return found
        raise AssertionError(f"{owner} has no Workload")

    def condition(self, obj: Object, kind: str) -> tuple[str, str, str]:
        for c in obj.get("status", {}).get("conditions", []):
            if c["type"] == kind:
                return c["status"], c["reason"], c["message"]
        return "", "", ""

    def told(self, reason: str) -> list[str]:
        return [tell.note for tell in self.api.told if tell.reason == reason]

    async def settle(self) -> None:
        """Turn after turn until there is nothing to do, then let short timers ring."""
        for _ in range(200):
            if not await self.loop.once():
                if not self.cluster.ring_soon():
                    return
                self.clock.time += 0.25
        raise AssertionError("it never comes to rest: " + ", ".join(self.api.log[-12:]))

    async def run_pods(self, name: str) -> None:
        """What the job controller and a kubelet do for a Job that was started."""
        parent = self.get("Job", f"default/{name}")
        template = copies.deepcopy(parent["spec"]["template"])
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": parent["metadata"]["uid"],
            "controller": True,
        }
        count = parent["spec"]["parallelism"]
        for number in range(count):
            meta = {**template["metadata"], "name": f"{name}-{number}", "ownerReferences": [owner]}
            self.put(
                "Pod", {"metadata": meta, "spec": template["spec"], "status": {"phase": "Pending"}}
            )
        self.patch("Job", f"default/{name}", {"status": {"active": count}})
        await self.settle()
        for number in range(count):
            self.running(f"default/{name}-{number}")
        self.patch("Job", f"default/{name}", {"status": {"ready": count}})
        await self.settle()

    def running(self, pod_key: str) -> None:
        now = timestamp(self.clock.now())
        conditions = [{"type": "Ready", "status": "True"}]
        state = {"name": "app", "state": {"running": {"startedAt": now}}}
        assert self.get("Pod", pod_key)["spec"].get("nodeName"), f"{pod_key} has no node"
        self.patch(
            "Pod",
            pod_key,
            {
                "status": {
                    "phase": "Running",
                    "conditions": conditions,
                    "containerStatuses": [state],
                    "startTime": now,
                }
            },
        )

    async def stop_pods(self, name: str) -> None:
        """The pods of a suspended Job are deleted and gone."""
        parent = self.get("Job", f"default/{name}")
        for child in self.cluster.copy.by("children", parent["metadata"]["uid"]):
            self.cluster.copy.drop("Pod", child)
        self.patch("Job", f"default/{name}", {"status": {"active": None, "ready": None}})
        await self.settle()

    async def wait(self, seconds: float) -> None:
        self.clock.time += seconds
        await self.settle()


# What tests are made of


def node(name: str, **capacity: str) -> Object:
    sizes = {"cpu": "8", "memory": "64Gi", "pods": "110"} | {
        k.replace("gpu", "nvidia.com/gpu"): v for k, v in capacity.items()
    }
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": sizes, "capacity": sizes},
    }


def flavor(name: str = "default-flavor", **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": spec}


def cluster_queue(name: str = "cq", cpu: str = "10", **spec: Any) -> Object:
    quota = {"name": "default-flavor", "resources": [{"name": "cpu", "nominalQuota": cpu}]}
    groups = [{"coveredResources": ["cpu"], "flavors": [quota]}]
    return {
        "metadata": {"name": name},
        "spec": {"namespaceSelector": {}, "resourceGroups": groups, **spec},
    }


def local_queue(name: str = "queue", queue: str = "cq", namespace: str = "default") -> Object:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterQueue": queue}}


def priority_class(name: str, value: int) -> Object:
    return {"metadata": {"name": name}, "value": value}


def containers(cpu: str = "1", **more: str) -> list[Object]:
    return [{"name": "app", "resources": {"requests": {"cpu": cpu, **more}}}]


def job(
    name: str, cpu: str = "1", *, queue: str = "queue", priority: str = "", **spec: Any
) -> Object:
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    if priority:
        labels["kueue.x-k8s.io/priority-class"] = priority
    template = {
        "metadata": {"labels": {"job-name": name, "batch.kubernetes.io/job-name": name}},
        "spec": {"containers": containers(cpu), "restartPolicy": "Never"},
    }
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "suspend": bool(queue),
            "template": template,
            **spec,
        },
        "status": {},
    }


def pod(name: str, cpu: str = "1", *, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": containers(cpu), **spec},
        "status": {"phase": "Pending"},
    }


def queued_pod(
    name: str,
    cpu: str = "1",
    *,
    group: str = "",
    total: int = 0,
    priority: str = "",
    notes: dict[str, str] | None = None,
) -> Object:
    """As admission leaves it: labelled, gated, with our finalizer."""
    notes = dict(notes or {})
    labels = {"kueue.x-k8s.io/queue-name": "queue", "kueue.x-k8s.io/managed": "true"}
    if group:
        labels["kueue.x-k8s.io/pod-group-name"] = group
        notes["kueue.x-k8s.io/pod-group-total-count"] = str(total)
    if priority:
        labels["kueue.x-k8s.io/priority-class"] = priority
    made = pod(name, cpu, labels=labels, priority=0)
    made["metadata"] |= {"annotations": notes, "finalizers": ["kueue.x-k8s.io/managed"]}
    made["spec"]["schedulingGates"] = [
        {"name": "kueue.x-k8s.io/admission"},
        {"name": "kueue.x-k8s.io/topology"},
    ]
    return made


PREEMPTS: Object = {"preemption": {"withinClusterQueue": "LowerPriority"}}


def queue_board(cpu: str = "10", config: str = "", nodes: int = 2, **spec: Any) -> Board:
    """A board with nodes, one queue of so many cores, and two priorities for it."""
    made = Board(config)
    made.put("Namespace", {"metadata": {"name": "default"}})
    made.put("ResourceFlavor", flavor())
    made.put("ClusterQueue", cluster_queue(cpu=cpu, **spec))
    made.put("LocalQueue", local_queue())
    made.put("WorkloadPriorityClass", priority_class("low", 100))
    made.put("WorkloadPriorityClass", priority_class("high", 1000))
    for number in range(nodes):
        made.put("Node", node(f"node-{number + 1}"))
    return made
