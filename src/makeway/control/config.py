"""The one configuration file: Kueue's `Configuration` as it is, with a `makeway:` section beside it.

Both of Kueue's versions are read. A field that nobody knows is an error with its path, so that a typing error never passes
for a choice. Kueue's fields that cannot matter here (ports, certificates, client limits) are accepted and do nothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from makeway.control.durations import duration
from makeway.engine import policy as engine
from makeway.engine.policy import DEFAULT_STRATEGIES, Policy, Strategy, VictimPolicy
from makeway.errors import UserError
from makeway.model.resources import amount_of

Any_ = Any  # a section that is accepted and not read


class _Section(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """A part of the file that people write."""


class RequeuingStrategy(_Section, frozen=True, kw_only=True):
    timestamp: Literal["Eviction", "Creation"] = "Eviction"
    backoff_limit_count: int | None = None
    backoff_base_seconds: int = 60
    backoff_max_seconds: int = 3600


class WaitForPodsReady(_Section, frozen=True, kw_only=True):
    enable: bool = True  # v1beta1 only
    timeout: str = "30m"
    recovery_timeout: str | None = None
    block_admission: bool | None = None
    requeuing_strategy: RequeuingStrategy = RequeuingStrategy()


class FairSharing(_Section, frozen=True, kw_only=True):
    enable: bool = True  # v1beta1 only
    preemption_strategies: tuple[Strategy, ...] = DEFAULT_STRATEGIES


class AdmissionFairSharing(_Section, frozen=True, kw_only=True):
    usage_half_life_time: str = "0s"  # as in Kueue, where it has to be said
    usage_sampling_interval: str = "5m"
    resource_weights: dict[str, float] = {}


class Transformation(_Section, frozen=True, kw_only=True):
    input: str
    strategy: Literal["Retain", "Replace"] = "Retain"
    multiply_by: str = ""
    outputs: dict[str, str] = {}


class Resources(_Section, frozen=True, kw_only=True):
    quota_check_strategy: Literal["BlockUndeclared", "IgnoreUndeclared"] = "BlockUndeclared"
    exclude_resource_prefixes: tuple[str, ...] = ()
    transformations: tuple[Transformation, ...] = ()
    device_class_mappings: Any_ = None


class Integrations(_Section, frozen=True, kw_only=True):
    frameworks: tuple[str, ...] = ()
    external_frameworks: tuple[str, ...] = ()
    label_keys_to_copy: tuple[str, ...] = ()
    pod_options: Any_ = None  # v1beta1 only


class Retention(_Section, frozen=True, kw_only=True):
    after_finished: str | None = None
    after_deactivated_by_kueue: str | None = None


class RetentionPolicies(_Section, frozen=True, kw_only=True):
    workloads: Retention = Retention()


class Makeway(_Section, frozen=True, kw_only=True):
    """What is ours."""

    victims: VictimPolicy = "least-loss"
    bands: tuple[tuple[int, int], ...] = ()  # lowest and highest priority of each band
    pdb: Literal["hard", "soft"] | None = None  # None: as the victim policy has it
    reserve_after: str = "1h"
    max_notice: str = "10m"
    cores_per_gpu: float = 16.0  # what a GPU is worth in cores, where losses are priced
    spread: bool = False  # emptiest nodes first, instead of packing
    max_protection: str = "30m"  # minimum runtimes count up to this
    preemptions_per_day: int | None = None  # of one workload; None: no limit
    evict_foreign: bool = False
    scheduler_names: tuple[str, ...] = ()  # empty: all of them
    quota_only: bool = False
    hold_after: str = "60s"  # a hold ends this long after the last victim had to be gone


class Configuration(_Section, frozen=True, kw_only=True):
    api_version: str = "config.kueue.x-k8s.io/v1beta2"
    kind: Literal["Configuration"] = "Configuration"
    manage_jobs_without_queue_name: bool = False
    managed_jobs_namespace_selector: dict[str, Any] | None = None
    wait_for_pods_ready: WaitForPodsReady = WaitForPodsReady()
    fair_sharing: FairSharing | None = None
    admission_fair_sharing: AdmissionFairSharing | None = None
    resources: Resources = Resources()
    integrations: Integrations = Integrations()
    object_retention_policies: RetentionPolicies = RetentionPolicies()
    feature_gates: dict[str, bool] = {}
    makeway: Makeway = Makeway()
    # Accepted, and without meaning here.
    namespace: str = ""
    manager: Any_ = None
    webhook: Any_ = None
    health: Any_ = None
    metrics: Any_ = None
    controller: Any_ = None
    leader_election: Any_ = None
    internal_cert_management: Any_ = None
    client_connection: Any_ = None
    visibility_server: Any_ = None
    queue_visibility: Any_ = None
    multi_kueue: Any_ = None
    tls: Any_ = None
    pprof_bind_address: Any_ = None
    resource_transformations: Any_ = None

    @property
    def waits_for_pods(self) -> bool:
        return self.wait_for_pods_ready.enable

    @property
    def blocks_admission(self) -> bool:
        """Nothing is admitted before all that was admitted is ready."""
        said = self.wait_for_pods_ready.block_admission
        return self.waits_for_pods and bool(said)

    def length(self, said: str | None, default_s: float) -> float:
        """A duration of this file, in seconds."""
        found = duration(said)
        return default_s if found is None else found


def load(path: Path) -> Configuration:
    try:
        text = path.read_text()
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    return parse(text, where=str(path))


def parse(text: str, *, where: str = "configuration") -> Configuration:
    try:
        said = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise UserError(f"is not YAML: {error}", where=where) from error
    try:
        config = msgspec.convert(said, Configuration)
        _check_durations(config)
        _check_counts(config)
        _check_weights(config)
        _check_factors(config)
        return config
    except msgspec.ValidationError as error:
        raise UserError(
            f"{error}.",
            where=where,
            hint="Write Kueue's Configuration, with what is ours under `makeway:`.",
        ) from error


def _check_durations(config: Configuration) -> None:
    kept = config.object_retention_policies.workloads
    written = {
        "$.waitForPodsReady.timeout": config.wait_for_pods_ready.timeout,
        "$.waitForPodsReady.recoveryTimeout": config.wait_for_pods_ready.recovery_timeout,
        "$.objectRetentionPolicies.workloads.afterFinished": kept.after_finished,
        "$.objectRetentionPolicies.workloads.afterDeactivatedByKueue": (
            kept.after_deactivated_by_kueue
        ),
        **_usage_durations(config),
        "$.makeway.reserveAfter": config.makeway.reserve_after,
        "$.makeway.maxNotice": config.makeway.max_notice,
        "$.makeway.maxProtection": config.makeway.max_protection,
        "$.makeway.holdAfter": config.makeway.hold_after,
    }
    for path, said in written.items():
        if said is not None and duration(said) is None:
            raise msgspec.ValidationError(
                f'Expected a duration such as "30m" or "90s", got "{said}" - at `{path}`'
            )


def _usage_durations(config: Configuration) -> dict[str, str]:
    said = config.admission_fair_sharing
    if said is None:
        return {}
    path = "$.admissionFairSharing"
    return {
        f"{path}.usageHalfLifeTime": said.usage_half_life_time,
        f"{path}.usageSamplingInterval": said.usage_sampling_interval,
    }


def _check_weights(config: Configuration) -> None:
    said = config.admission_fair_sharing
    if said is None:
        return
    if not duration(said.usage_sampling_interval):
        raise msgspec.ValidationError(
            f'Expected a duration above 0 such as "5m", got "{said.usage_sampling_interval}"'
            " - at `$.admissionFairSharing.usageSamplingInterval`"
        )
    for resource, weight in said.resource_weights.items():
        if not 0 <= weight < math.inf:
            raise msgspec.ValidationError(
                f"Expected a number of at least 0, got {weight}"
                f" - at `$.admissionFairSharing.resourceWeights.{resource}`"
            )


def _check_counts(config: Configuration) -> None:
    per_day = config.makeway.preemptions_per_day
    if per_day is not None and per_day < 1:
        raise msgspec.ValidationError(
            f"Expected a whole number of at least 1, got {per_day}; leave it out for no limit"
            " - at `$.makeway.preemptionsPerDay`"
        )


def _check_factors(config: Configuration) -> None:
    for i, rule in enumerate(config.resources.transformations):
        for name, factor in rule.outputs.items():
            try:
                amount_of(name, factor)
            except UserError as error:
                raise msgspec.ValidationError(
                    f'Expected a quantity such as "5Gi" or "2", got "{factor}"'
                    f" - at `$.resources.transformations[{i}].outputs.{name}`"
                ) from error


def notes(config: Configuration) -> list[str]:
    """What is written and does nothing here, each as a sentence: nobody should wait for its effect."""
    found = []
    usage = config.admission_fair_sharing
    if usage is not None and not config.feature_gates.get("AdmissionFairSharing", True):
        found.append(
            "admissionFairSharing does nothing while featureGates.AdmissionFairSharing is false."
        )
    elif usage is not None and not duration(usage.usage_half_life_time):
        found.append(
            "admissionFairSharing does nothing while usageHalfLifeTime is 0: what was used is forgotten at once, "
            'so that priority and age decide. Write for example "168h".'
        )
    if config.multi_kueue is not None:
        found.append("multiKueue does nothing here: makeway schedules one cluster.")
    if config.resources.device_class_mappings is not None:
        found.append(
            "resources.deviceClassMappings does nothing here: pods with resource claims wait."
        )
    return found


def policy_of(config: Configuration) -> Policy:
    """The engine's half of the configuration."""
    fair = config.fair_sharing
    ours = config.makeway
    gate = config.feature_gates.get
    return Policy(
        victims=ours.victims,
        quota_only=ours.quota_only,
        fair_sharing=fair is not None and fair.enable,
        fair_strategies=fair.preemption_strategies if fair is not None else DEFAULT_STRATEGIES,
        usage_order=_usage_order(config),
        requeuing_timestamp=config.wait_for_pods_ready.requeuing_strategy.timestamp,
        fair_preempts_within_nominal=gate("FairSharingPreemptWithinNominal", True),
        fair_prefers_non_borrowing=gate("FairSharingPrioritizeNonBorrowing", True),
        priority_within_cohort=gate("PrioritySortingWithinCohort", True),
        preemptors_first=gate("PrioritizePreemptorWorkloads", False),
        partial_admission=gate("PartialAdmission", True),
        recompute_overlaps=gate("RecomputeAssignmentUponPreemptionTargetsOverlap", True),
        ignore_undeclared=config.resources.quota_check_strategy == "IgnoreUndeclared",
        excluded_prefixes=config.resources.exclude_resource_prefixes,
        transformations=tuple(map(_transformation, config.resources.transformations)),
        bands=ours.bands,
        evict_foreign=ours.evict_foreign,
        budgets_soft=ours.pdb == "soft",
        cores_per_gpu=ours.cores_per_gpu,
        spread=ours.spread,
        hold_s=config.length(ours.hold_after, 60.0),
        max_notice_s=config.length(ours.max_notice, 600.0),
        max_protection_s=config.length(ours.max_protection, 1800.0),
        preemptions_per_day=ours.preemptions_per_day,
        reserve_after_s=config.length(ours.reserve_after, 3600.0),
    )


def _usage_order(config: Configuration) -> engine.UsageOrder | None:
    said = config.admission_fair_sharing
    if said is None or not config.feature_gates.get("AdmissionFairSharing", True):
        return None
    return engine.UsageOrder(
        half_life_s=config.length(said.usage_half_life_time, 0.0),
        sampling_s=config.length(said.usage_sampling_interval, 300.0),
        weights=tuple(sorted(said.resource_weights.items())),
    )


def _transformation(said: Transformation) -> engine.Transformation:
    return engine.Transformation(
        input=said.input,
        outputs=tuple((name, amount_of(name, factor)) for name, factor in said.outputs.items()),
        replaces=said.strategy == "Replace",
        multiply_by=said.multiply_by or None,
    )
