"""Who lost work when: from the records as they come, change and go."""

from __future__ import annotations

from typing import Any

from makeway.kube.copy import LocalCopy
from makeway.kube.history import History

Object = dict[str, Any]


def record(name: str, owner: str, at: str, version: int, phase: str = "") -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": "n",
            "uid": name,
            "resourceVersion": str(version),
        },
        "spec": {"plannedAt": at, "victims": [{"workload": "n/w", "ownerUID": owner}]},
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
