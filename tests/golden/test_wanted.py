"""Rules about wanted differences: each applies to what it is for, and not to its neighbours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.facts import Key
from tests.golden.wanted import ABSENT, ON_CLUSTER, Context, reason, reasons

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


def test_who_goes_apart_takes_only_its_own_along() -> None:
    apart = Context(apart={"team/tol": "it waits for nodes"})
    mine = Key("order", "Job team/tol", "life")
    other = Key("order", "Job team/toll", "life")
    assert why(mine, "created, resumed", "created", context=apart) == "it waits for nodes"
    assert not why(other, "created, resumed", "created", context=apart)


def test_every_rule_has_a_reason_of_its_own_and_names_no_situation() -> None:
    assert len(set(reasons())) == len(reasons())
    assert all(text.endswith(".") and "/" not in text for text in reasons())


ON_A_CLUSTER = Context(on_cluster=True)


def test_on_a_cluster_only_the_name_of_the_scheduler_may_differ() -> None:
    key = Key("object", "Pod team/one", "spec.schedulerName")
    assert why(key, "default-scheduler", "makeway", context=ON_A_CLUSTER)
    assert not why(key, "default-scheduler", "makeway")
    assert not why(key, "default-scheduler", "another", context=ON_A_CLUSTER)


def test_a_refusal_of_a_policy_must_say_the_sentence_of_the_webhook() -> None:
    key = Key("command", "kubectl apply -f job.yaml 0", "stderr")
    want = 'Error: admission webhook "mjob.kb.io" denied the request: 3: should be between 0 and 2'
    got = "The jobs is invalid: : ValidatingAdmissionPolicy 'p' with binding 'p' denied request: 3: should be between 0 and "
    assert why(key, want, got + "2", context=ON_A_CLUSTER)
    assert not why(key, want, got + "9", context=ON_A_CLUSTER)


def test_what_differs_on_a_cluster_stands_in_the_docs() -> None:
    docs = " ".join(
        (Path(__file__).parents[2] / "docs/reference/differences.md").read_text().split()
    )
    assert [rule.why for rule in ON_CLUSTER if rule.why not in docs.replace("**", "")] == []
