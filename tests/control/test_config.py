"""One file: Kueue's Configuration as it is, with ours beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from makeway.control.config import load, notes, parse, policy_of
from makeway.errors import UserError

KUEUE = """
apiVersion: config.kueue.x-k8s.io/v1beta1
kind: Configuration
health: {healthProbeBindAddress: ":8081"}
manageJobsWithoutQueueName: true
waitForPodsReady:
  enable: true
  timeout: 5m
  blockAdmission: true
  requeuingStrategy: {timestamp: Creation, backoffLimitCount: 5}
integrations: {frameworks: ["batch/job", "pod"]}
fairSharing: {enable: true, preemptionStrategies: [LessThanInitialShare]}
resources: {quotaCheckStrategy: IgnoreUndeclared}
makeway:
  victims: kueue
  bands: [[0, 999], [1000, 1999]]
  pdb: soft
  reserveAfter: 30m
"""


def test_kueues_file_is_read_as_it_is() -> None:
    config = parse(KUEUE)
    assert config.blocks_admission
    assert config.manage_jobs_without_queue_name
    policy = policy_of(config)
    assert (policy.victims, policy.fair_sharing, policy.fair_strategies) == (
        "kueue",
        True,
        ("LessThanInitialShare",),
    )
    assert policy.requeuing_timestamp == "Creation"
    assert policy.ignore_undeclared
    assert policy.bands == ((0, 999), (1000, 1999))
    assert (policy.budgets_soft, policy.reserve_after_s) == (True, 1800.0)


def test_what_quota_counts_and_which_gates_are_open_reaches_the_engine() -> None:
    policy = policy_of(
        parse("""
resources:
  excludeResourcePrefixes: [example.com/]
  transformations:
    - {input: nvidia.com/mig-1g.5gb, strategy: Replace, outputs: {example.com/gpu-memory: 5Gi}}
featureGates: {PartialAdmission: false, PrioritySortingWithinCohort: false}
""")
    )
    assert policy.excluded_prefixes == ("example.com/",)
    (rule,) = policy.transformations
    assert (rule.input, rule.replaces, rule.multiply_by) == ("nvidia.com/mig-1g.5gb", True, None)
    assert rule.outputs == (("example.com/gpu-memory", 5 * 2**30),)
    assert (policy.partial_admission, policy.priority_within_cohort) == (False, False)


def test_what_does_nothing_here_is_said() -> None:
    assert notes(parse("")) == []
    assert notes(parse("admissionFairSharing: {usageHalfLifeTime: 168h}")) == []
    (note,) = notes(parse("admissionFairSharing: {usageSamplingInterval: 1m}"))
    assert note.startswith("admissionFairSharing does nothing while usageHalfLifeTime is 0")
    off = "{usageHalfLifeTime: 168h}\nfeatureGates: {AdmissionFairSharing: false}"
    (note,) = notes(parse(f"admissionFairSharing: {off}"))
    assert "featureGates.AdmissionFairSharing is false" in note


def test_admission_fair_sharing_is_read_as_kueue_writes_it() -> None:
    rule = policy_of(
        parse("""
admissionFairSharing:
  usageHalfLifeTime: 168h
  resourceWeights: {nvidia.com/gpu: 100, cpu: 0}
""")
    ).usage_order
    assert rule is not None
    assert (rule.half_life_s, rule.sampling_s) == (168 * 3600.0, 300.0)
    assert rule.weights == (("cpu", 0.0), ("nvidia.com/gpu", 100.0))
    assert policy_of(parse("")).usage_order is None
    gated = (
        "admissionFairSharing: {usageHalfLifeTime: 1h}\nfeatureGates: {AdmissionFairSharing: false}"
    )
    assert policy_of(parse(gated)).usage_order is None


def test_an_empty_file_is_kueues_defaults() -> None:
    config = parse("")
    assert config.waits_for_pods
    assert not config.blocks_admission
    assert policy_of(config).victims == "least-loss"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("makeway: {victim: kueue}", "$.makeway"),
        (
            "resources: {transformations: [{input: a/b, outputs: {c/d: many}}]}",
            "$.resources.transformations[0].outputs.c/d",
        ),
        ("makeway: {victims: cheapest}", "$.makeway.victims"),
        ("waitForPodsReady: {timeout: soon}", "$.waitForPodsReady.timeout"),
        ("waitForPodsReady: {requeuingStrategy: {backoffLimitCount: many}}", "backoffLimitCount"),
        ("queues: []", "queues"),
        (
            "admissionFairSharing: {usageHalfLifeTime: soon}",
            "$.admissionFairSharing.usageHalfLifeTime",
        ),
        (
            "admissionFairSharing: {usageSamplingInterval: 0s}",
            "$.admissionFairSharing.usageSamplingInterval",
        ),
        (
            "admissionFairSharing: {resourceWeights: {cpu: -1}}",
            "$.admissionFairSharing.resourceWeights.cpu",
        ),
        ("admissionFairSharing: {halfLife: 1h}", "$.admissionFairSharing"),
    ],
)
def test_a_mistake_is_named_with_its_path(text: str, path: str) -> None:
    with pytest.raises(UserError) as told:
        parse(text, where="config.yaml")
    assert path in str(told.value)
    assert str(told.value).startswith("config.yaml: ")


def test_what_is_no_yaml_and_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not YAML"):
        parse("a: [")
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "absent.yaml")
