"""What `makeway jobs queue` says of a job, in SkyPilot's words."""

from __future__ import annotations

from typing import Any

import pytest

from makeway.cli.jobs import _length, _managed

Object = dict[str, Any]
NOW = 1_800_000_100.0


def job(*conditions: str, deleted: bool = False) -> Object:
    metadata: Object = {
        "name": "low-1",
        "namespace": "default",
        "creationTimestamp": "2027-01-15T08:00:00Z",
        "labels": {"makeway.dev/cluster": "low", "makeway.dev/job-id": "1"},
        "annotations": {"makeway.dev/requested": "1x[T4:4]"},
    }
    if deleted:
        metadata["deletionTimestamp"] = "2027-01-15T08:01:00Z"
    written = [
        {"type": kind, "status": "True", "lastTransitionTime": "2027-01-15T08:01:00Z"}
        for kind in conditions
    ]
    return {"metadata": metadata, "status": {"conditions": written}}


def pod(phase: str, why: str = "", *, leaving: bool = False) -> Object:
    conditions = [{"type": "PodScheduled", "status": "False", "message": why}] if why else []
    metadata = {"deletionTimestamp": "x"} if leaving else {}
    return {"metadata": metadata, "status": {"phase": phase, "conditions": conditions}}


def workload(*, evictions: int = 0, why: str = "") -> Object:
    status: Object = {"schedulingStats": {"evictions": [{"count": evictions}] if evictions else []}}
    if why:
        status["conditions"] = [{"type": "QuotaReserved", "status": "False", "message": why}]
    return {"status": status}


@pytest.mark.parametrize(
    ("found", "pods", "queued", "status", "why"),
    [
        (job(), [], workload(why="2 more needed"), "PENDING", "2 more needed"),
        (job(), [pod("Pending")], workload(), "STARTING", ""),
        (job(), [pod("Pending", "no node")], None, "PENDING", "no node"),
        (job(), [pod("Running")], workload(), "RUNNING", ""),
        (job(), [pod("Running", leaving=True)], workload(evictions=1), "RECOVERING", ""),
        (job(), [], workload(evictions=1, why="waits"), "RECOVERING", "waits"),
        (job(), [pod("Running")], workload(evictions=1), "RUNNING", ""),
        (job("Complete"), [pod("Succeeded")], workload(), "SUCCEEDED", ""),
        (job("Failed"), [pod("Failed")], workload(evictions=2), "FAILED", ""),
        (job(deleted=True), [pod("Running")], workload(), "CANCELLING", ""),
    ],
)
def test_the_status_of_a_job(
    found: Object, pods: list[Object], queued: Object | None, status: str, why: str
) -> None:
    row = _managed(found, pods, queued, 0, NOW)

    assert (row.status, row.why) == (status, why)


def test_a_job_without_a_queue_recovers_from_its_nodes() -> None:
    row = _managed(job(), [pod("Pending", "no node")], None, 1, NOW)

    assert (row.status, row.recoveries, row.why) == ("RECOVERING", 1, "no node")


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5s"), (65, "1m 5s"), (3725, "1h 2m"), (-1, "0s")]
)
def test_lengths_of_time_as_skypilot_writes_them(seconds: float, text: str) -> None:
    assert _length(seconds) == text
