"""Rules for a real API server: each applies to what it is for, and only there."""

from __future__ import annotations

from pathlib import Path

from tests.golden.facts import Key
from tests.golden.on_cluster import ON_CLUSTER
from tests.golden.test_wanted import why
from tests.golden.wanted import Context

ON_A_CLUSTER = Context(more=ON_CLUSTER)


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


def test_a_policy_need_not_write_out_what_a_sentence_is_about() -> None:
    key = Key("command", "kubectl patch workload w 0", "stderr")
    want = 'denied the request: spec.podSets.0: Invalid value: {"count": 3}: field is immutable'
    got = "policy 'p' denied request: spec.podSets.{}: Invalid value: field is immutable"
    assert why(key, want, got.format(0), context=ON_A_CLUSTER)
    assert not why(key, want, got.format(1), context=ON_A_CLUSTER)
    assert not why(key, want, "(nothing)", context=ON_A_CLUSTER)


def test_a_field_of_another_version_must_be_named_by_whoever_refuses_it() -> None:
    key = Key("command", "kubectl apply -f queue.yaml 0", "stderr")
    want = 'Error from server (BadRequest): strict decoding error: unknown field "spec.cohort"'
    got = 'p denied request: strict decoding error: unknown field "spec.{}"'
    assert why(key, want, got.format("cohort"), context=ON_A_CLUSTER)
    assert not why(key, want, got.format("colour"), context=ON_A_CLUSTER)


def test_only_the_older_version_may_show_the_newer_names() -> None:
    old = Key("section", "kubectl get clusterqueues.v1beta1.kueue.x-k8s.io cq -o yaml", "0.spec")
    new = Key("section", "kubectl get cq cq -o yaml", "0.spec")
    assert why(old, "pool", "(nothing)", ".cohort", context=ON_A_CLUSTER)
    assert why(old, "(nothing)", "pool", ".cohortName", context=ON_A_CLUSTER)
    assert not why(new, "pool", "(nothing)", ".cohortName", context=ON_A_CLUSTER)
    assert not why(old, "pool", "(nothing)", ".queueingStrategy", context=ON_A_CLUSTER)
    assert why(new, "4", 4, ".resourceGroups[].nominalQuota", context=ON_A_CLUSTER)
    assert not why(new, "4", 5, ".resourceGroups[].nominalQuota", context=ON_A_CLUSTER)


def test_a_new_nodes_taint_may_be_told_and_nothing_else_instead_of_silence() -> None:
    key = Key("event", "Pod default/lonely")
    got = {"reason": "FailedScheduling", "note": "0/1 nodes are available: 1 {}."}
    taint = {**got, "note": got["note"].format("node(s) had untolerated taint(s)")}
    assert why(key, "(nothing)", taint, context=ON_A_CLUSTER)
    other = {**got, "note": got["note"].format("Insufficient cpu")}
    assert not why(key, "(nothing)", other, context=ON_A_CLUSTER)
    assert not why(key, "Scheduled", taint, context=ON_A_CLUSTER)


def test_what_differs_on_a_cluster_stands_in_the_docs() -> None:
    docs = " ".join(
        (Path(__file__).parents[2] / "docs/reference/differences.md").read_text().split()
    )
    assert [rule.why for rule in ON_CLUSTER if rule.why not in docs.replace("**", "")] == []
