"""Kinds that only their own operator can run: they queue here like all others, and say what is missing."""

from __future__ import annotations

from makeway.client.resource import Object, Resource
from makeway.embedded.controllers.plan import Patch, Plan, Tell, plan
from makeway.embedded.objects import condition, deleted, status_of, with_condition

NEEDED = "OperatorNeeded"
OPERATORS = {
    "TrainJob": "Kubeflow Trainer",
    "MPIJob": "the MPI Operator",
    "PaddleJob": "the Kubeflow Training Operator",
    "RayCluster": "KubeRay",
    "RayJob": "KubeRay",
}


def reconcile(resource: Resource, owner: Object, now: float) -> Plan:
    if deleted(owner) or condition(owner, NEEDED) is not None:
        return Plan()
    operator = OPERATORS[owner["kind"]]
    message = (
        f"makeway queues this {owner['kind']} but cannot run it: its pods are made by {operator},"
        " which does not run on this machine. Use it on a cluster where it is installed, or write"
        " the work as a Job or JobSet."
    )
    conditions = with_condition(
        list(status_of(owner).get("conditions") or []),
        NEEDED,
        status="True",
        reason="NotInstalled",
        message=message,
        now=now,
    )
    write = Patch(resource, owner, {"status": {"conditions": conditions}}, "status")
    return plan([write], [Tell(owner, NEEDED, message, warning=True)])
