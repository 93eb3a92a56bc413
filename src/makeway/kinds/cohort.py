"""kueue.x-k8s.io Cohort."""

from __future__ import annotations

from makeway.kinds.fields import Json, name_of, spec_of, weight
from makeway.kinds.quotas import read_resource_groups
from makeway.model.queue import Cohort, CohortName


def read(obj: Json) -> Cohort:
    spec = spec_of(obj)
    parent = spec.get("parentName") or spec.get("parent")  # v1alpha1 called it parent
    return Cohort(
        name=CohortName(name_of(obj)),
        parent=CohortName(parent) if parent else None,
        resource_groups=read_resource_groups(obj),
        weight=weight(obj),
    )
