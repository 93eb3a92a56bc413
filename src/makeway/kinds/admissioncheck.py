"""kueue.x-k8s.io AdmissionCheck."""

from __future__ import annotations

from makeway.kinds.fields import Json, condition, name_of, spec_of
from makeway.model.queue import AdmissionCheck


def read(obj: Json) -> AdmissionCheck:
    active = condition(obj, "Active")
    return AdmissionCheck(
        name=name_of(obj),
        controller=str(spec_of(obj).get("controllerName") or ""),
        active=active is not None and active.get("status") == "True",
    )
