"""What is remembered of an owner's work after it was evicted: how often, for whom, and how long its saves took.

Pods are recreated under new names, and so are the jobs of a CronJob: all of it is kept by whoever is at the top (`owner_of`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from makeway.model.workload import Workload


class Eviction(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    by: str = ""  # the owner of the work it fell for; "" where nobody knows


class Past(msgspec.Struct, frozen=True, kw_only=True):
    evictions: tuple[Eviction, ...] = ()  # oldest first
    save_s: float | None = None  # the longest that a save of its took; measured


History = Mapping[str, Past]


def owner_of(workload: Workload) -> str:
    return workload.top_owner or workload.owner_uid or workload.uid
