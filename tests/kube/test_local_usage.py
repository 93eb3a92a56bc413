"""What local queues have used: measured, written to their status, and read from there by whoever decides next."""

from __future__ import annotations

import pytest

from makeway.kinds.metadata import Object
from makeway.model.resources import number_of
from tests.kube.board import START, Board, job, local_queue, queue_board

HALF_AN_HOUR = "admissionFairSharing: {usageHalfLifeTime: 30m, usageSamplingInterval: 5m}"
BY_USAGE = {"admissionMode": "UsageBasedAdmissionFairSharing"}


def shared(config: str = HALF_AN_HOUR, cpu: str = "4") -> Board:
    """Doors `queue` and `other` lead to one queue."""
    b = queue_board(cpu=cpu, config=config, admissionScope=BY_USAGE)
    b.put("LocalQueue", local_queue("other"))
    return b


def usage(b: Board, door: str = "queue") -> Object:
    found: Object = b.get("LocalQueue", f"default/{door}")["status"].get("fairSharing") or {}
    return found


def consumed(b: Board, door: str = "queue") -> float:
    return number_of(usage(b, door)["admissionFairSharingStatus"]["consumedResources"]["cpu"])


def from_other(name: str, cpu: str) -> Object:
    made = job(name, cpu)
    made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "other"
    return made


async def test_a_door_says_what_came_through_it_from_its_first_moment_on() -> None:
    b = shared()
    await b.settle()
    assert usage(b) == {
        "weightedShare": 0,
        "admissionFairSharingStatus": {
            "consumedResources": {},
            "lastUpdate": "2027-01-15T08:00:00Z",
        },
    }

    b.put("Job", job("train", "4"))
    await b.settle()
    await b.wait(2)

    penalty = 4 * (1 - 0.5 ** (5 / 30))
    assert consumed(b) == pytest.approx(penalty, rel=0.01)
    assert usage(b)["weightedShare"] == 1

    await b.wait(1800)
    assert consumed(b) == pytest.approx(penalty / 2 + 4 / 2, rel=0.01)


async def test_it_is_written_when_somebody_got_in_and_every_interval_and_not_more_often() -> None:
    b = shared(cpu="100")
    await b.settle()
    for number in range(20):
        b.put("Job", job(f"j{number}", "100m"))
        await b.loop.once()
    await b.settle()
    await b.wait(2)
    await b.settle()
    counted = len([line for line in b.api.log if line == "patch LocalQueue queue"])
    assert counted <= 8

    for _ in range(9):
        await b.wait(60)
    again = len([line for line in b.api.log if line == "patch LocalQueue queue"])
    assert 1 <= again - counted <= 2


async def test_nothing_is_written_where_it_is_off_for_the_queue_or_for_all() -> None:
    for b in (
        shared(config=""),
        shared(config=f"{HALF_AN_HOUR}\nfeatureGates: {{AdmissionFairSharing: false}}"),
        queue_board(config=HALF_AN_HOUR),
    ):
        b.put("Job", job("train", "2"))
        await b.settle()
        await b.wait(400)
        assert usage(b) == {}


async def test_another_replica_goes_on_from_what_is_written() -> None:
    b = shared()
    b.put("Job", job("train", "4"))
    await b.settle()
    await b.wait(1800)
    b.patch("Job", "default/train", {"status": {"conditions": [_complete()]}})
    await b.settle()
    await b.wait(10)
    before = consumed(b)

    fresh = b.restarted()
    fresh.put("Job", job("mine", "4"))
    fresh.clock.time += 1
    fresh.put("Job", from_other("theirs", "4"))
    await fresh.settle()

    assert consumed(fresh) == pytest.approx(before, rel=0.01)
    assert fresh.condition(fresh.workload_of("theirs"), "Admitted")[0] == "True"
    assert fresh.condition(fresh.workload_of("mine"), "QuotaReserved")[0] == "False"


def _complete() -> Object:
    return {
        "type": "Complete",
        "status": "True",
        "lastTransitionTime": "2027-01-15T08:30:00Z",
    }


async def test_what_kueue_wrote_counts() -> None:
    b = shared()
    written = {
        "weightedShare": 0,
        "admissionFairSharingStatus": {
            "consumedResources": {"cpu": "31999m", "memory": "12884901888"},
            "lastUpdate": "2027-01-15T08:00:00Z",
        },
    }
    b.patch("LocalQueue", "default/queue", {"status": {"fairSharing": written}})
    b.put("Job", job("mine", "4"))
    b.put("Job", from_other("theirs", "4"))
    await b.settle()
    assert b.condition(b.workload_of("theirs"), "Admitted")[0] == "True"


async def test_a_door_that_is_made_anew_starts_from_nothing() -> None:
    b = shared()
    b.put("Job", job("train", "4"))
    await b.settle()
    await b.wait(600)
    assert consumed(b) > 0.5
    b.drop("Job", "default/train")
    b.drop("Workload", "default/" + b.workload_of("train")["metadata"]["name"])
    b.drop("LocalQueue", "default/queue")
    b.put("LocalQueue", local_queue())
    await b.settle()
    await b.wait(2)
    assert usage(b)["admissionFairSharingStatus"]["consumedResources"] == {}


async def test_what_nobody_can_read_is_named_and_keeps_nobody_else() -> None:
    b = shared()
    strange = {"consumedResources": {"cpu": "lots"}, "lastUpdate": "2027-01-15T08:00:00Z"}
    status = {"status": {"fairSharing": {"admissionFairSharingStatus": strange}}}
    b.put("LocalQueue", local_queue("strange") | status)
    b.put("Job", job("train", "4"))
    await b.settle()
    assert b.condition(b.workload_of("train"), "Admitted")[0] == "True"
    (fault,) = b.cluster.projection.faults.values()
    assert "LocalQueue default/strange" in fault
    assert "consumedResources[cpu]" in fault
    assert b.clock.now() >= START


async def test_a_queue_that_asks_for_what_is_not_configured_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    b = shared(config="")
    b.put("Job", job("train", "4"))
    await b.settle()
    await b.wait(60)
    said = [r.getMessage() for r in caplog.records if "admissionFairSharing" in r.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("ClusterQueue cq asks for UsageBasedAdmissionFairSharing")
