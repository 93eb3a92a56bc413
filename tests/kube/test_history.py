"""Who lost work when: from the records as they come, change and go."""

from __future__ import annotations

from typing import Any

import pytest

from makeway.kube.copy import LocalCopy
from makeway.kube.history import History
from tests.kube.board import (
    PREEMPTS,
    Board,
    containers,
    job,
    queue_board,
)

Object = dict[str, Any]


def record(name: str, owner: str, at: str, version: int, phase: str = "") -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": "n",
            "uid": name,
            "resourceVersion": str(version),
        },
        "spec": {"plannedAt": at, "victims": [{"workload": "n/w", "owner": owner}]},
        "status": {"phase": phase},
    }


def times(history: History) -> dict[str, tuple[float, ...]]:
    return {owner: tuple(e.at for e in past.evictions) for owner, past in history.past.items()}


def test_losses_add_up_by_owner_and_go_with_their_record() -> None:
    copy = LocalCopy()
    history = History(copy)
    second = record("b", "job", "1970-01-01T00:00:20Z", 1)
    copy.take("Preemption", second)
    copy.take("Preemption", record("a", "job", "1970-01-01T00:00:10Z", 2))
    copy.take("Preemption", record("c", "other", "1970-01-01T00:00:30Z", 3))
    assert times(history) == {"job": (10.0, 20.0), "other": (30.0,)}
    copy.drop("Preemption", second)
    assert times(history) == {"job": (10.0,), "other": (30.0,)}


def test_a_plan_of_which_nobody_was_told_is_no_loss() -> None:
    copy = LocalCopy()
    history = History(copy)
    copy.take("Preemption", record("a", "job", "1970-01-01T00:00:10Z", 1))
    copy.take("Preemption", record("a", "job", "1970-01-01T00:00:10Z", 2, "Planned"))
    assert times(history) == {}
    copy.take("Preemption", record("a", "job", "1970-01-01T00:00:10Z", 3, "Placed"))
    assert times(history) == {"job": (10.0,)}


# -- whose work it is ------------------------------------------------------------------------------------------------


def owned(obj: Object, kind: str, name: str) -> Object:
    above = {"kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}
    obj["metadata"]["ownerReferences"] = [above]
    return obj


async def test_the_next_run_of_a_cronjob_remembers_what_the_last_ones_lost() -> None:
    b = queue_board("4", nodes=1, **PREEMPTS)
    for run in (1, 2):
        b.put("Job", owned(job(f"night-{run}", "4"), "CronJob", "night"))
        await b.settle()
        await b.run_pods(f"night-{run}")
        b.put("Job", job(f"urgent-{run}", "4", priority="high"))
        await b.settle()
        assert b.condition(b.workload_of(f"night-{run}"), "Preempted")[0] == "True"
        for gone in (f"night-{run}", f"urgent-{run}"):
            b.patch("Job", f"default/{gone}", {"status": {"conditions": [COMPLETE]}})
        await b.stop_pods(f"night-{run}")

    b.put("Job", owned(job("night-3", "4"), "CronJob", "night"))
    await b.settle()
    await b.run_pods("night-3")
    b.put("Job", job("urgent-3", "4", priority="high"))
    await b.settle()

    assert b.condition(b.workload_of("night-3"), "Preempted")[0] == ""
    assert b.condition(b.workload_of("urgent-3"), "QuotaReserved")[0] == "False"


COMPLETE = {"type": "Complete", "status": "True", "reason": "CompletionsReached", "message": "done"}


@pytest.mark.parametrize(
    ("kind", "above", "whose"),
    [
        ("ReplicaSet", "web-5d8f", "Deployment/default/web"),  # every version has another one
        ("ReplicaSet", "web", "uid-web"),  # of nobody
        ("Model", "llama", "uid-llama"),
        ("Job", "night-1", "uid-night"),  # a run of a CronJob
    ],
)
async def test_history_is_kept_by_who_stands_at_the_top(kind: str, above: str, whose: str) -> None:
    b = Board()
    b.put("Job", owned({"metadata": {"name": "night-1", "uid": "uid-night-1"}}, "CronJob", "night"))
    made: Object = {
        "metadata": {"name": "one", "labels": {"pod-template-hash": "5d8f"}},
        "spec": {"containers": containers()},
    }
    b.put("Pod", owned(made, kind, above))
    await b.settle()
    found = b.cluster.projection.workload("default/one")
    assert found is not None
    assert found.top_owner == whose
