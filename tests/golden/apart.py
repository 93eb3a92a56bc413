"""Owners that go another way here on purpose, and what that changes around them.

Two ways are wanted. A queued workload whose quota is there and whose nodes are not waits here, where Kueue admits it in vain; and one
whose priority class is missing queues here as soon as the class comes, where Kueue never looks again. The recording has to
show the other half: pods that found no node, a Workload that was never made. Who just waits here while it ran there has not gone
apart, it is wrong. What queues count must differ by exactly those workloads.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from makeway.model.resources import amount_of
from tests.golden.facts import Key, event_of
from tests.golden.recording import Json

WAITS_FOR_NODES = "A queued workload whose quota is there and whose nodes are not waits, instead of being admitted in vain."
CLASS_COMES_LATER = (
    "A workload whose priority class is missing says so, and queues as soon as the class is there."
)
ABSENT = "(nothing)"
NO_RESOURCES = "No resources found"
QUEUES = {"ClusterQueue": "clusterQueues", "LocalQueue": "localQueues"}

Counts = Counter[tuple[str, ...]]


class Apart:
    """Kept over the steps of one situation; both sides' outcomes have their names in one form already."""

    def __init__(self) -> None:
        self.now: dict[str, str] = {}  # owners (`namespace/name`) that differ in this step, and why
        self.once: dict[str, str] = {}  # those that ever did: their story stays another one
        self._missing_class: set[str] = set()
        self._recorded: dict[str, Json] = {}  # the last full form of each recorded object
        self._unplaced: dict[str, set[str]] = {}  # owners: their recorded pods that found no node
        self._there: Counts = Counter()
        self._here: Counts = Counter()
        self._moved: set[str] = set()

    def step(self, want: Json, got: Json) -> None:
        self._remember(want)
        self._missing_class |= {
            event.about.split(" ", 1)[1]
            for event in map(event_of, got["newEvents"])
            if event.reason.endswith("PriorityClassNotFound")
        }
        self.now = {
            owner: why
            for owner, workload in _by_owner(got.get("workloads") or ()).items()
            if (why := self._why(owner, workload))
        }
        made = _by_owner(self._workloads())
        self.now |= {owner: CLASS_COMES_LATER for owner in self._missing_class if owner not in made}
        self.once |= self.now
        self._count(got)

    def excuses(self, key: Key, path: str, want: Any, got: Any) -> str:
        """Why a difference follows from somebody's other way; empty when it does not."""
        if not self.once:
            return ""
        named = f"{key.about} {key.field}"
        if key.sort in ("row", "section", "command"):
            named += f" {want} {got}"
        for owner, why in self.now.items():
            if _names(owner, named):
                return why
        told = key.sort in ("event", "order") or key.field.lower() == "events"
        for owner, why in self.once.items():
            if told and _names(owner, named):
                return why
        return self._around(key, path, want, got)

    # ---- who goes apart

    def _why(self, owner: str, workload: Json) -> str:
        conditions = (workload.get("status") or {}).get("conditions") or ()
        waits = any(c.get("reason") == "WaitingForNodes" for c in conditions)
        return WAITS_FOR_NODES if waits and self._unplaced.get(owner) else ""

    def _remember(self, want: Json) -> None:
        for plural in ("workloads", "pods"):
            gone = {about for about in self._recorded if about.startswith(plural)}
            for obj in want.get(plural) or ():
                about = f"{plural} {_title(obj)}"
                gone.discard(about)
                if not obj.get("unchanged"):
                    self._recorded[about] = obj
            for about in gone if plural in want else ():
                del self._recorded[about]
        for event in map(event_of, want.get("newEvents") or ()):
            if event.about.startswith("Pod ") and event.reason == "FailedScheduling":
                pod = event.about.removeprefix("Pod ")
                for owner in {pod, re.sub(r"-<r\d+>$|-\d+-<r\d+>$", "", pod)}:
                    self._unplaced.setdefault(owner, set()).add(pod)
        placed = {
            _title(pod) for pod in self._recorded_pods() if (pod.get("spec") or {}).get("nodeName")
        }
        for pods in self._unplaced.values():
            pods -= placed

    def _workloads(self) -> list[Json]:
        return [obj for about, obj in self._recorded.items() if about.startswith("workloads ")]

    def _recorded_pods(self) -> list[Json]:
        return [obj for about, obj in self._recorded.items() if about.startswith("pods ")]

    # ---- what follows for the queues

    def _count(self, got: Json) -> None:
        before = (self._there, self._here)
        doors = {_title(door): door for door in got.get("localQueues") or ()}
        self._there = _counted(self._workloads(), self.now, doors)
        self._here = _counted(got.get("workloads") or (), self.now, doors)
        changed = (self._there - before[0]) + (before[0] - self._there)
        changed += (self._here - before[1]) + (before[1] - self._here)
        self._moved = {queue for queue, *_ in changed}

    def _around(self, key: Key, path: str, want: Any, got: Any) -> str:
        """What queues count, in their status and in tables; and a table that has nothing but them."""
        if not self.now:
            return ""
        why = next(iter(self.now.values()))
        kind = key.about.split()[0]
        if kind in QUEUES and self._explained(key, path, want, got):
            return why
        if key.sort == "row" and re.search(r"get (?:clusterqueues|localqueues|cq|lq)", key.about):
            return why if _without_numbers(want) == _without_numbers(got) else ""
        return why if any(str(side).startswith(NO_RESOURCES) for side in (want, got)) else ""

    def _explained(self, key: Key, path: str, want: Any, got: Any) -> bool:
        """The very number by which those who went apart change it."""
        queue = key.about
        if key.field == "unchanged":
            return queue in self._moved
        found = re.fullmatch(r"status\.(pending|admitted|reserving)Workloads", key.field)
        if found and isinstance(want, int) and isinstance(got, int):
            return got - want == self._more(queue, found.group(1))
        found = re.fullmatch(r"status\.flavors(Reservation|Usage)\.(\S+)", key.field)
        part = re.fullmatch(r"\.(\S+)\.(total|borrowed)", path)
        if not found or not part or ABSENT in (want, got):
            return False
        resource, what = part.groups()
        more = self._more(queue, *found.groups(), resource)
        change = amount_of(resource, got) - amount_of(resource, want)
        # Borrowed is what goes beyond its own: it changes by as much at most.
        return change == more if what == "total" else abs(change) <= abs(more)

    def _more(self, *counted: str) -> int:
        return self._here[counted] - self._there[counted]


def _title(obj: Json) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def _by_owner(workloads: Any) -> dict[str, Json]:
    return {
        f"{workload['metadata']['namespace']}/{owner['name']}": workload
        for workload in workloads
        for owner in workload["metadata"].get("ownerReferences") or ()
    }


def _counted(workloads: Any, owners: dict[str, str], doors: dict[str, Json]) -> Counts:
    """What the owners' Workloads add to what their queues count."""
    found: Counts = Counter()
    for owner, workload in _by_owner(workloads).items():
        if owner not in owners:
            continue
        space = workload["metadata"]["namespace"]
        door = f"{space}/{workload['spec'].get('queueName', '')}"
        behind = str((doors.get(door) or {}).get("spec", {}).get("clusterQueue", ""))
        for queue in (f"LocalQueue {door}", f"ClusterQueue {behind}"):
            found += _contribution(queue, workload)
    return found


def _contribution(queue: str, workload: Json) -> Counts:
    status = workload.get("status") or {}
    true = {c["type"] for c in status.get("conditions") or () if c["status"] == "True"}
    found: Counts = Counter()
    if "Finished" in true:
        return found
    admission = status.get("admission")
    if not admission:
        found[queue, "pending"] += bool(workload["spec"].get("active", True))
        return found
    found[queue, "reserving"] += 1
    sorts = ["Reservation"]
    if "Admitted" in true:
        found[queue, "admitted"] += 1
        sorts.append("Usage")
    for assigned in admission.get("podSetAssignments") or ():
        for resource, amount in (assigned.get("resourceUsage") or {}).items():
            for sort in sorts:
                flavor = assigned["flavors"].get(resource, "")
                found[queue, sort, flavor, resource] += amount_of(resource, amount)
    return found


def _without_numbers(row: Any) -> list[str]:
    return [word for word in str(row).split() if not word.isdigit()]


def _names(owner: str, text: str) -> bool:
    """The owner, its Workload or one of its pods."""
    space, name = owner.split("/", 1)
    one = re.escape(name)
    pattern = rf"(?<![\w-])(?:(?:job|pod)-)?{one}(?:-\d+)?(?:-<[hr]\d*>)?(?![\w-])"
    return space in text and bool(re.search(pattern, text))
