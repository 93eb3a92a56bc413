"""JobSets and LeaderWorkerSets without a queue: their pods are of use only together, all of a JobSet, or all of one leader's group.

What a pod is of stands in its labels, so that it needs nobody else to be found. How many pods there must be, its owner says. Sets that
make their pods one after the other (in order, or workers once their leader is ready) cannot be placed as one: their pods wait for each
other to run, not only to exist.
"""

from __future__ import annotations

from typing import Final

import msgspec

from makeway.kinds.gated import LWS_GROUP, LWS_NAME, LWS_WORKER, waits_for_leader
from makeway.kinds.metadata import Json, labels, namespace, spec
from makeway.kinds.queued import pods_together, replicas

JOBSET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB: Final = "jobset.sigs.k8s.io/replicatedjob-name"


class SetMember(msgspec.Struct, frozen=True):
    """What a pod says it is of: the owner's kind and name, and which of its groups."""

    kind: str
    owner: str  # namespace/name
    group: str = ""

    @property
    def name(self) -> str:
        """As its users call it: a group of a LeaderWorkerSet is called as its leader is."""
        return f"{self.owner}-{self.group}" if self.group else self.owner

    @property
    def id(self) -> str:
        """Like no object's name, which has no colon."""
        space, _, own = self.name.partition("/")
        return f"{space}/{self.kind.lower()}:{own}"


def member_of(pod: Json) -> SetMember | None:
    said = labels(pod)
    if said.get(JOBSET_NAME):
        return SetMember("JobSet", f"{namespace(pod)}/{said[JOBSET_NAME]}")
    if said.get(LWS_NAME) and said.get(LWS_GROUP):
        return SetMember("LeaderWorkerSet", f"{namespace(pod)}/{said[LWS_NAME]}", said[LWS_GROUP])
    return None


def parts(kind: str, owner: Json) -> dict[str, int]:
    """How many pods of each sort there must be; none where they do not come together."""
    return _jobset_parts(owner) if kind == "JobSet" else _group_parts(owner)


def _jobset_parts(owner: Json) -> dict[str, int]:
    jobs = spec(owner).get("replicatedJobs") or []
    order = (spec(owner).get("startupPolicy") or {}).get("startupPolicyOrder")
    if order == "InOrder" or any(each.get("dependsOn") for each in jobs):
        return {}
    return {
        str(each.get("name")): replicas(each) * pods_together(spec(each.get("template") or {}))
        for each in jobs
    }


def _group_parts(owner: Json) -> dict[str, int]:
    form = spec(owner).get("leaderWorkerTemplate") or {}
    size = int(form.get("size") or 1)
    if waits_for_leader(owner):
        return {}
    if not form.get("leaderTemplate") or size == 1:
        return {"main": size}
    return {"leader": 1, "worker": size - 1}


def part_of(pod: Json, found: dict[str, int]) -> str:
    """Which of the parts it is."""
    if len(found) == 1:
        return next(iter(found))
    if "leader" in found and LWS_WORKER in labels(pod):
        return "leader" if labels(pod)[LWS_WORKER] == "0" else "worker"
    return labels(pod).get(REPLICATED_JOB, "")
