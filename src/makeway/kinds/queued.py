"""Jobs that queue: what the framework needs to know of a kind to turn its objects into Workloads, start and stop them.

A kind names its pod templates (`slots`) and where its `suspend` stands; the rest is alike for all of them. Starting adds to
each template what admission gives it and lifts the suspension; stopping suspends and puts the templates back as the Workload
remembers them. Both come out as merge patches, so that fields which nobody here knows stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from makeway.kinds import composing
from makeway.kinds.merging import merge_patch
from makeway.kinds.metadata import Json, Object, annotations_of, group_of, spec
from makeway.kinds.nearness import topology_request

MAX_POD_SETS: Final = 18
Find = Callable[[str, str], Object | None]  # kind, key -> another object, such as a runtime


class CannotQueue(Exception):
    """Why no Workload can be made of this job, as its user should read it."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class Slot(msgspec.Struct, kw_only=True):
    """A pod template inside a job, and how many pods are made of it. `template` is a part of the job, not a copy."""

    name: str
    count: int
    template: Object
    min_count: int | None = None
    topology: Object = {}  # how its pods are numbered


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The next step of stopping a job; an empty patch when there is nothing left to do."""

    patch: Object = {}
    done: bool = False  # with this step the user is told that it stopped


class QueuedKind:
    """One kind of job. Subclasses say where its templates are and what its status means."""

    kind: str
    api_version: str
    plural: str
    suspend_path: tuple[str, ...] = ("spec", "suspend")
    gang = True  # its pods are of use only together

    @property
    def group(self) -> str:
        return group_of(self.api_version)

    @property
    def component(self) -> str:
        """In whose name events are told."""
        return f"{self.group}/{self.kind.lower()}-kueue-controller"

    # What it asks for

    def slots(self, job: Json, find: Find) -> list[Slot]:
        raise NotImplementedError

    def pod_sets(self, job: Json, find: Find) -> list[Object]:
        slots = self.slots(job, find)
        if len(slots) > MAX_POD_SETS:
            message = (
                f"it has {len(slots)} pod sets; at most {MAX_POD_SETS} can queue as one workload"
            )
            raise CannotQueue("ErrWorkloadCompose", message)
        return [_pod_set(slot) for slot in slots]

    def priority_class(self, job: Json) -> str:
        """The PriorityClass that the kind's own field names."""
        return ""

    def together(self, job: Json) -> bool:
        """Whether this one's pods are of use only together."""
        return self.gang

    def queues(self, job: Json) -> bool:
        """False for jobs that bring no pods of their own."""
        return True

    # How it stands

    def suspended(self, job: Json) -> bool:
        return bool(_at(job, self.suspend_path))

    def stopping(self, job: Json) -> bool:
        """Suspended, and not yet put back as it was."""
        return False

    def active(self, job: Json) -> bool:
        """Whether pods still run; those on their way out do not count."""
        raise NotImplementedError

    def finished(self, job: Json) -> tuple[str, str] | None:
        """Reason and message for the Workload, once the job is over."""
        raise NotImplementedError

    def pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        """Whether all pods are ready or done; `counts` are those that were admitted."""
        raise NotImplementedError

    def reclaimable(self, job: Json) -> list[tuple[str, int]]:
        """Pods by pod set that need no quota any more."""
        return []

    # Starting, lowering and stopping

    def lowers(self, job: Json) -> bool:
        """Whether it goes on with fewer pods while it runs, whichever are taken."""
        return False

    def lower_patch(self, job: Json, count: int) -> Object:
        """Go on with so many pods: those that were taken are not replaced. Empty where that is so already."""
        raise NotImplementedError

    def start_patch(
        self, job: Json, updates: Mapping[str, Json], counts: Mapping[str, int], find: Find
    ) -> Object:
        """Let it run; `updates` is what admission adds to each pod set's template."""
        started = copy.deepcopy(dict(job))
        for slot in self.slots(started, find):
            inject(slot.template, updates.get(slot.name) or {})
        _put(started, self.suspend_path, False)
        return merge_patch(job, started)

    def suspend_patch(self) -> Object:
        patch: Object = {}
        _put(patch, self.suspend_path, True)
        return patch

    def stop(self, job: Json, pod_sets: Iterable[Json], find: Find) -> Stop:
        """Suspended and put back in one step, as long as its kind has no slower way."""
        stopped = copy.deepcopy(dict(job))
        known = {str(pod_set.get("name")): pod_set for pod_set in pod_sets if pod_set}
        for slot in self.slots(stopped, find):
            if slot.name.lower() in known:
                restore(slot.template, known[slot.name.lower()]["template"])
        _put(stopped, self.suspend_path, True)
        return Stop(patch=merge_patch(job, stopped), done=not self.suspended(job))


def inject(template: Object, update: Json) -> None:
    """Add labels, annotations, node labels and tolerations to a pod template."""
    for part, fields in (("metadata", ("labels", "annotations")), ("spec", ("nodeSelector",))):
        for field in fields:
            if update.get(field):
                inner = _inner(template, part)
                inner[field] = {**(inner.get(field) or {}), **update[field]}
    if update.get("tolerations"):
        present = _inner(template, "spec").get("tolerations") or []
        added = [t for t in update["tolerations"] if t not in present]
        template["spec"]["tolerations"] = [*present, *added]


def restore(template: Object, original: Json) -> None:
    """Put back what admission may have changed."""
    for part, fields in (
        ("metadata", ("labels", "annotations")),
        ("spec", ("nodeSelector", "tolerations", "schedulingGates")),
    ):
        for field in fields:
            _put_back(_inner(template, part), field, (original.get(part) or {}).get(field))


def _put_back(now: Object, field: str, then: object) -> None:
    if field == "labels" and now.get(field):
        kept = {k: v for k, v in now[field].items() if k in composing.CONTROLLER_LABELS}
        then = {**kept, **(then if isinstance(then, dict) else {})}
    if then:
        now[field] = copy.deepcopy(then)
    else:
        now.pop(field, None)


def replicas(holder: Json) -> int:
    """`replicas`, which is one where nobody says."""
    said = holder.get("replicas")
    return 1 if said is None else int(said)


def pods_together(job_spec: Json) -> int:
    """Pods of a batch Job's spec that run together."""
    said, wanted = job_spec.get("parallelism"), job_spec.get("completions")
    together = 1 if said is None else int(said)
    return together if wanted is None else min(together, int(wanted))


def _pod_set(slot: Slot) -> Object:
    template = slot.template
    pod_set: Object = {
        "name": slot.name.lower(),
        "count": slot.count,
        "template": composing.template_from(template.get("metadata") or {}, spec(template)),
    }
    request = topology_request(annotations_of(template), slot.topology)
    if request:
        pod_set["topologyRequest"] = request
    if slot.min_count is not None:
        pod_set["minCount"] = slot.min_count
    return pod_set


def _inner(obj: Object, field: str) -> Object:
    if not isinstance(obj.get(field), dict):
        obj[field] = {}
    inner: Object = obj[field]
    return inner


def _at(obj: Json, path: tuple[str, ...]) -> object:
    found: object = obj
    for field in path:
        found = found.get(field) if isinstance(found, Mapping) else None
    return found


def _put(obj: Object, path: tuple[str, ...], value: object) -> None:
    for field in path[:-1]:
        obj = _inner(obj, field)
    obj[path[-1]] = value
