"""Gangs that run in part: completed within a while, or stopped.

A gang is bound only when there is room for all of it. Yet a member can be refused: by the API when it is bound, by its node when it
starts. Then it is placed anew, which the engine tries in every cycle. If that does not succeed in time the others run in vain: they
are stopped, and a queued gang waits again as a whole. A program that failed by itself is nobody's refusal: its gang goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from makeway.control.clock import timestamp
from makeway.engine import gang
from makeway.kinds import pod
from makeway.kinds.metadata import Object, name, spec, status, terminating
from makeway.kube import standing, workloads
from makeway.kube.actions import Action, Chain, delete_object, pod_event, pod_status
from makeway.kube.pods import notice_s
from makeway.kube.projection import Projection
from makeway.kube.world import World
from makeway.model.decision import Admit, Decision, Wait
from makeway.model.workload import WorkloadId

PLACED_ANEW_S: Final = 30.0
BROKEN: Final = "GangBroken"
# What a kubelet says of a pod that it does not take; anything else is the program's own end.
REFUSALS: Final = ("OutOf", "Outof", "NodeAffinity", "NodePorts", "UnexpectedAdmissionError")


class GangKeeper:
    def __init__(self, world: World, projection: Projection) -> None:
        self._world = world
        self._projection = projection
        self._since: dict[WorkloadId, float] = {}  # those of which only a part runs
        self._suspects: set[WorkloadId] = set()  # those that lost a member since the last look
        world.copy.listen(self._note)

    @property
    def later(self) -> float | None:
        """When the next one has to be complete."""
        return min((since + PLACED_ANEW_S for since in self._since.values()), default=None)

    def _note(self, kind: str, _key: str, _before: Object | None, after: Object | None) -> None:
        if kind == "Pod" and after is not None and _refused(after):
            self._suspects.add(self._projection.workload_of(after)[0])

    def look(self, decisions: Iterable[Decision], now: float) -> list[Chain]:
        """What to stop, after a plan was carried out as far as that was possible."""
        self._suspects |= {d.workload for d in decisions if isinstance(d, Admit | Wait)}
        told = {workload: self._lacks(workload) for workload in self._suspects}
        for workload, lacking in told.items():
            if lacking:
                self._since.setdefault(workload, now)
        self._suspects = {workload for workload, lacking in told.items() if lacking is None}
        asked: list[Chain] = []
        for workload, since in list(self._since.items()):
            lacking = self._lacks(workload)
            if lacking is None:
                continue
            if not lacking:
                del self._since[workload]
            elif now >= since + PLACED_ANEW_S:
                self._since[workload] = now  # refused to stop it, too? once more, later
                asked += self._stop(workload, lacking, now)
        return asked

    def _lacks(self, workload: WorkloadId) -> str | None:
        """In what a gang that runs falls short, as the first half of a sentence; empty when it is whole or does not run.

        None while the engine is about to hear of it anew.
        """
        pods = self._world.pods_of(workload)
        if not any(spec(one).get("nodeName") for one in pods):
            return ""
        model = self._projection.workload(workload)
        if model is None:
            return None
        if model.gang is None:
            return ""
        asked = gang.ask(model, self._projection.members(workload))
        refused = [name(one) for one in pods if _refused(one)]
        waiting = [str(one.id).split("/", 1)[1] for one in asked.core]
        if not asked.running or not (waiting or (asked.missing and refused)):
            return ""
        missing = ", ".join(waiting or refused)
        return (
            f"{asked.running} of the {asked.minimum} pods that it needs at once run, and {missing}"
        )

    def _stop(self, workload: WorkloadId, lacking: str, now: float) -> list[Chain]:
        message = f"{lacking} found no node within {PLACED_ANEW_S:.0f} s"
        found = self._world.copy.get("Workload", workload)
        if found is not None:
            if not standing.has_quota(found) or standing.evicted(found):
                return []
            return [Chain(actions=[workloads.evict(found, BROKEN, message, now)])]
        return [
            Chain(actions=self._stop_pod(one, message, now))
            for one in self._world.pods_of(workload)
            if spec(one).get("nodeName") and not terminating(one) and not pod.ended(one)
        ]

    def _stop_pod(self, one: Object, message: str, now: float) -> list[Action]:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": BROKEN,
            "message": message,
            "lastTransitionTime": timestamp(now),
        }
        told = pod_event(one, BROKEN, message, action="Stopping", warning=True)
        return [
            pod_status(one, {"conditions": [condition]}),
            delete_object("Pod", one, told, grace_s=notice_s(one, self._world)),
        ]


def _refused(one: Object) -> bool:
    return pod.phase(one) == "Failed" and str(status(one).get("reason") or "").startswith(REFUSALS)
