"""Who waits, and why: on the Workload where there is one, on the pods where there is none.

A reason that changes is rewritten at once a few times in a row, then now and then; the last one is never lost, only late.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from makeway.control.clock import timestamp
from makeway.kinds import conditions, pod
from makeway.kinds.metadata import Object, key, spec, status, terminating
from makeway.kube import standing, words
from makeway.kube.actions import Action, Tell, patch_status, pod_event, pod_status, workload_event
from makeway.kube.projection import Projection
from makeway.kube.workloads import queue_trouble
from makeway.kube.world import World
from makeway.model.decision import Wait

REWRITE_EVERY_S: Final = 10.0
REWRITES_IN_A_ROW: Final = 5.0
MOST_REMEMBERED: Final = 50_000
# Reasons that Kueue leaves unsaid: its users find them in the status, and get no event more than they know.
SILENT: Final = frozenset({"behind", "equal-failed"})
NOT_ALL_READY: Final = "waiting for all admitted workloads to be in PodsReady condition"


class Told(msgspec.Struct):
    """What a waiting workload was told last, and when."""

    sense: tuple[str, ...]
    at: float
    left: float = REWRITES_IN_A_ROW  # rewrites that may follow at once

    def refill(self, now: float) -> None:
        self.left = min(REWRITES_IN_A_ROW, self.left + (now - self.at) / REWRITE_EVERY_S)
        self.at = now


class Publisher:
    def __init__(self, world: World, projection: Projection) -> None:
        self._world = world
        self._copy = world.copy
        self._projection = projection
        self._told: dict[str, Told] = {}
        self._deferred: dict[str, Wait] = {}  # reasons that are to be published later
        self._bound: Collection[str] = ()  # pods that the plan at hand binds
        self.later: float | None = None  # a status that was held back is due then

    def begin(self, bound: Collection[str] = ()) -> None:
        """A new plan: what is still late is reckoned anew, and whom it binds has nothing to wait for."""
        self.later = None
        self._bound = bound
        if len(self._told) > MOST_REMEMBERED:
            self._told.clear()  # costs a rewrite at most

    def forget(self, workload_id: str) -> None:
        """It waits no more."""
        self._told.pop(workload_id, None)
        self._deferred.pop(workload_id, None)

    def late(self, decided: set[str]) -> list[Wait]:
        """Reasons that were held back and that nothing newer replaces."""
        return [wait for key_, wait in self._deferred.items() if key_ not in decided]

    def wait(self, wait: Wait, now: float, *, nominated: bool) -> list[list[Action]]:
        found = self._copy.get("Workload", wait.workload)
        if found is not None and not self._world.queues_are_ours:
            return self._wait_pods(wait, now)  # what a Workload says is Kueue's
        if found is None:
            self._deferred.pop(wait.workload, None)
            return [] if nominated else self._wait_pods(wait, now)
        if standing.has_quota(found) or standing.finished(found):
            self._deferred.pop(wait.workload, None)
            return [*self._wait_for_nodes(found, wait, now), *self._wait_pods(wait, now)]
        if queue_trouble(found, self._world) is not None:
            return []  # a closed queue is told by `workloads.py`
        return [self._publish(found, wait, words.waiting(wait.reason), now)]

    def _publish(self, found: Object, wait: Wait, message: str, now: float) -> list[Action]:
        model = self._projection.workload(wait.workload)
        reason = wait.reason.kueue or "PendingEvaluation"
        told_reason = conditions.reason(found, standing.QUOTA_RESERVED)
        sense = (reason, *(h.workload for h in wait.reason.holders), wait.reason.kind)
        told = self._told.setdefault(wait.workload, Told(sense, now))
        told.refill(now)
        same_words = conditions.message(found, standing.QUOTA_RESERVED) == message
        if told.sense == sense and told_reason == reason:
            if same_words:
                self._deferred.pop(wait.workload, None)
                return []
            if told.left < 1:
                self._deferred[wait.workload] = wait
                self._remind(now + (1 - told.left) * REWRITE_EVERY_S)
                return []
        self._deferred.pop(wait.workload, None)
        # Who was not looked at has not been asked what it needs.
        looked_at = message != NOT_ALL_READY and wait.reason.kind not in SILENT
        asked = self._world.asks(model) if model is not None and looked_at else ()
        change = standing.wait(found, reason, message, asked, now)
        was_silent = told.sense[-1] in SILENT
        told.sense, told.left = sense, max(0.0, told.left - 1)
        event = workload_event(found, reason, message, warning=True)
        if not change:
            return [event] if was_silent and looked_at else []
        if not looked_at:
            return [patch_status("Workload", found, change)]
        return [patch_status("Workload", found, change, event)]

    def _wait_for_nodes(self, found: Object, wait: Wait, now: float) -> list[list[Action]]:
        """Quota is reserved and the checks are ready: what is missing stands where Admitted is not yet True."""
        if standing.admitted(found) or standing.finished(found) or standing.evicted(found):
            return []
        message = words.waiting(wait.reason)
        change = standing.wait_for_nodes(found, wait.reason.kueue, message, now)
        event = workload_event(found, wait.reason.kueue, message, warning=True)
        return [[patch_status("Workload", found, change, event)]] if change else []

    def _remind(self, at: float) -> None:
        self.later = at if self.later is None else min(self.later, at)

    def _wait_pods(self, wait: Wait, now: float) -> list[list[Action]]:
        """Pods without a Workload object carry their reason themselves."""
        lists: list[list[Action]] = []
        leaving = self._some_have_left(wait.workload)
        for found in self._world.pods_of(wait.workload):
            if spec(found).get("nodeName") or pod.gates(found) or terminating(found):
                continue
            if key(found) in self._bound:
                continue  # where only some of its pods fit, the others wait
            node = str(status(found).get("nominatedNodeName") or "")
            if wait.reason.kind != "waiting-for-victims":
                node = ""
            elif node and not leaving:
                continue  # nothing new: it was told whom it waits for
            message = words.unschedulable(
                wait.reason, pod.scheduler_name(found), draining=leaving and bool(node)
            )
            lists.append(self.unschedulable(found, message, node, now))
        return lists

    def _some_have_left(self, workload_id: str) -> bool:
        """Of the victims that it waits for, some are gone and some are not."""
        found: list[Object | None] = []
        for record in self._copy.by("open preemptions", workload_id):
            for victim in spec(record).get("victims") or []:
                if victim.get("pods"):
                    found += [self._copy.get("Pod", pod_key) for pod_key in victim["pods"]]
                else:
                    found += self._world.pods_of(victim["workload"])
        gone = [one is None or pod.ended(one) for one in found]
        return any(gone) and not all(gone)

    def unschedulable(self, found: Object, message: str, node: str, now: float) -> list[Action]:
        known = conditions.find(found, "PodScheduled") or {}
        said = known.get("status") == "False" and known.get("message") == message
        nominated = str(status(found).get("nominatedNodeName") or "")
        if said and nominated == node:
            return []
        change: Object = {}
        events: tuple[Tell, ...] = ()
        if not said and message:
            since = known.get("lastTransitionTime") if known.get("status") == "False" else None
            change["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": message,
                    "lastTransitionTime": since or timestamp(now),
                }
            ]
            told = pod_event(found, "FailedScheduling", message, action="Scheduling", warning=True)
            events = (told,)
        if nominated != node:
            change["nominatedNodeName"] = node or None
        return [msgspec.structs.replace(pod_status(found, change), then=events)] if change else []
