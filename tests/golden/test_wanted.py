"""Rules about wanted differences: each applies to what it is for, and not to its neighbours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.apart import ABSENT, WAITS_FOR_NODES, Apart
from tests.golden.facts import Key
from tests.golden.recording import Json
from tests.golden.wanted import Context, reason, reasons

CONDITION = Key("condition", "Workload team/job-one-<h>", "QuotaReserved")
NOTHING = Context()
PREEMPTED = "Preempted by pod <uid Pod default/high> on node node-1"


def why(key: Key, want: object, got: object, path: str = "", context: Context = NOTHING) -> str:
    return reason(key, path, want, got, context)


def test_a_coarse_reason_may_become_a_granular_one_and_not_the_other_way_round() -> None:
    assert why(CONDITION, "Pending", "WaitingForQuota", ".reason")
    assert not why(CONDITION, "WaitingForQuota", "Pending", ".reason")
    assert not why(CONDITION, "Pending", "Nonsense", ".reason")


def test_a_preemption_message_may_say_more_and_nothing_else() -> None:
    more = "; preemptor: default/high (priority 1000 over 100); loss: 12 GPU-seconds"
    key = Key("event", "Pod default/low")
    assert why(key, PREEMPTED, PREEMPTED + more, ".note")
    assert not why(key, PREEMPTED, PREEMPTED.replace("node-1", "node-2") + more, ".note")
    assert not why(key, PREEMPTED, PREEMPTED + "; by the way", ".note")


@pytest.mark.parametrize("status", ["True", "Unknown"])
def test_only_a_waiting_workload_may_be_told_what_kueue_does_not_say(status: str) -> None:
    told = {"status": "False", "reason": "WaitingForQuota", "message": "2 more needed"}
    assert why(CONDITION, ABSENT, told)
    assert not why(CONDITION, ABSENT, told | {"status": status})


def waiting(name: str) -> Json:
    """A workload that waits here for nodes."""
    return {
        "metadata": {
            "namespace": "team",
            "name": f"job-{name}-<h>",
            "ownerReferences": [{"kind": "Job", "name": name, "uid": ""}],
        },
        "spec": {"queueName": "queue"},
        "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "reason": NODES}]},
    }


def refused(pod: str) -> Json:
    regarding = {"kind": "Pod", "namespace": "team", "name": pod}
    return {"regarding": regarding, "reason": "FailedScheduling", "note": "0/2 nodes are available"}


NODES = "WaitingForNodes"
DOOR = {"metadata": {"namespace": "team", "name": "queue"}, "spec": {"clusterQueue": "cq"}}
HERE = {"newEvents": [], "workloads": [waiting("tol")], "localQueues": [DOOR]}


def test_who_goes_apart_takes_only_its_own_along() -> None:
    apart = Apart()
    apart.step({"newEvents": [refused("tol-<r1>")], "workloads": [], "pods": []}, HERE)
    context = Context(apart=apart)
    mine = Key("order", "Job team/tol", "life")
    other = Key("order", "Job team/toll", "life")
    assert why(mine, "created, resumed", "created", context=context) == WAITS_FOR_NODES
    assert not why(other, "created, resumed", "created", context=context)


def test_who_waits_here_and_ran_there_is_wrong_and_not_apart() -> None:
    ran = {
        "metadata": {"namespace": "team", "name": "tol-<r1>"},
        "spec": {"nodeName": "node-1"},
    }
    apart = Apart()
    apart.step({"newEvents": [refused("tol-<r1>")], "workloads": [], "pods": [ran]}, HERE)
    life = Key("order", "Job team/tol", "life")
    assert not why(life, "created, resumed", "created", context=Context(apart=apart))


def test_queues_count_otherwise_by_exactly_those_who_went_apart() -> None:
    apart = Apart()
    apart.step({"newEvents": [refused("tol-<r1>")], "workloads": [], "pods": []}, HERE)
    context = Context(apart=apart)
    pending = Key("object", "ClusterQueue cq", "status.pendingWorkloads")
    assert why(pending, 2, 3, context=context) == WAITS_FOR_NODES
    assert not why(pending, 2, 4, context=context)


def test_an_event_more_is_wanted_only_where_kueue_gives_no_reason() -> None:
    event = Key("event", CONDITION.about)
    told = {"about": CONDITION.about, "reason": "WaitingForQuota", "note": "2 more needed"}
    said = {"status": "False", "reason": "Pending", "message": "3 more needed"}
    assert why(event, ABSENT, told)
    assert not why(event, ABSENT, told, context=Context(want={CONDITION: said}))
    same = said | {"message": "2 more needed"}
    assert why(event, ABSENT, told, context=Context(want={CONDITION: same}))


def test_only_who_has_its_node_in_the_end_may_be_silent_about_an_attempt() -> None:
    note = "0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible"
    told = {"about": "Pod team/one", "reason": "FailedScheduling", "note": note}
    placed = {Key("object", "Pod team/one", "spec.nodeName"): "node-1"}
    event = Key("event", "Pod team/one")
    assert why(event, told, ABSENT, context=Context(want=placed, got=placed))
    assert not why(event, told, ABSENT, context=Context(want=placed))


def test_every_rule_has_a_reason_of_its_own_and_names_no_situation() -> None:
    assert len(set(reasons())) == len(reasons())
    assert all(text.endswith(".") and "/" not in text for text in reasons())


def test_the_docs_show_every_rule() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/differences.md").read_text()
    assert [rule for rule in reasons() if f"- {rule}\n" not in page] == []
