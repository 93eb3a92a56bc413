"""PodDisruptionBudgets: how many of the pods that a budget covers may be missing now.

Whoever evicts asks the budget's status. Where the budget is a whole number of pods that must stay, the pods themselves are
counted; a share, or a number that may be missing, is a share of what the pods' owners want to have, so pods without an owner
and owners without a size make it unknown. Unknown means that nobody may be disturbed, and an event says why.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from makeway.client.resource import POD_DISRUPTION_BUDGETS, Object
from makeway.embedded.controllers.apply import Applier
from makeway.embedded.controllers.making import share_of
from makeway.embedded.controllers.plan import Patch, Plan, Tell, merge_patch, plan
from makeway.embedded.mirror import Mirror
from makeway.embedded.objects import (
    controller_ref,
    deleted,
    name_of,
    namespace_of,
    phase,
    ready,
    status_of,
    with_condition,
)
from makeway.embedded.workqueue import WorkQueue
from makeway.kinds.labels import read_selector
from makeway.model.selectors import LabelSelector

# Pods come and go in numbers; one status for many changes.
GATHER_S = 0.02

SizeOf = Callable[[Object], int | None]  # how many pods a controller wants to have


class UnknownSize(Exception):
    """An owner does not say how many pods it wants to have."""


def reconcile(budget: Object, pods: Sequence[Object], size_of: SizeOf, now: float) -> Plan:
    """`pods` are those that the budget covers."""
    healthy = sum(ready(pod) and not deleted(pod) for pod in pods)
    tell = _remarks(budget, pods)
    try:
        expected, desired = _wanted(budget["spec"], pods, size_of)
    except UnknownSize as why:
        tell.append(Tell(budget, "CalculateExpectedPodCountFailed", str(why), warning=True))
        status = _status(budget, 0, 0, healthy, now, failure=str(why))
    else:
        status = _status(budget, expected, desired, healthy, now)
    change = merge_patch(status_of(budget), status)
    if not change:
        return Plan()
    return plan([Patch(POD_DISRUPTION_BUDGETS, budget, {"status": change}, "status")], tell)


def _remarks(budget: Object, pods: Sequence[Object]) -> list[Tell]:
    if not pods:
        return [Tell(budget, "NoPods", "No matching pods found")]
    alone = [name_of(pod) for pod in pods if controller_ref(pod) is None]
    if alone and not _counts_pods(budget["spec"]):
        said = (
            f"No owner says how many pods like {alone[0]} there should be, so they do not count."
            ' With such pods set ".spec.minAvailable" to a whole number.'
        )
        return [Tell(budget, "UnmanagedPods", said, warning=True)]
    return []


def _counts_pods(spec: Object) -> bool:
    return spec.get("maxUnavailable") is None and not isinstance(spec.get("minAvailable"), str)


def _wanted(spec: Object, pods: Sequence[Object], size_of: SizeOf) -> tuple[int, int]:
    """How many pods there should be, and how many of them must stay."""
    least, most_missing = spec.get("minAvailable"), spec.get("maxUnavailable")
    if _counts_pods(spec):
        return len(pods), int(least if least is not None else 1)
    expected = _sizes(pods, size_of)
    if most_missing is not None:
        return expected, max(0, expected - share_of(most_missing, expected))
    return expected, share_of(least or 0, expected)


def _sizes(pods: Sequence[Object], size_of: SizeOf) -> int:
    owners: dict[str, int] = {}
    for pod in pods:
        owner = controller_ref(pod)
        if owner is None:
            continue
        size = size_of(pod)
        if size is None:
            raise UnknownSize(
                "Failed to calculate the number of expected pods:"
                f" {owner['kind']} {owner['name']} does not implement the scale subresource"
            )
        owners[str(owner["uid"])] = size
    return sum(owners.values())


def _status(
    budget: Object, expected: int, desired: int, healthy: int, now: float, failure: str = ""
) -> Object:
    allowed = max(0, healthy - desired) if expected else 0
    reason = "SyncFailed" if failure else "SufficientPods" if allowed else "InsufficientPods"
    known = status_of(budget)
    return {
        **known,
        "observedGeneration": budget["metadata"].get("generation", 1),
        "expectedPods": expected,
        "desiredHealthy": desired,
        "currentHealthy": healthy,
        "disruptionsAllowed": allowed,
        "conditions": with_condition(
            known.get("conditions") or [],
            "DisruptionAllowed",
            status="True" if allowed else "False",
            reason=reason,
            message=failure,
            now=now,
        ),
    }


class BudgetKeeper:
    """Looks at a budget when it changes, or one of the pods that it covers."""

    def __init__(
        self,
        budgets: Mirror,
        pods: Mirror,
        applier: Applier,
        size_of: SizeOf,
        now: Callable[[], float],
    ) -> None:
        self._budgets, self._pods = budgets, pods
        self._applier, self._size_of, self._now = applier, size_of, now
        self._queue = WorkQueue("disruption-controller", workers=4)
        # Read once for each budget: every pod is held against all of them.
        self._covered: dict[tuple[str, str], LabelSelector | None] = {}
        budgets.listen(self._on_budget)
        pods.listen(self._on_pod)

    async def run(self) -> None:
        await self._queue.run(self._look)

    def _on_budget(self, event: str, budget: Object) -> None:
        if event == "DELETED":
            self._covered.pop(_key(budget), None)
        else:
            self._covered[_key(budget)] = read_selector(budget["spec"].get("selector"))
        self._queue.add(_key(budget))

    def _on_pod(self, _: str, pod: Object) -> None:
        for key in self._covered:
            if self._covers(key, pod):
                self._queue.add_in(key, GATHER_S)

    async def _look(self, key: Hashable) -> None:
        assert isinstance(key, tuple)
        budget = self._budgets.objects.get(key)
        if budget is None or deleted(budget):
            return
        covered = [pod for pod in self._pods.all() if self._covers(key, pod)]
        await self._applier.apply(reconcile(budget, covered, self._size_of, self._now()))

    def _covers(self, key: tuple[str, str], pod: Object) -> bool:
        """None is no pods, an empty selector is all of the namespace; what has ended needs no budget."""
        if namespace_of(pod) != key[0] or phase(pod) in ("Succeeded", "Failed"):
            return False
        selector = self._covered.get(key)
        return selector is not None and selector.matches(pod["metadata"].get("labels") or {})


def _key(obj: Object) -> tuple[str, str]:
    return namespace_of(obj), name_of(obj)
