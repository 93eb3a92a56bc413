"""What a node writes on a pod: phase and conditions from the states of its containers.

Pure: the real runner and the pretended nodes describe their containers as `ContainerState`s and get
the status that a kubelet would write. Conditions that others own (PodScheduled, DisruptionTarget)
are left alone: the patch is strategic, and conditions are merged by their type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from makeway.client.resource import Object
from makeway.control.clock import timestamp

OWN = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
OTHERS = ("PodScheduled", "DisruptionTarget")
TERMINAL = frozenset({"Succeeded", "Failed"})


class Terminated(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int
    started_at: float
    finished_at: float
    reason: str = ""
    message: str = ""

    def as_json(self) -> Object:
        default = "Completed" if self.exit_code == 0 else "Error"
        body: Object = {
            "exitCode": self.exit_code,
            "reason": self.reason or default,
            "startedAt": timestamp(self.started_at),
            "finishedAt": timestamp(self.finished_at),
        }
        if self.message:
            body["message"] = self.message
        if self.exit_code > 128:
            body["signal"] = self.exit_code - 128
        return body


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    """One container as it is now: waiting (with a reason), running, or terminated."""

    name: str
    image: str = ""
    running_since: float | None = None
    terminated: Terminated | None = None
    last: Terminated | None = None
    waiting: str = "ContainerCreating"
    waiting_message: str = ""
    restarts: int = 0
    ready: bool = False
    started: bool = False
    container_id: str = ""
    # An init container with restartPolicy Always: it runs beside the others.
    sidecar: bool = False

    @property
    def running(self) -> bool:
        return self.running_since is not None

    @property
    def succeeded(self) -> bool:
        return self.terminated is not None and self.terminated.exit_code == 0

    @property
    def initialized(self) -> bool:
        """As an init container: the next one may start."""
        if self.sidecar:
            return self.started or self.terminated is not None or self.last is not None
        return self.succeeded

    def as_json(self) -> Object:
        body: Object = {
            "name": self.name,
            "image": self.image,
            "imageID": "",
            "state": self._state(),
            "lastState": {"terminated": self.last.as_json()} if self.last else {},
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
        }
        if self.container_id:
            body["containerID"] = self.container_id
        return body

    def _state(self) -> Object:
        if self.running_since is not None:
            return {"running": {"startedAt": timestamp(self.running_since)}}
        if self.terminated is not None:
            return {"terminated": self.terminated.as_json()}
        said = {"message": self.waiting_message} if self.waiting_message else {}
        return {"waiting": {"reason": self.waiting, **said}}


class Address(msgspec.Struct, frozen=True):
    host: str
    pod: str


def phase_of(
    init: Sequence[ContainerState], main: Sequence[ContainerState], restart_policy: str
) -> str:
    """Pending until the init containers are done and one main container ran."""
    if not all(state.initialized for state in init):
        failed = any(
            state.terminated and not state.succeeded and not state.sidecar for state in init
        )
        return "Failed" if failed and restart_policy == "Never" else "Pending"
    if any(state.running for state in main):
        return "Running"
    if all(state.terminated for state in main):
        if restart_policy == "Always":
            return "Running"
        if all(state.succeeded for state in main):
            return "Succeeded"
        return "Failed" if restart_policy == "Never" else "Running"
    # Waiting: for the first start, or (having run before) for the next one.
    return "Running" if any(state.last or state.terminated for state in main) else "Pending"


def status_body(
    pod: Object,
    *,
    init: Sequence[ContainerState],
    main: Sequence[ContainerState],
    phase: str,
    address: Address,
    start: float,
    now: float,
    reason: str = "",
    message: str = "",
) -> Object:
    """The `status` to patch; times of conditions that did not change are kept."""
    body: Object = {
        "observedGeneration": int(pod["metadata"].get("generation") or 1),
        "phase": phase,
        "conditions": _conditions(pod, init, main, phase, now),
        # In a strategic patch: ours first, then those of others, as a kubelet leaves them.
        "$setElementOrder/conditions": [{"type": kind} for kind in (*OWN, *OTHERS)],
        "hostIP": address.host,
        "hostIPs": [{"ip": address.host}],
        "podIP": address.pod,
        "podIPs": [{"ip": address.pod}],
        "startTime": timestamp(start),
        "containerStatuses": [state.as_json() for state in main],
    }
    if init:
        body["initContainerStatuses"] = [state.as_json() for state in init]
    if reason:
        body["reason"] = reason
        body["message"] = message
    if not (pod.get("status") or {}).get("qosClass"):
        body["qosClass"] = qos_class(pod["spec"])
    return body


def _conditions(
    pod: Object,
    init: Sequence[ContainerState],
    main: Sequence[ContainerState],
    phase: str,
    now: float,
) -> list[Object]:
    initialized = all(state.initialized for state in init)
    unready = [state.name for state in main if not state.ready]
    if phase in TERMINAL:
        done = {"reason": "PodCompleted" if phase == "Succeeded" else "PodFailed"}
        why = {"ContainersReady": done, "Ready": done}
        if phase == "Succeeded":
            why["Initialized"] = done
    elif unready:
        told = {
            "reason": "ContainersNotReady",
            "message": f"containers with unready status: [{' '.join(unready)}]",
        }
        why = {"ContainersReady": told, "Ready": told}
    else:
        why = {}
    if not initialized and phase not in TERMINAL:
        waiting = [state.name for state in init if not state.initialized]
        why["Initialized"] = {
            "reason": "ContainersNotInitialized",
            "message": f"containers with incomplete status: [{' '.join(waiting)}]",
        }
    ready = not unready and phase not in TERMINAL and not _gates_closed(pod)
    if not ready and not why.get("Ready"):
        why["Ready"] = {
            "reason": "ReadinessGatesNotReady",
            "message": "a readiness gate of this pod is not true",
        }
    truths = {
        "PodReadyToStartContainers": phase not in TERMINAL,
        "Initialized": initialized or phase == "Succeeded",
        "Ready": ready,
        "ContainersReady": not unready and phase not in TERMINAL,
    }
    return [_condition(pod, kind, truth, why.get(kind, {}), now) for kind, truth in truths.items()]


def _gates_closed(pod: Object) -> bool:
    true = {
        condition["type"]
        for condition in (pod.get("status") or {}).get("conditions") or []
        if condition["status"] == "True"
    }
    gates = pod["spec"].get("readinessGates") or []
    return any(gate["conditionType"] not in true for gate in gates)


def _condition(pod: Object, kind: str, truth: bool, why: Object, now: float) -> Object:
    wanted = "True" if truth else "False"
    changed = timestamp(now)
    for old in (pod.get("status") or {}).get("conditions") or []:
        if old["type"] == kind and old["status"] == wanted and old.get("lastTransitionTime"):
            changed = old["lastTransitionTime"]
    return {
        "type": kind,
        "status": wanted,
        "lastProbeTime": None,
        "lastTransitionTime": changed,
        "observedGeneration": int(pod["metadata"].get("generation") or 1),
        # Null takes back what an earlier state said; a reason must not outlive its cause.
        "reason": why.get("reason"),
        "message": why.get("message"),
    }


def qos_class(spec: Object) -> str:
    """Guaranteed when every container's CPU and memory limits equal its requests."""
    containers = [*(spec.get("initContainers") or []), *spec["containers"]]
    resources: list[dict[str, Any]] = [each.get("resources") or {} for each in containers]
    basic = ("cpu", "memory")
    asked = [
        (each.get("requests") or {}).get(name) or (each.get("limits") or {}).get(name)
        for each in resources
        for name in basic
    ]
    if not any(asked):
        return "BestEffort"
    for each in resources:
        limits = each.get("limits") or {}
        requests = each.get("requests") or limits
        for name in basic:
            if name not in limits or str(requests.get(name, limits[name])) != str(limits[name]):
                return "Burstable"
    return "Guaranteed"
