"""Kubeflow's training jobs: a pod for each replica of each role, told where the others are.

PyTorch, XGBoost, JAX and TensorFlow read that from variables, which are set as the real operator sets them; all pods run on this
machine, so they meet at its own address, at a port that belongs to the job.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping

from makeway.client.resource import PODS, Object, Resource
from makeway.control.clock import timestamp
from makeway.embedded.controllers.making import named_pod
from makeway.embedded.controllers.plan import (
    Action,
    Create,
    Delete,
    Patch,
    Plan,
    Tell,
    merge_patch,
    plan,
)
from makeway.embedded.objects import (
    active,
    among,
    deleted,
    name_of,
    phase,
    ready,
    status_of,
    true,
    uid_of,
    with_condition,
)
from makeway.kinds.kubeflow import KINDS, REPLICA_INDEX, QueuedTraining

JOB_NAME = "training.kubeflow.org/job-name"
REPLICA_TYPE = "training.kubeflow.org/replica-type"
OPERATOR = "training.kubeflow.org/operator-name"
ADDRESS = "127.0.0.1"
FIRST_PORT, PORTS = 20_000, 12_000
RETRIED_FROM = 128  # exit codes from here on are signals: nobody's mistake
Env = dict[str, str]


def reconcile(
    kind: QueuedTraining, resource: Resource, owner: Object, pods: list[Object], now: float
) -> Plan:
    if deleted(owner):
        return Plan()
    return _Look(kind, resource, owner, pods, now).plan()


class _Look:
    def __init__(
        self,
        kind: QueuedTraining,
        resource: Resource,
        owner: Object,
        pods: list[Object],
        now: float,
    ) -> None:
        self.kind = kind
        self.resource = resource
        self.owner = owner
        self.now = now
        self.old = status_of(owner)
        self.specs: Mapping[str, Object] = owner["spec"].get(kind.field) or {}
        self.roles = [s.name for s in kind.slots(owner, lambda _kind, _key: None)]
        self.by_role = {role.lower(): role for role in self.specs}
        self.pods = {name_of(pod): pod for pod in pods}
        self.conditions: list[Object] = list(self.old.get("conditions") or [])
        self.told: list[Action] = []
        self.suspended = kind.suspended(owner)

    def plan(self) -> Plan:
        if true(self.owner, "Succeeded") or true(self.owner, "Failed"):
            return plan(self._clean_up())
        changes: list[Action] = []
        started: str | None = str(self.old.get("startTime") or timestamp(self.now))
        self._set("Created", f"{self.kind.kind}Created", f"{self._title} is created.")
        if self.suspended:
            changes = [self._delete(p) for p in self.pods.values() if not deleted(p)]
            started = None
            self._suspend()
        elif not self._judge():
            changes = self._staff()
        write = self._write(started)
        return plan(changes, write, self.told)

    @property
    def _title(self) -> str:
        return f"{self.kind.kind} {name_of(self.owner)}"

    # Outcome

    def _judge(self) -> bool:
        if among(self.conditions, "Suspended"):
            message = f"{self._title} is resumed."
            self._set("Suspended", f"{self.kind.kind}Resumed", message, status="False")
        failed = sorted(name for name, pod in self.pods.items() if self._lost_for_good(pod))
        if failed:
            message = f"{self._title} is failed because {len(failed)} pod(s) failed: {failed[0]}."
            self._end("Failed", message)
        elif self._done():
            self._end("Succeeded", f"{self._title} is successfully completed.")
        else:
            if self._all_running():
                self._set("Running", f"{self.kind.kind}Running", f"{self._title} is running.")
            return False
        return True

    def _lost_for_good(self, pod: Object) -> bool:
        if phase(pod) != "Failed" or deleted(pod) or true(pod, "DisruptionTarget"):
            return False
        return not (self._policy(pod) == "ExitCode" and _exit_code(pod) >= RETRIED_FROM)

    def _policy(self, pod: Object) -> str:
        role = self.by_role.get((pod["metadata"].get("labels") or {}).get(REPLICA_TYPE, ""), "")
        return str((self.specs.get(role) or {}).get("restartPolicy") or "OnFailure")

    def _done(self) -> bool:
        """As the one that leads does; without a leader, when all have."""
        leads = [r for r in self.roles if r in ("master", "chief", "launcher")]
        names = [n for r in (leads[:1] or self.roles) for n in self._names(r)]
        found = [self.pods.get(name) for name in names]
        return bool(found) and all(p is not None and phase(p) == "Succeeded" for p in found)

    def _all_running(self) -> bool:
        names = [name for role in self.roles for name in self._names(role)]
        return all(
            (pod := self.pods.get(name)) is not None
            and (phase(pod) == "Succeeded" or (active(pod) and ready(pod)))
            for name in names
        )

    def _end(self, kind: str, message: str) -> None:
        reason = f"{self.kind.kind}{kind}"
        if any(c["type"] == "Running" for c in self.conditions):
            self._set("Running", reason, message, status="False")
        self._set(kind, reason, message)
        self.told.append(Tell(self.owner, reason, message, warning=kind == "Failed"))

    def _clean_up(self) -> list[Action]:
        policy = (self.owner["spec"].get("runPolicy") or {}).get("cleanPodPolicy") or "None"
        if policy == "None":
            return []
        kept = {"Succeeded", "Failed"} if policy == "Running" else set()
        return [
            self._delete(p) for p in self.pods.values() if not deleted(p) and phase(p) not in kept
        ]

    def _suspend(self) -> None:
        if among(self.conditions, "Suspended"):
            return
        reason, message = f"{self.kind.kind}Suspended", f"{self._title} is suspended."
        if any(c["type"] == "Running" for c in self.conditions):
            self._set("Running", reason, message, status="False")
        self._set("Suspended", reason, message)
        self.told.append(Tell(self.owner, reason, message))

    # Pods

    def _count(self, role: str) -> int:
        said = self.specs[self.by_role[role]].get("replicas")
        return 1 if said is None else int(said)

    def _names(self, role: str) -> list[str]:
        return [f"{name_of(self.owner)}-{role}-{index}" for index in range(self._count(role))]

    def _delete(self, pod: Object) -> Delete:
        return Delete(PODS, pod, tell=self.owner)

    def _staff(self) -> list[Action]:
        changes: list[Action] = []
        wanted: set[str] = set()
        for role in self.roles:
            for index, name in enumerate(self._names(role)):
                wanted.add(name)
                pod = self.pods.get(name)
                if pod is None:
                    changes.append(Create(PODS, self._pod(role, index, name), tell=self.owner))
                elif phase(pod) == "Failed" and not deleted(pod):
                    changes.append(self._delete(pod))  # made anew once it is gone
        surplus = [p for n, p in self.pods.items() if n not in wanted and not deleted(p)]
        return [*changes, *(self._delete(pod) for pod in surplus)]

    def _pod(self, role: str, index: int, name: str) -> Object:
        replica = self.specs[self.by_role[role]]
        labels = {
            JOB_NAME: name_of(self.owner),
            REPLICA_TYPE: role,
            REPLICA_INDEX: str(index),
            OPERATOR: f"{self.kind.kind.lower()}-controller",
        }
        if role in ("master", "chief"):
            labels["training.kubeflow.org/job-role"] = "master"
        env = ENVIRONMENTS.get(self.kind.kind, _nothing)(self, role, index)
        pod = named_pod(self.owner, name, replica["template"], labels=labels, env=env)
        policy = str(replica.get("restartPolicy") or "OnFailure")
        pod["spec"]["restartPolicy"] = "Never" if policy == "ExitCode" else policy
        return pod

    @property
    def port(self) -> int:
        """Its own, so that two jobs on one machine do not meet."""
        return FIRST_PORT + zlib.crc32(uid_of(self.owner).encode()) % PORTS

    def world_size(self) -> int:
        return sum(self._count(role) for role in self.roles)

    def rank(self, role: str, index: int) -> int:
        before = self.roles[: self.roles.index(role)]
        return sum(self._count(each) for each in before) + index

    def cluster(self) -> dict[str, list[str]]:
        """Each role with an address for each of its pods."""
        return {
            role: [f"{ADDRESS}:{self.port + self.rank(role, i)}" for i in range(self._count(role))]
            for role in self.roles
        }

    # Status

    def _write(self, started: str | None) -> list[Action]:
        counts: dict[str, Object] = {}
        for role in self.roles:
            mine = [p for n in self._names(role) if (p := self.pods.get(n)) is not None]
            counts[self.by_role[role]] = {
                "active": sum(active(p) for p in mine) if not self.suspended else 0,
                "succeeded": sum(phase(p) == "Succeeded" for p in mine),
                "failed": sum(phase(p) == "Failed" for p in mine),
            }
        status: Object = {"conditions": self.conditions, "replicaStatuses": counts}
        if started is not None:
            status["startTime"] = started
        if among(self.conditions, "Succeeded"):
            status["completionTime"] = self.old.get("completionTime") or timestamp(self.now)
        body = merge_patch(self.old, status)
        return [Patch(self.resource, self.owner, {"status": body}, "status")] if body else []

    def _set(self, kind: str, reason: str, message: str, status: str = "True") -> None:
        known = next((c for c in self.conditions if c["type"] == kind), None)
        if known is None or known["status"] != status:
            self.conditions = with_condition(
                self.conditions, kind, status=status, reason=reason, message=message, now=self.now
            )


def _nothing(_look: _Look, _role: str, _index: int) -> Env:
    return {}


def _pytorch(look: _Look, role: str, index: int) -> Env:
    return {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(look.port),
        "WORLD_SIZE": str(look.world_size()),
        "RANK": str(look.rank(role, index)),
        "PET_MASTER_ADDR": ADDRESS,
        "PET_MASTER_PORT": str(look.port),
        "PET_NNODES": str(look.world_size()),
        "PET_NODE_RANK": str(look.rank(role, index)),
    }


def _xgboost(look: _Look, role: str, index: int) -> Env:
    known = ("PYTHONUNBUFFERED", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
    return {key: value for key, value in _pytorch(look, role, index).items() if key in known}


def _jax(look: _Look, role: str, index: int) -> Env:
    return {
        "PYTHONUNBUFFERED": "1",
        "COORDINATOR_ADDRESS": ADDRESS,
        "COORDINATOR_PORT": str(look.port),
        "NUM_PROCESSES": str(look.world_size()),
        "PROCESS_ID": str(look.rank(role, index)),
    }


def _tensorflow(look: _Look, role: str, index: int) -> Env:
    task = {"type": role, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": look.cluster(), "task": task})}


ENVIRONMENTS: dict[str, Callable[[_Look, str, int], Env]] = {
    "PyTorchJob": _pytorch,
    "XGBoostJob": _xgboost,
    "JAXJob": _jax,
    "TFJob": _tensorflow,
}
RUN_HERE: dict[str, QueuedTraining] = {k.kind: k for k in KINDS if k.kind in ENVIRONMENTS}


def _exit_code(pod: Object) -> int:
    for container in status_of(pod).get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return int(ended.get("exitCode") or 0)
    return 0
