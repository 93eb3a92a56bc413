"""What reconciles may look at besides their own object: a read-only view of the local copy."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from makeway.control.config import Configuration, policy_of
from makeway.engine.demand import Demand, demands
from makeway.engine.local_usage import Sample
from makeway.kinds import composing, limits, pod, podgroup, preemption, sets, volumes
from makeway.kinds.frameworks import JOB_KINDS
from makeway.kinds.gated import GATED_KINDS, GatedKind
from makeway.kinds.labels import read_selector
from makeway.kinds.metadata import (
    QUEUE_NAME,
    WORKLOAD,
    Json,
    Object,
    annotations_of,
    controller,
    key,
    labels,
    metadata,
    name,
    namespace,
    owners,
    spec,
    uid,
)
from makeway.kube import standing
from makeway.kube.copy import LocalCopy
from makeway.kube.resources import POD_GROUPS
from makeway.model.workload import Workload

OWNERS = frozenset({"Pod", *JOB_KINDS, *GATED_KINDS})
MOST_OWNERS = 8  # one above the other
SYSTEM_NAMESPACES = frozenset({"kube-system", "kueue-system", "makeway-system"})


class World:
    def __init__(
        self, copy: LocalCopy, config: Configuration, *, queues_are_ours: bool = True
    ) -> None:
        self.copy = copy
        self.config = config
        self._policy = policy_of(config)
        # False while Kueue runs: it admits, suspends and evicts what is queued; only nodes are ours.
        self.queues_are_ours = queues_are_ours
        self.shares: dict[tuple[str, str], int] = {}  # (kind, name) -> weighted share
        self.samples: dict[str, Sample] = {}  # by local queue: what it has used, to be written
        self._classes: composing.Classes | None = None  # read anew when one changes
        copy.listen(self._note)
        self.watched: set[str] = set()  # kinds of which everything that exists was heard
        self.subresources: set[str] = set()  # "PodGroup/status", where the API serves it
        copy.index("limit ranges", "LimitRange", lambda obj: [namespace(obj)])
        copy.index("children", "Pod", _owner_uids)
        copy.index("pods by parent", "Pod", _parents)
        copy.index("workloads by owner", "Workload", _owner_uids)
        copy.index("workloads by local queue", "Workload", _local_queue)
        copy.index("workloads by cluster queue", "Workload", _cluster_queue)
        copy.index("local queues by cluster queue", "LocalQueue", _target_queue)
        copy.index("pods by group", "Pod", _group)
        copy.divide("Preemption", preemption.apart)
        copy.index("open preemptions", "Preemption", _open_for)
        copy.index("preemptions by party", "Preemption", _record_parties)
        copy.index("preemptions by preemptor", "Preemption", _asked_by)
        copy.index("pods by claim", "Pod", _claims)
        copy.index("workloads by claim", "Workload", _workload_claims)
        copy.index("open claims by class", "PersistentVolumeClaim", _open_claim)
        copy.index("volumes by class", "PersistentVolume", lambda v: [volumes.storage_class(v)])
        self.storage = volumes.Storage(copy.get, partial(copy.by, "volumes by class"))
        copy.index("pods by gang", "Pod", _gang)
        copy.index("pods by set", "Pod", _set)
        copy.index("pods by workload", "Pod", _workload)
        copy.index("workloads by namespace", "Workload", lambda obj: [namespace(obj)])
        copy.index("pods by namespace", "Pod", lambda obj: [namespace(obj)])

    def _note(self, kind: str, _key: str, _before: Object | None, _after: Object | None) -> None:
        if kind in ("PriorityClass", "WorkloadPriorityClass"):
            self._classes = None

    def classes(self) -> composing.Classes:
        if self._classes is not None:
            return self._classes
        found = self._classes = composing.Classes()
        for obj in self.copy.all("WorkloadPriorityClass"):
            found.workload[name(obj)] = composing.priority_class_from(obj)
        for obj in self.copy.all("PriorityClass"):
            found.pod[name(obj)] = composing.priority_class_from(obj)
        return found

    def flavor(self, flavor_name: str) -> Object | None:
        return self.copy.get("ResourceFlavor", flavor_name)

    def counted(self, workload: Json) -> Object:
        """The Workload as its pods will be counted: with the defaults of its namespace and runtime classes."""
        ranges = self.copy.by("limit ranges", namespace(workload))
        pod_sets = spec(workload).get("podSets") or []
        if not ranges and not any(_runtime(pod_set) for pod_set in pod_sets):
            return dict(workload)
        found = limits.summarize(ranges)
        fixed = [
            {
                **pod_set,
                "template": {
                    **pod_set["template"],
                    "spec": limits.limited(
                        pod_set["template"].get("spec") or {},
                        found,
                        self.copy.get("RuntimeClass", _runtime(pod_set)),
                    ),
                },
            }
            for pod_set in pod_sets
        ]
        return {**workload, "spec": {**spec(workload), "podSets": fixed}}

    def asks(self, workload: Workload) -> tuple[Demand, ...]:
        """What it asks of quota, as the configuration has it counted."""
        return demands(workload, policy=self._policy)

    def refusal(self, workload: Json) -> str:
        """Why the API would refuse its pods; empty when it would not."""
        ranges = self.copy.by("limit ranges", namespace(workload))
        return limits.refusal(self.counted(workload), limits.summarize(ranges))

    def local_queue_of(self, workload: Json) -> Object | None:
        return self.copy.get(
            "LocalQueue", f"{namespace(workload)}/{spec(workload).get('queueName', '')}"
        )

    def cluster_queue_of(self, workload: Json) -> Object | None:
        """The queue that holds its quota, else the one its local queue leads to."""
        held = standing.cluster_queue(workload)
        if not held:
            local = self.local_queue_of(workload)
            held = str(spec(local).get("clusterQueue") or "") if local else ""
        return self.copy.get("ClusterQueue", held)

    def cohorts_above(self, queue: Json) -> list[str]:
        """From a ClusterQueue's cohort to the root. Where cohorts run in a circle, the last one was named before."""
        names: list[str] = []
        above = str(spec(queue).get("cohortName") or spec(queue).get("cohort") or "")
        while above:
            names.append(above)
            if above in names[:-1]:
                break
            above = str(spec(self.copy.get("Cohort", above) or {}).get("parentName") or "")
        return names

    def owner_exists(self, workload: Json) -> bool:
        """True, too, for owners of kinds that nobody watches here."""
        known = [o for o in owners(workload) if self._knows(str(o.get("kind")))]
        if not known:
            return True
        return any(self._find_owner(workload, o) is not None for o in known)

    def _knows(self, kind: str) -> bool:
        """Where a kind is not served, or not heard of yet, nobody can say that an owner is gone."""
        return kind in OWNERS and kind in self.watched

    def owner_of(self, workload: Json) -> Object | None:
        for owner in owners(workload):
            found = self._find_owner(workload, owner)
            if found is not None:
                return found
        return None

    def _find_owner(self, workload: Json, owner: Json) -> Object | None:
        if owner.get("kind") not in OWNERS:
            return None
        found = self.copy.get(str(owner["kind"]), f"{namespace(workload)}/{owner.get('name')}")
        return (
            found if found is not None and metadata(found).get("uid") == owner.get("uid") else None
        )

    def top_owner(self, obj: Json) -> str:
        """Whose work it is, as far up as its controllers can be followed; "" where nobody stands above it."""
        found = ""
        for _ in range(MOST_OWNERS):
            above = controller(obj)
            if above is None:
                break
            found = _deployment(obj, above) or str(above.get("uid") or "")
            known = self.copy.get(str(above.get("kind")), f"{namespace(obj)}/{above.get('name')}")
            if known is None or uid(known) != found:
                break
            obj = known
        return found

    def managed_namespace(self, namespace_name: str) -> bool:
        said = self.config.managed_jobs_namespace_selector
        if said is None:
            return namespace_name not in SYSTEM_NAMESPACES
        selector = read_selector(said)
        found = self.copy.get("Namespace", namespace_name) or {}
        own = {"kubernetes.io/metadata.name": namespace_name} | labels(found)
        return selector is not None and selector.matches(own)

    def manages(self, job: Json) -> bool:
        """A job that queues by itself: not one that a queued job made."""
        if not self.managed_namespace(namespace(job)):
            return False
        if self._belongs_to_queued(job):
            return False
        return bool(labels(job).get(QUEUE_NAME)) or self.config.manage_jobs_without_queue_name

    def _belongs_to_queued(self, job: Json) -> bool:
        owner = controller(job)
        if owner is None or owner.get("kind") not in JOB_KINDS:
            return False
        above = self.copy.get(str(owner["kind"]), f"{namespace(job)}/{owner.get('name')}")
        return above is None or self.manages(above) or self._belongs_to_queued(above)

    def gated_parent(self, one: Json) -> tuple[GatedKind, Object] | None:
        """The queued StatefulSet or LeaderWorkerSet that a pod is of."""
        for kind in GATED_KINDS.values():
            named = kind.owner_of(one)
            found = self.copy.get(kind.kind, f"{namespace(one)}/{named}") if named else None
            if found is not None and self.manages_gated(found):
                return kind, found
        return None

    def manages_gated(self, owner: Json) -> bool:
        """Gates are put on when pods are made, so only what names a queue is queued."""
        return bool(labels(owner).get(QUEUE_NAME)) and self.managed_namespace(namespace(owner))

    def set_of(self, one: Json) -> tuple[sets.SetMember, Object, dict[str, int]] | None:
        """The unqueued JobSet or LeaderWorkerSet whose pods are placed together with this one, and the parts it needs."""
        member = sets.member_of(one)
        owner = self.copy.get(member.kind, member.owner) if member else None
        if member is None or owner is None:
            return None
        queued = self.manages(owner) if member.kind in JOB_KINDS else self.manages_gated(owner)
        needed = sets.parts(member.kind, owner)
        return (member, owner, needed) if needed and not queued else None

    def group_pods(self, namespace_name: str, group: str) -> list[Object]:
        return self.copy.by("pods by group", f"{namespace_name}/{group}")

    def pods_of(self, workload_id: str) -> list[Object]:
        """The pods of a workload that exist: by annotation, by itself, by gang or set, or by its Job."""
        found = self.copy.by("pods by workload", workload_id)
        alone = self.copy.get("Pod", workload_id)
        if found or alone is not None:
            return found or [alone or {}]
        for gang in workload_id.split(","):
            found += self.copy.by("pods by gang", gang)
        found += self.copy.by("pods by set", workload_id)
        parent = self.copy.get("Job", workload_id)
        if parent is not None:
            found += self.copy.by("children", uid(parent))
        return found

    def pod_groups(self, gang: str) -> Iterable[podgroup.PodGroup]:
        for kind in POD_GROUPS:
            found = self.copy.get(kind, gang)
            if found is not None:
                yield podgroup.pod_group_from(found)


def _runtime(pod_set: Json) -> str:
    return str((pod_set["template"].get("spec") or {}).get("runtimeClassName") or "")


def _deployment(pod: Json, above: Json) -> str:
    """Each new version of a Deployment has a ReplicaSet of its own, whose name says of which Deployment it is."""
    version = labels(pod).get("pod-template-hash", "")
    named = str(above.get("name"))
    if above.get("kind") != "ReplicaSet" or not version or not named.endswith(f"-{version}"):
        return ""
    return f"Deployment/{namespace(pod)}/{named.removesuffix(f'-{version}')}"


def _owner_uids(obj: Json) -> list[str]:
    return [str(owner.get("uid")) for owner in owners(obj)]


def _parents(obj: Json) -> list[str]:
    """`StatefulSet/ns/name`, of whatever a pod says it is of."""
    gated = [
        f"{kind.kind}/{namespace(obj)}/{named}"
        for kind in GATED_KINDS.values()
        if (named := kind.owner_of(obj))
    ]
    member = sets.member_of(obj)
    return list(dict.fromkeys([*gated, *([f"{member.kind}/{member.owner}"] if member else [])]))


def _local_queue(workload: Json) -> list[str]:
    return [f"{namespace(workload)}/{spec(workload).get('queueName', '')}"]


def _cluster_queue(workload: Json) -> list[str]:
    held = standing.cluster_queue(workload)
    return [held] if held else []


def _target_queue(local_queue: Json) -> list[str]:
    return [str(spec(local_queue).get("clusterQueue") or "")]


def _group(obj: Json) -> list[str]:
    group = pod.group_of(obj)
    return [f"{group.namespace}/{group.name}"] if group else []


def _open_for(record: Json) -> list[str]:
    """Under the name of who asked, and under "" for all that are open."""
    return ["", *_asked_by(record)] if preemption.is_open(record) else []


def _record_parties(record: Json) -> list[str]:
    """Who asked and who falls in a preemption under way; gangs that are one workload, each by its name."""
    if not preemption.is_open(record):
        return []
    victims = spec(record).get("victims") or []
    workloads = [*_asked_by(record), *(str(victim.get("workload")) for victim in victims)]
    parts = [part for workload in workloads for part in workload.split(",")]
    return list(dict.fromkeys([*parts, *(p for v in victims for p in v.get("pods") or [])]))


def pod_parties(one: Json) -> list[str]:
    """The names under which a pod may be part of a preemption: as in `World.pods_of`."""
    owner = controller(one)
    above = [f"{namespace(one)}/{owner.get('name')}"] if owner else []
    return [key(one), *_workload(one), *_gang(one), *_set(one), *above]


def _asked_by(record: Json) -> list[str]:
    return [str(spec(record).get("preemptor") or "")]


def _claims(obj: Json) -> list[str]:
    return [f"{namespace(obj)}/{claim}" for claim in volumes.claim_names(obj)]


def templates(workload: Json) -> list[Object]:
    """What the pods of its pod sets will look like."""
    return [pod_set.get("template") or {} for pod_set in spec(workload).get("podSets") or []]


def _workload_claims(workload: Json) -> list[str]:
    claims = (claim for template in templates(workload) for claim in volumes.claim_names(template))
    return [f"{namespace(workload)}/{claim}" for claim in claims]


def _open_claim(claim: Json) -> list[str]:
    return [] if volumes.bound(claim) else [volumes.storage_class(claim)]


def _gang(obj: Json) -> list[str]:
    gang = podgroup.gang_of(obj)
    return [gang] if gang else []


def _set(obj: Json) -> list[str]:
    member = sets.member_of(obj)
    return [member.id] if member else []


def _workload(obj: Json) -> list[str]:
    started = annotations_of(obj).get(WORKLOAD)
    if started:
        return [f"{namespace(obj)}/{started}"]
    if pod.queued(obj):
        return [f"{namespace(obj)}/{pod.workload_of_queued(obj)}"]
    return []
