"""The write-ahead record: what goes in comes out again."""

from __future__ import annotations

from typing import Any

from makeway.kinds import preemption
from makeway.model.decision import Bind, Evict, Hold
from makeway.model.history import Eviction
from makeway.model.node import NodeName
from makeway.model.queue import FlavorName, QueueName
from makeway.model.reason import Reason
from makeway.model.workload import Admission, Assignment, Placed, PodId, WorkloadId

HOLD = Hold(
    workload=WorkloadId("team/train"),
    queue=QueueName("cq"),
    admission=Admission(
        queue=QueueName("cq"),
        assignments=(
            Assignment(
                pod_set="main",
                flavors=(("cpu", FlavorName("spot")),),
                usage=(("cpu", 2500),),
                count=2,
            ),
        ),
        reserved_at=0.0,
        admitted=False,
    ),
    placement=(Placed(pod_set="main", node=NodeName("n1"), count=2),),
    nominations=(Bind(pod=PodId("team/train-0"), node=NodeName("n1")),),
    victims=(WorkloadId("team/low"),),
    until=1_800_000_060.0,
    loss=12.5,
    rule="InClusterQueue",
)
EVICT = Evict(
    workload=WorkloadId("team/low"),
    pods=(PodId("team/low-0"),),
    preemptor=WorkloadId("team/train"),
    reason=Reason(kind="preempted", kueue="Preempted", rule="InClusterQueue"),
    loss=12.5,
    notice_s=30.0,
)


def record(attempt: int = 1) -> dict[str, object]:
    return preemption.compose(
        HOLD,
        [EVICT],
        attempt=attempt,
        preemptor_uid="uid-train",
        home="team",
        uids={"team/low": ("uid-low", "uid-owner")},
        pod_uids={"team/low-0": "uid-pod"},
        afterwards={"team/low": preemption.REQUEUED},
        now=1_800_000_000.0,
    )


def test_the_hold_survives_the_api() -> None:
    assert preemption.hold_from(record()) == HOLD


def test_so_do_the_evictions() -> None:
    assert preemption.evictions(record()) == [EVICT]


def test_a_closed_record_holds_nothing() -> None:
    assert preemption.hold_from(record() | {"status": {"phase": "Placed"}}) is None
    assert preemption.hold_from(record() | {"status": {"phase": "Draining"}}) is not None


def test_each_attempt_has_a_name_of_its_own_even_when_old_ones_are_gone() -> None:
    assert preemption.attempts([record(2)], "uid-train") == 2
    assert preemption.attempts([record(2)], "uid-other") == 0
    names = {preemption.preemption_name("uid-train", n) for n in range(1, 6)}
    assert len(names) == 5


def test_losses_count_unless_nobody_was_told() -> None:
    untold = record() | {"status": {"phase": "Planned"}}
    assert preemption.losses(untold) == []
    loss = Eviction(at=1_800_000_000.0, by="uid-train")
    assert preemption.losses(record()) == [("uid-owner", loss, None)]


def test_how_long_a_save_took_is_read_with_the_loss() -> None:
    measured = record() | {"status": {"phase": "Placed", "saveSeconds": {EVICT.workload: 31.5}}}
    assert [loss.save_s for loss in preemption.losses(measured)] == [31.5]


def test_an_open_record_covers_the_same_victims_only() -> None:
    other = Evict(
        workload=WorkloadId("team/else"), preemptor=WorkloadId("team/train"), reason=EVICT.reason
    )
    assert preemption.covers(record(), "team/train", [EVICT])
    assert not preemption.covers(record(), "team/train", [EVICT, other])
    assert not preemption.covers(record(), "team/somebody", [EVICT])


def test_several_in_one_object_come_apart_as_they_went_in() -> None:
    names = ("team/train", "team/eval", "team/sweep")
    records = [_asked_by(name) for name in names]
    whole = preemption.together(records)

    first, *others = preemption.apart(whole)

    assert [r["spec"]["preemptor"] for r in (first, *others)] == list(names)
    assert [r["spec"] for r in others] == [r["spec"] for r in records[1:]]
    assert all(preemption.hold_from(r) is not None for r in (first, *others))
    assert [preemption.is_part(r) for r in (first, *others)] == [False, True, True]


def test_a_word_on_one_of_several_is_a_word_on_their_object() -> None:
    whole = preemption.together([_asked_by("team/train"), _asked_by("team/eval")])
    part = preemption.apart(whole)[1]

    place, change = preemption.written(part, {"phase": "Placed"})

    assert place == whole["metadata"]["name"]
    closed = preemption.apart({**whole, "status": change})
    assert [preemption.is_open(r) for r in closed] == [True, False]


def test_one_alone_is_an_object_of_its_own() -> None:
    alone = _asked_by("team/train")
    assert preemption.together([alone]) is alone
    assert preemption.apart(alone) == [alone]
    assert preemption.written(alone, {"phase": "Placed"}) == (
        alone["metadata"]["name"],
        {"phase": "Placed"},
    )


def _asked_by(workload: str) -> dict[str, Any]:
    made: dict[str, Any] = record()
    return {**made, "spec": {**made["spec"], "preemptor": workload}}
