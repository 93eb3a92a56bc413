"""Why a pod has no node, word by word as recorded."""

from __future__ import annotations

from makeway.kube import words
from makeway.model.reason import NodeVerdict, Reason, Shortage


def verdicts(**causes: int) -> tuple[NodeVerdict, ...]:
    return tuple(NodeVerdict(cause=cause.replace("_", " "), count=n) for cause, n in causes.items())


SHORT = Reason(kind="no-nodes-fit", verdicts=verdicts(Insufficient_cpu=2), nodes_total=2)


def test_causes_are_sorted_as_text() -> None:
    mixed = Reason(kind="no-nodes-fit", verdicts=verdicts(b_cause=1, a_cause=2), nodes_total=12)
    assert words.fit_error(mixed) == "0/12 nodes are available: 1 b cause, 2 a cause."


def test_who_waits_for_victims_says_only_what_is_short() -> None:
    reason = Reason(
        kind="waiting-for-victims", verdicts=verdicts(Insufficient_cpu=2), nodes_total=2
    )
    assert (
        words.unschedulable(reason, "default-scheduler")
        == "0/2 nodes are available: 2 Insufficient cpu."
    )
    assert words.unschedulable(reason, "default-scheduler", draining=True).endswith(
        "preemption: not eligible due to a terminating pod on the nominated node."
    )


def test_koordinator_has_its_own_words() -> None:
    reason = Reason(
        kind="no-nodes-fit",
        verdicts=verdicts(Insufficient_cpu=2),
        nodes_total=2,
        even_after=(NodeVerdict(cause="No preemption victims found for incoming pod", count=2),),
    )
    assert words.unschedulable(reason, "koord-scheduler") == (
        "0/2 nodes are available: 2 Insufficient cpu. preemption: "
        "0/2 nodes are available: 2 no potential victims."
    )
    assert words.unschedulable(reason, "default-scheduler") == (
        "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: "
        "0/2 nodes are available: 2 No preemption victims found for incoming pod."
    )


def test_a_queued_workload_hears_how_many_of_its_pods_would_fit() -> None:
    lack = Shortage(resource="pods", missing=1, requested=4, free=3)
    reason = Reason(kind="no-nodes-fit", verdicts=SHORT.verdicts, nodes_total=2, shortages=(lack,))
    assert words.waiting(reason) == (
        "The quota is there, the nodes are not (3 of 4 pods would fit): "
        "0/2 nodes are available: 2 Insufficient cpu."
    )
