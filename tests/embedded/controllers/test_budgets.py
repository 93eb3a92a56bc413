"""PodDisruptionBudgets: how many may be missing, and what is said when nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from makeway.client.resource import Object
from makeway.embedded.controllers.budgets import reconcile
from makeway.embedded.controllers.plan import Patch, Plan, Tell
from tests.embedded.controllers.builders import NOW, pod


def budget(status: Object | None = None, **spec: Any) -> Object:
    selector = {"matchLabels": {"app": "db"}}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "db", "namespace": "a", "uid": "budget", "generation": 1},
        "spec": {"selector": selector, **spec},
        "status": status or {},
    }


def covered(count: int, *, ready: int, owner: str = "") -> list[Object]:
    pods = [pod(f"db-{n}", ready=n < ready) for n in range(count)]
    if owner:
        reference = {"kind": owner, "name": "db", "uid": "owner", "controller": True}
        for each in pods:
            each["metadata"]["ownerReferences"] = [reference]
    return pods


def allowed(plan: Plan) -> tuple[int, str]:
    (patch,) = [action for action in plan.actions if isinstance(action, Patch)]
    status = patch.body["status"]
    return status["disruptionsAllowed"], status["conditions"][0]["reason"]


def told(plan: Plan) -> list[str]:
    return [action.reason for action in plan.actions if isinstance(action, Tell)]


@pytest.mark.parametrize(
    ("spec", "ready", "may_miss"),
    [
        ({"minAvailable": 2}, 4, 2),
        ({"minAvailable": 2}, 2, 0),
        ({"minAvailable": 2}, 1, 0),
        ({"minAvailable": "50%"}, 4, 2),
        ({"minAvailable": "51%"}, 4, 1),
        ({"maxUnavailable": 1}, 4, 1),
        ({"maxUnavailable": 1}, 3, 0),
        ({"maxUnavailable": "25%"}, 4, 1),
        ({"maxUnavailable": 0}, 4, 0),
    ],
)
def test_what_may_be_missing_is_what_runs_beyond_what_must_stay(
    spec: Object, ready: int, may_miss: int
) -> None:
    pods = covered(4, ready=ready, owner="ReplicaSet")
    plan = reconcile(budget(**spec), pods, lambda _: 4, NOW)
    assert allowed(plan) == (may_miss, "SufficientPods" if may_miss else "InsufficientPods")
    assert told(plan) == []


def test_a_status_that_is_true_already_is_not_written_again() -> None:
    pods = covered(2, ready=2)
    first = reconcile(budget(minAvailable=1), pods, lambda _: None, NOW)
    (patch,) = first.actions
    assert isinstance(patch, Patch)
    again = budget(patch.body["status"], minAvailable=1)
    assert reconcile(again, pods, lambda _: None, NOW + 60).actions == []


def test_a_budget_that_covers_nobody_says_so() -> None:
    plan = reconcile(budget(minAvailable=1), [], lambda _: None, NOW)
    assert allowed(plan) == (0, "InsufficientPods")
    assert told(plan) == ["NoPods"]


def test_a_share_of_pods_without_an_owner_allows_nothing_and_says_why() -> None:
    plan = reconcile(budget(maxUnavailable=1), covered(3, ready=3), lambda _: None, NOW)
    assert allowed(plan) == (0, "InsufficientPods")
    assert told(plan) == ["UnmanagedPods"]


def test_an_owner_without_a_size_leaves_the_budget_unknown() -> None:
    pods = covered(3, ready=3, owner="Job")
    plan = reconcile(budget(maxUnavailable=1), pods, lambda _: None, NOW)
    assert allowed(plan) == (0, "SyncFailed")
    assert told(plan) == ["CalculateExpectedPodCountFailed"]
