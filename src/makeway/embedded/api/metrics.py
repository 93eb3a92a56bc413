"""metrics.k8s.io for `kubectl top`: what the processes of local pods use; what pretended ones would, which is what they asked for.

Processor time is counted between two questions, or since the start for a pod that nobody asked about before.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import psutil

from makeway.control.clock import timestamp
from makeway.embedded.store import Store
from makeway.kinds.node import is_fake
from makeway.kinds.pods import requests_of
from makeway.kinds.serving.columns import at
from makeway.kinds.serving.refusal import Obj, not_found

GROUP: Final = "metrics.k8s.io"
VERSION: Final = f"{GROUP}/v1beta1"
WINDOW_S: Final = 1.0  # a shorter time says nothing about a rate
REMEMBERED: Final = 10_000


class Usage(msgspec.Struct, frozen=True):
    cpu_s: float  # used so far
    memory: int
    since: float


class Metrics:
    def __init__(self, store: Store, home: Path) -> None:
        self._store = store
        self._home = home
        self._seen: dict[str, tuple[float, float]] = {}  # by run: when, and processor time then

    def serve(self, resource: str, namespace: str, name: str, now: float) -> Obj:
        kind = "PodMetrics" if resource == "pods" else "NodeMetrics"
        found = [
            entry.decode()
            for entry in self._store.sorted(resource, namespace)
            if not name or entry.name == name
        ]
        items = [
            item
            for obj in found
            if (item := self._pod(obj, now) if resource == "pods" else self._node(obj, now))
        ]
        if name:
            if not items:
                raise not_found(resource, GROUP, name)
            return {"kind": kind, "apiVersion": VERSION, **items[0]}
        return {"kind": f"{kind}List", "apiVersion": VERSION, "metadata": {}, "items": items}

    def _pod(self, pod: Obj, now: float) -> Obj | None:
        if at(pod, "status", "phase") != "Running":
            return None
        asked = requests_of(pod, pod["spec"])
        folder = self._home / "pods" / pod["metadata"]["uid"] / "containers"
        containers = []
        for index, container in enumerate(pod["spec"]["containers"]):
            used = self._measure(folder / container["name"], now)
            if used is None:  # pretended: all that was asked for, told once
                used = (asked.get("cpu", 0), asked.get("memory", 0)) if not index else (0, 0)
            containers.append({"name": container["name"], "usage": _usage(*used)})
        return {**_head(pod, now), "containers": containers}

    def _measure(self, runs: Path, now: float) -> tuple[int, int] | None:
        """Millicores and bytes of a container's processes; None where there are none of this machine."""
        newest = max(runs.glob("*/started.json"), key=lambda f: int(f.parent.name), default=None)
        if newest is None:
            return None
        usage = _of_processes(newest)
        before, spent = self._seen.get(str(newest), (usage.since, 0.0))
        if now - before < WINDOW_S:
            before, spent = usage.since, 0.0
        else:
            self._remember(str(newest), now, usage.cpu_s)
        elapsed = max(now - before, WINDOW_S)
        return round(max(0.0, usage.cpu_s - spent) / elapsed * 1000), usage.memory

    def _remember(self, run: str, now: float, cpu_s: float) -> None:
        self._seen.pop(run, None)
        self._seen[run] = (now, cpu_s)
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def _node(self, node: Obj, now: float) -> Obj:
        if not is_fake(node):
            cores = psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1)
            memory = psutil.virtual_memory()
            return {
                **_head(node, now),
                "usage": _usage(round(cores * 1000), memory.total - memory.available),
            }
        pods = self._running_on(node["metadata"]["name"])
        asked = [requests_of(pod, pod["spec"]) for pod in pods]
        cpu = sum(each.get("cpu", 0) for each in asked)
        return {**_head(node, now), "usage": _usage(cpu, sum(e.get("memory", 0) for e in asked))}

    def _running_on(self, node: str) -> Iterable[Obj]:
        for entry in self._store.sorted("pods", ""):
            pod = entry.decode()
            if at(pod, "spec", "nodeName") == node and at(pod, "status", "phase") == "Running":
                yield pod


def _of_processes(started: Path) -> Usage:
    """The container's process and all that came from it."""
    said = msgspec.json.decode(started.read_bytes(), type=dict[str, object])
    since = float(str(said.get("started_at") or 0.0))
    cpu_s, memory = 0.0, 0
    try:
        first = psutil.Process(int(str(said.get("pid") or 0)))
        family = [first, *first.children(recursive=True)]
    except psutil.Error:
        return Usage(0.0, 0, since)
    for process in family:
        try:
            times, rss = process.cpu_times(), process.memory_info().rss
        except psutil.Error:
            continue  # it ended meanwhile
        cpu_s += times.user + times.system + times.children_user + times.children_system
        memory += int(rss)
    return Usage(cpu_s, memory, since)


def _head(obj: Obj, now: float) -> Obj:
    kept = ("name", "namespace", "labels", "creationTimestamp")
    metadata = {key: obj["metadata"][key] for key in kept if key in obj["metadata"]}
    return {"metadata": metadata, "timestamp": timestamp(now), "window": "15s"}


def _usage(millicores: int, memory: int) -> Obj:
    return {"cpu": f"{millicores}m", "memory": f"{memory // 1024}Ki"}
