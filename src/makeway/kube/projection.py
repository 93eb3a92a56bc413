"""From API objects to the engine's: what changed in the local copy becomes events of the model.

A change of one object may change several of the engine's: a pod also its gang, a Job also its Workload. So a change only marks
what has to be derived anew; `drain` derives each marked thing once, and tells the engine what came out differently.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from makeway.errors import UserError
from makeway.kinds import (
    admissioncheck,
    clusterqueue,
    cohort,
    job,
    localqueue,
    node,
    pod,
    podgroup,
    preemption,
    resourceflavor,
    sets,
    topology,
    volumes,
    workload,
)
from makeway.kinds import namespace as namespaces
from makeway.kinds.frameworks import JOB_KINDS, job_kind
from makeway.kinds.gated import GATED_KINDS
from makeway.kinds.metadata import (
    PODSET,
    WORKLOAD,
    Json,
    Object,
    annotations_of,
    controller,
    created_at,
    key,
    labels,
    metadata,
    name,
    namespace,
    spec,
    uid,
)
from makeway.kinds.promises import (
    PLACEMENT,
    PREFIX,
    checkpoint,
    min_pods,
    placed_by_others,
)
from makeway.kube import standing
from makeway.kube.resources import POD_GROUPS
from makeway.kube.shapes import Shapes
from makeway.kube.world import World, templates
from makeway.model.decision import Hold
from makeway.model.event import Event, Namespace, Remove, Upsert
from makeway.model.event import Object as ModelObject
from makeway.model.node import Node, NodeName, Topology
from makeway.model.queue import AdmissionCheck, Cohort, Flavor, LocalQueue, Queue
from makeway.model.workload import (
    Budget,
    Gang,
    Placed,
    Pod,
    PodSet,
    Workload,
    WorkloadId,
)

log = logging.getLogger(__name__)

# Kinds that become exactly one model object of their own.
SIMPLE: Final[dict[str, tuple[type[Any], Callable[[Json], ModelObject]]]] = {
    "Node": (Node, node.node_from),
    "Namespace": (Namespace, namespaces.read),
    "PodDisruptionBudget": (Budget, node.budget_from),
    "ClusterQueue": (Queue, clusterqueue.read),
    "LocalQueue": (LocalQueue, localqueue.read),
    "Cohort": (Cohort, cohort.read),
    "ResourceFlavor": (Flavor, resourceflavor.read),
    "Topology": (Topology, topology.read),
    "AdmissionCheck": (AdmissionCheck, admissioncheck.read),
}


class Projection:
    def __init__(self, world: World, ours: Callable[[str], bool]) -> None:
        self._world = world
        self._ours = ours
        self._copy = world.copy
        self._marked: dict[tuple[str, str], None] = {}
        self._known: dict[tuple[type[Any], str], ModelObject] = {}
        # Nodes chosen for pods that the API has not seen yet; see `assume_placement`.
        self._assumed: dict[str, tuple[Placed, ...]] = {}
        self._pod_sets: dict[str, tuple[tuple[str, ...], tuple[PodSet, ...], str]] = {}  # by uid
        self._shapes = Shapes()
        self.faults: dict[str, str] = {}  # objects that cannot be read, and why
        self._copy.listen(self._note)

    @property
    def pending(self) -> bool:
        return bool(self._marked)

    def workload(self, workload_id: str) -> Workload | None:
        """A workload as the engine sees it."""
        found = self._known.get((Workload, workload_id))
        return found if isinstance(found, Workload) else None

    def members(self, workload_id: str) -> list[Pod]:
        """The workload's pods that exist, as the engine sees them."""
        found = (self._pod(key(one)) for one in self._world.pods_of(workload_id))
        return [one for one in found if one is not None]

    def assume_placement(self, workload_id: str, placement: tuple[Placed, ...]) -> None:
        """Decided, and kept in mind until its pods exist: written down only where losing it would break a gang."""
        self._assumed[workload_id] = placement
        self._mark("workload", workload_id)

    def remark(self, workload_id: str) -> None:
        """Tell the engine again: what it decided could not be done."""
        self._known.pop((Workload, workload_id), None)
        self._mark("workload", workload_id)

    # What a change touches

    def _mark(self, what: str, key_: str) -> None:
        self._marked[what, key_] = None

    def _note(self, kind: str, key_: str, before: Object | None, after: Object | None) -> None:
        if kind in SIMPLE:
            self._mark(kind, key_)
            if kind == "Namespace":
                # Its labels may say that others place its pods.
                for found in self._copy.by("workloads by namespace", key_):
                    self._mark("workload", key(found))
        elif kind == "Workload":
            self._mark("workload", key_)
            if after is None and before is not None:
                self._pod_sets.pop(uid(before), None)
        elif kind == "Pod":
            self._mark("pod", key_)
            if after is None and before is not None:
                self._shapes.forget(before)
            for state in (before, after):
                if state is not None:
                    self._mark_workload_of(state)
        elif kind in JOB_KINDS or kind in GATED_KINDS:
            if before is None or after is None or not _reads_the_same(before, after):
                self._note_owner(kind, after or before or {})
        elif kind in POD_GROUPS:
            for member in self._copy.by("pods by gang", key_):
                self._mark("pod", key(member))
                self._mark("workload", self.workload_of(member)[0])
            self._mark("workload", key_)
        elif kind == "Preemption":
            self._mark("hold", str(spec(after or before or {}).get("preemptor") or ""))
        elif kind == "LimitRange":
            for found in self._copy.by("workloads by namespace", key_.split("/", 1)[0]):
                self._mark("workload", key(found))
        elif kind == "PersistentVolumeClaim":
            self._note_claim(key_)
        elif kind == "PersistentVolume":
            self._note_claims_of(volumes.storage_class(after or before or {}))
        elif kind == "StorageClass":
            self._note_claims_of(key_)

    def _note_claims_of(self, storage_class: str) -> None:
        for claim in self._copy.keys_by("open claims by class", storage_class):
            self._note_claim(claim)

    def _note_claim(self, claim: str) -> None:
        for user in self._copy.by("pods by claim", claim):
            # Told again even if it looks the same: what it waited for may be there.
            self._known.pop((Pod, key(user)), None)
            self._mark("pod", key(user))
        for asks in self._copy.by("workloads by claim", claim):
            self._mark("workload", key(asks))

    def _mark_workload_of(self, one: Json) -> None:
        owner = self.workload_of(one)[0]
        # What a Workload object says is not read from its pods, unless they own it.
        if pod.queued(one) or self._copy.get("Workload", owner) is None:
            self._mark("workload", owner)

    def _note_owner(self, kind: str, changed: Json) -> None:
        for one in self._copy.by("pods by parent", f"{kind}/{key(changed)}"):
            self._mark("pod", key(one))
            self._mark_workload_of(one)
        for owned in self._copy.by("workloads by owner", uid(changed)):
            self._mark("workload", key(owned))
        for child in self._copy.by("children", uid(changed)):
            self._mark("pod", key(child))
            self._mark("workload", self.workload_of(child)[0])

    # Deriving

    def drain(self) -> list[Event]:
        events: list[Event] = []
        while self._marked:
            marked, self._marked = self._marked, {}
            for what, key_ in marked:
                self._derive(what, key_, events)
        return events

    def _derive(self, what: str, key_: str, events: list[Event]) -> None:
        try:
            if what == "workload":
                self._tell(Workload, key_, self._workload(key_), events)
            elif what == "pod":
                self._tell(Pod, key_, self._pod(key_), events)
            elif what == "hold":
                self._tell_hold(key_, events)
            else:
                kind, read = SIMPLE[what]
                found = self._copy.get(what, key_)
                self._tell(kind, key_, read(found) if found is not None else None, events)
            self.faults.pop(f"{what} {key_}", None)
        except (UserError, KeyError, TypeError, ValueError) as error:
            # One object of a strange shape must not hide all the others; what is known of it stays.
            self.faults[f"{what} {key_}"] = str(error)
            log.warning("%s %s cannot be read: %s", what, key_, error)

    def _tell(
        self, kind: type[Any], key_: str, obj: ModelObject | None, events: list[Event]
    ) -> None:
        known = self._known.get((kind, key_))
        if obj == known:
            return
        if obj is None:
            del self._known[kind, key_]
            events.append(Remove(type=kind, key=key_))
        else:
            self._known[kind, key_] = obj
            events.append(Upsert(obj=obj))

    def _tell_hold(self, holder: str, events: list[Event]) -> None:
        """Holds are known by who they are for; only the newest open one of a workload counts."""
        self._tell(Hold, holder, self._newest_hold(holder), events)

    def _newest_hold(self, workload_id: str) -> Hold | None:
        open_ones = [
            (created_at(obj), name(obj), hold)
            for obj in self._copy.by("open preemptions", workload_id)
            if (hold := preemption.hold_from(obj)) is not None
        ]
        return max(open_ones, key=lambda entry: entry[:2])[2] if open_ones else None

    # Pods

    def workload_of(self, one: Json) -> tuple[WorkloadId, str]:
        """The workload a pod belongs to, and its pod set there."""
        space = namespace(one)
        started = annotations_of(one).get(WORKLOAD)
        if started:
            return WorkloadId(f"{space}/{started}"), labels(one).get(PODSET, "main")
        parented = self._world.gated_parent(one)
        if parented is not None:
            kind, owner = parented
            return WorkloadId(f"{space}/{kind.workload_of(one, owner)}"), kind.pod_set_of(
                one, owner
            )
        if pod.queued(one):
            role = podgroup.role_hash(one) if pod.group_name(one) else "main"
            return WorkloadId(f"{space}/{pod.workload_of_queued(one)}"), role
        gang = podgroup.gang_of(one)
        if gang is not None and self._is_gang(gang, one):
            return self._gang_id(gang), gang
        together = self._world.set_of(one)
        if together is not None:
            member, _, needed = together
            return WorkloadId(member.id), sets.part_of(one, needed)
        parent = self._indexed_parent(one)
        if parent is not None:
            return WorkloadId(key(parent)), "main"
        return WorkloadId(key(one)), "main"

    def _is_gang(self, gang: str, one: Json) -> bool:
        """The default scheduler's pods may carry the label without meaning it; other schedulers' wait for their PodGroup."""
        groups = list(self._world.pod_groups(gang))
        if groups:
            return any(group.minimum is not None for group in groups)
        return podgroup.says_minimum(one) or pod.scheduler_name(one) != pod.DEFAULT_SCHEDULER

    def _gang_id(self, gang: str) -> WorkloadId:
        group = next(iter(self._world.pod_groups(gang)), None)
        members = self._copy.by("pods by gang", gang)
        return podgroup.workload_id_of_gang(gang, group, members)

    def _indexed_parent(self, one: Json) -> Object | None:
        """The Job of an unqueued pod, if its pods belong together."""
        parent = self._parent_job(one)
        if parent is None or not job.indexed(parent) or self._world.manages(parent):
            return None
        return parent

    def _parent_job(self, one: Json) -> Object | None:
        owner = controller(one)
        if owner is None or owner.get("kind") != "Job":
            return None
        return self._copy.get("Job", f"{namespace(one)}/{owner.get('name')}")

    def _pod(self, key_: str) -> Pod | None:
        found = self._copy.get("Pod", key_)
        if found is None:
            return None
        shape = volumes.with_volumes(self._shapes.of(found), found, self._world.storage)
        return pod.pod_from(found, *self.workload_of(found), shape)

    # Workloads

    def _workload(self, key_: str) -> Workload | None:
        found = self._copy.get("Workload", key_)
        if found is not None:
            return self._queued(found)
        self._assumed.pop(key_, None)
        gang = self._gang(key_)
        if gang is not None:
            return gang
        together = self._copy.by("pods by set", key_)
        if together:
            return self._set(together)
        parent = self._copy.get("Job", key_)
        if parent is not None and job.indexed(parent) and not self._world.manages(parent):
            return self._indexed_job(parent)
        alone = self._copy.get("Pod", key_)
        if alone is not None and self.workload_of(alone)[0] == key_:
            return self._lone(alone)
        return None

    def _lone(self, one: Json) -> Workload:
        ours = self._ours(pod.scheduler_name(one))
        found = pod.lone_workload(one, ours=ours, shape=self._shapes.of(one))
        found = msgspec.structs.replace(found, top_owner=self._world.top_owner(one))
        parent = self._parent_job(one)
        if parent is not None and self._world.manages(parent):
            return msgspec.structs.replace(found, held_back="its Job is not admitted")
        return found

    def _gang(self, key_: str) -> Workload | None:
        names = key_.split(",")
        members = [self._member(gang) for gang in names]
        present = [m for m in members if m.pods]
        if not present or self.workload_of(present[0].pods[0])[0] != key_:
            return None
        ours = all(self._ours(pod.scheduler_name(p)) for m in present for p in m.pods)
        made = podgroup.gang_workload(WorkloadId(key_), present, ours=ours, expected=names)
        above = {self._world.top_owner(p) for m in present for p in m.pods}
        return msgspec.structs.replace(made, top_owner=above.pop() if len(above) == 1 else "")

    def _member(self, gang: str) -> podgroup.Member:
        pods = [p for p in self._copy.by("pods by gang", gang) if not pod.queued(p)]
        return podgroup.Member(
            gang=gang,
            group=next(iter(self._world.pod_groups(gang)), None),
            pods=tuple(sorted(pods, key=lambda p: (created_at(p), name(p)))),
        )

    def _set(self, pods: list[Object]) -> Workload | None:
        """A JobSet, or a group of a LeaderWorkerSet: a part for each sort of its pods."""
        found = self._world.set_of(pods[0])
        together = sorted(pods, key=name)
        mine = [p for p in together if found and self.workload_of(p)[0] == found[0].id]
        if found is None or not mine:
            return None
        member, owner, needed = found
        parts = [
            podgroup.Member(
                gang=part,
                group=podgroup.PodGroup(
                    id=member.name, uid=uid(owner), minimum=count, annotations=annotations_of(owner)
                ),
                pods=tuple(p for p in mine if sets.part_of(p, needed) == part),
            )
            for part, count in needed.items()
            if count
        ]
        ours = all(self._ours(pod.scheduler_name(p)) for p in mine)
        return podgroup.whole_workload(
            WorkloadId(member.id),
            parts,
            owner=f"{member.kind}/{member.name}",
            top_owner=self._world.top_owner(owner),
            ours=ours,
        )

    def _indexed_job(self, parent: Json) -> Workload | None:
        pods = sorted(self._copy.by("children", uid(parent)), key=name)
        if not pods:
            return None
        member = podgroup.Member(
            gang="main",
            group=podgroup.PodGroup(
                id=key(parent),
                uid=uid(parent),
                minimum=job.pod_count(parent),
                annotations=annotations_of(parent),
            ),
            pods=tuple(pods),
        )
        ours = all(self._ours(pod.scheduler_name(p)) for p in pods)
        return podgroup.whole_workload(
            WorkloadId(key(parent)),
            [member],
            owner=f"Job/{key(parent)}",
            top_owner=self._world.top_owner(parent),
            ours=ours,
        )

    def _queued(self, found: Json) -> Workload:
        """A Workload object, with what its owner says about it."""
        pod_sets, refused = self._asked(found)
        gate = self._world.config.feature_gates.get
        read = workload.read(
            _without_promises({**found, "spec": {**spec(found), "podSets": []}}),
            priority_boost=gate("PriorityBoost", False),
            reclaimable_pods=gate("ReclaimablePods", True),
        )
        read = msgspec.structs.replace(read, pod_sets=pod_sets)
        owner = self._world.owner_of(found)
        template = ((spec(found).get("podSets") or [{}])[0]).get("template") or {}
        places = [annotations_of(found), annotations_of(owner or {}), annotations_of(template)]
        return msgspec.structs.replace(
            read,
            top_owner=self._world.top_owner(owner) if owner is not None else "",
            needs=self._needs(found, owner, template),
            gang=self._gang_of(found, owner, read.pod_sets, min_pods(*places)),
            checkpoint=checkpoint(*places),
            lowers_to=self._lowers_to(found, owner, read.pod_sets, min_pods(*places)),
            pod_priority=self._pod_priority(template),
            protected=self._protected(template, owner),
            placement=self._placement(found),
            held_back=read.held_back or self._held_back(found, refused),
            finished=read.finished or bool(metadata(found).get("deletionTimestamp")),
        )

    def _protected(self, template: Json, owner: Json | None) -> str:
        if not self._world.queues_are_ours:
            return "Kueue admitted it, and evicts by its own rules"
        return pod.protected(template) or pod.protected(owner or {})

    def _held_back(self, found: Json, refused: str) -> str:
        if standing.has_quota(found):
            return ""
        return refused if self._world.queues_are_ours else "Kueue has not admitted it"

    def _asked(self, found: Json) -> tuple[tuple[PodSet, ...], str]:
        """Its pod sets, and why the API would refuse their pods. Read once: a status that changes does not change them."""
        ranges = self._copy.by("limit ranges", namespace(found))
        version = (
            str(metadata(found).get("generation", metadata(found).get("resourceVersion"))),
            *(str(metadata(r).get("resourceVersion")) for r in ranges),
        )
        known = self._pod_sets.get(uid(found))
        if known is None or known[0] != version:
            counted = {**self._world.counted(found), "status": {}}
            pod_sets = workload.read(_without_promises(counted)).pod_sets
            known = self._pod_sets[uid(found)] = (version, pod_sets, self._world.refusal(found))
        return self._where_volumes_are(found, known[1]), known[2]

    def _where_volumes_are(self, found: Json, pod_sets: tuple[PodSet, ...]) -> tuple[PodSet, ...]:
        """Nodes are chosen before there are pods: not one that their claims keep them from."""
        if not any(volumes.claim_names(template) for template in templates(found)):
            return pod_sets
        storage = self._world.storage
        return tuple(
            msgspec.structs.replace(
                asked, shape=volumes.with_volumes(asked.shape, template, storage)
            )
            for asked, template in zip(pod_sets, templates(found), strict=True)
        )

    def _pod_priority(self, template: Json) -> int:
        """What its pods will have, which is another matter than its priority in the queue."""
        said = spec(template)
        if said.get("priority") is not None:
            return int(said["priority"])
        named = self._copy.get("PriorityClass", str(said.get("priorityClassName") or ""))
        if named is not None:
            return int(named.get("value") or 0)
        usual = self._world.classes().default()
        return usual.value if usual is not None and not said.get("priorityClassName") else 0

    def _needs(self, found: Json, owner: Json | None, template: Json) -> Any:
        space = self._copy.get("Namespace", namespace(found)) or {}
        named = pod.scheduler_name(template)
        # Pods of queued workloads that ask for the default scheduler are given to us when they arrive.
        elsewhere = named != pod.DEFAULT_SCHEDULER and not self._ours(named)
        external = placed_by_others(labels(found), labels(owner or {}), labels(space))
        return "quota" if elsewhere or external else "both"

    def _gang_of(
        self, found: Json, owner: Json | None, pod_sets: tuple[PodSet, ...], fewest: int | None
    ) -> Gang | None:
        group = owner is not None and bool(pod.group_name(owner))
        # Pods that have to be near each other are placed as one.
        near = any(pod_set.topology is not None for pod_set in pod_sets)
        together = group or near or _together(found, owner or {})
        if fewest is not None:
            return Gang(minimums=((pod_sets[0].name, fewest),)) if pod_sets else None
        if not together:
            return None
        partial = tuple((s.name, s.min_count or s.count) for s in pod_sets)
        return Gang(minimums=partial) if any(s.min_count for s in pod_sets) else Gang()

    def _lowers_to(
        self, found: Json, owner: Json | None, pod_sets: tuple[PodSet, ...], fewest: int | None
    ) -> int | None:
        """The pods that its job goes on with when it is lowered; None: it says no minimum, or its kind cannot."""
        kind = job_kind(found)
        if kind is None or owner is None or len(pod_sets) != 1 or not kind.lowers(owner):
            return None
        said = [count for count in (pod_sets[0].min_count, fewest) if count is not None]
        return max(said, default=None)

    def _placement(self, found: Json) -> tuple[Placed, ...]:
        if not standing.has_quota(found):
            self._assumed.pop(key(found), None)
            return ()
        written = annotations_of(found).get(PLACEMENT)
        if not written:
            return self._assumed.get(key(found), ())
        return placement_from(written)


def _together(found: Json, owner: Json) -> bool:
    """Whether its owner's kind is one whose pods are of use only together."""
    for reference in metadata(found).get("ownerReferences") or []:
        kind = str(reference.get("kind"))
        if kind in JOB_KINDS:
            return JOB_KINDS[kind].together(owner)
        if kind in GATED_KINDS:
            return GATED_KINDS[kind].gang
    return False


def _reads_the_same(before: Json, after: Json) -> bool:
    """A Job's status tells the engine nothing."""
    return (
        uid(before) == uid(after)
        and spec(before) == spec(after)
        and labels(before) == labels(after)
        and annotations_of(before) == annotations_of(after)
        and metadata(before).get("ownerReferences") == metadata(after).get("ownerReferences")
    )


def placement_from(written: str) -> tuple[Placed, ...]:
    """`[{"podSet": "main", "node": "n1", "count": 2}]`."""
    try:
        entries = json.loads(written)
        return tuple(
            Placed(pod_set=e["podSet"], node=NodeName(e["node"]), count=int(e["count"]))
            for e in entries
        )
    except (ValueError, KeyError, TypeError):
        return ()


def placement_json(placement: Iterable[Placed]) -> str:
    entries = [{"podSet": p.pod_set, "node": p.node, "count": p.count} for p in placement]
    return json.dumps(entries, separators=(",", ":"))


def _without_promises(found: Json) -> Object:
    """Our annotations are read by `promises`, which forgives what cannot be read."""
    kept = {k: v for k, v in annotations_of(found).items() if not k.startswith(PREFIX)}
    return {**found, "metadata": {**metadata(found), "annotations": kept}}
