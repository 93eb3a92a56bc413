"""PersistentVolumeClaims: nobody provisions volumes here, and a claim that finds none says so."""

from __future__ import annotations

from collections.abc import Sequence

from makeway.client.resource import Object
from makeway.embedded.controllers.plan import Plan, Tell, plan
from makeway.embedded.objects import deleted, status_of

NO_VOLUME = "no persistent volumes available for this claim and no storage class is set"


def reconcile(claim: Object, _: Sequence[Object], __: float) -> Plan:
    waits = not claim["spec"].get("volumeName") and status_of(claim).get("phase") != "Bound"
    if deleted(claim) or not waits:
        return Plan()
    storage = claim["spec"].get("storageClassName")
    if not storage:
        return plan([Tell(claim, "FailedBinding", NO_VOLUME)])
    said = f'storageclass.storage.k8s.io "{storage}" not found'
    return plan([Tell(claim, "ProvisioningFailed", said, warning=True)])
