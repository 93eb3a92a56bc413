"""Kueue's kinds: defaults, the rules of their definitions (422) and those of their webhooks
(403).
"""

from __future__ import annotations

from typing import Any

from makeway.kinds.serving import quantity
from makeway.kinds.serving.kind import Context, Rules
from makeway.kinds.serving.names import (
    labels_causes,
    metadata_causes,
    qualified_name_problems,
    subdomain_problems,
)
from makeway.kinds.serving.own_schemas import KUEUE
from makeway.kinds.serving.refusal import (
    Cause,
    Obj,
    Refusal,
    bare_invalid,
    duplicate,
    invalid_value,
    unsupported,
    webhook_denied,
)
from makeway.kinds.serving.structure import structural_causes

IN_USE = "kueue.x-k8s.io/resource-in-use"
_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def _guard(obj: Obj) -> None:
    """Queues and flavors may only go when nothing uses them any more."""
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if IN_USE not in finalizers:
        finalizers.append(IN_USE)


class _KueueRules(Rules):
    definition = ""
    webhook = ""
    has_rules = True

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, subdomain_problems)
        causes += structural_causes(
            f"{KUEUE}.v1beta2.{self.definition}", obj, has_rules=self.has_rules
        )
        if not causes:
            causes = self.rules(obj)
        return causes

    def rules(self, obj: Obj) -> list[Cause]:
        """What the definition itself says beyond its structure (CEL in the original)."""
        return []

    def webhook_causes(self, obj: Obj) -> list[Cause]:
        return []

    def create(self, obj: Obj, context: Context) -> None:
        self._ask_webhook(obj)

    def update(self, new: Obj, old: Obj, context: Context) -> None:
        if not new["metadata"].get("deletionTimestamp"):
            self._ask_webhook(new)

    def _ask_webhook(self, obj: Obj) -> None:
        # The definition is checked before webhooks are asked, so its refusals come first.
        if self.webhook and not self.validate(obj):
            causes = self.webhook_causes(obj)
            if causes:
                raise webhook_denied(self.webhook, causes)


def _groups(obj: Obj) -> list[Obj]:
    groups: list[Obj] = (obj.get("spec") or {}).get("resourceGroups") or []
    return groups


def _canonical_quotas(obj: Obj, webhook: str) -> None:
    try:
        for group in _groups(obj):
            for flavor in group.get("flavors") or []:
                for resource in flavor.get("resources") or []:
                    for field in ("nominalQuota", "borrowingLimit", "lendingLimit"):
                        if resource.get(field) is not None:
                            resource[field] = quantity.canonical(resource[field])
        sharing = (obj.get("spec") or {}).get("fairSharing")
        if isinstance(sharing, dict) and sharing.get("weight") is not None:
            sharing["weight"] = quantity.canonical(sharing["weight"])
    except quantity.NotAQuantityError as error:
        message = f'admission webhook "{webhook}" denied the request: {error}'
        raise Refusal(400, "", message) from error


def _group_causes(obj: Obj, *, parent: str, word: str, lend_at_most_nominal: bool) -> list[Cause]:
    """Quota numbers and names over all resource groups, in the order in which Kueue reports
    them.
    """
    causes: list[Cause] = []
    seen_resources: set[str] = set()
    seen_flavors: set[str] = set()
    for g, group in enumerate(_groups(obj)):
        path = f"spec.resourceGroups[{g}]"
        covered = group.get("coveredResources") or []
        for r, name in enumerate(covered):
            where = f"{path}.coveredResources[{r}]"
            causes += [
                invalid_value(where, name, problem) for problem in qualified_name_problems(name)
            ]
            if name in seen_resources:
                causes.append(duplicate(where, name))
            seen_resources.add(name)
        for f, flavor in enumerate(group.get("flavors") or []):
            where = f"{path}.flavors[{f}]"
            for r, resource in enumerate(flavor.get("resources") or []):
                at = f"{where}.resources[{r}]"
                if r < len(covered) and resource.get("name") != covered[r]:
                    causes.append(
                        invalid_value(
                            f"{at}.name",
                            resource.get("name"),
                            "must match the name in coveredResources",
                        )
                    )
                causes += _quota_causes(
                    resource, at, parent, word, lend_at_most_nominal=lend_at_most_nominal
                )
            if flavor.get("name") in seen_flavors:
                causes.append(duplicate(f"{where}.name", flavor.get("name")))
            seen_flavors.add(str(flavor.get("name")))
    return causes


def _quota_causes(
    resource: Obj, path: str, parent: str, word: str, *, lend_at_most_nominal: bool
) -> list[Cause]:
    causes: list[Cause] = []
    nominal = quantity.parse(resource.get("nominalQuota") or "0")
    if nominal < 0:
        causes.append(
            invalid_value(
                f"{path}.nominalQuota",
                resource["nominalQuota"],
                "must be greater than or equal to 0",
            )
        )
    for field in ("borrowingLimit", "lendingLimit"):
        text = resource.get(field)
        if text is None:
            continue
        value = quantity.parse(text)
        if value < 0:
            causes.append(
                invalid_value(f"{path}.{field}", text, "must be greater than or equal to 0")
            )
        if not parent:
            causes.append(
                invalid_value(f"{path}.{field}", text, f"must be nil when {word} is empty")
            )
        elif field == "lendingLimit" and lend_at_most_nominal and value > nominal:
            causes.append(
                invalid_value(
                    f"{path}.{field}", text, "must be less than or equal to the nominalQuota"
                )
            )
    return causes


def _weight_causes(obj: Obj) -> list[Cause]:
    weight = ((obj.get("spec") or {}).get("fairSharing") or {}).get("weight")
    if weight is None:
        return []
    value = quantity.parse(weight)
    if value < 0:
        return [invalid_value("spec.fairSharing", weight, "must be greater than or equal to 0")]
    if 0 < value <= quantity.parse("1n"):
        return [invalid_value("spec.fairSharing", weight, "When not 0, weight must be > 10e-9")]
    return []


def _same_count_causes(obj: Obj) -> list[Cause]:
    return [
        bare_invalid(
            f"spec.resourceGroups[{g}]",
            "flavors must have the same number of resources as the coveredResources",
        )
        for g, group in enumerate(_groups(obj))
        if any(
            len(f.get("resources") or []) != len(group.get("coveredResources") or [])
            for f in group.get("flavors") or []
        )
    ]


def _size_causes(obj: Obj) -> list[Cause]:
    groups = _groups(obj)
    flavors = sum(len(group.get("flavors") or []) for group in groups)
    resources = sum(len(group.get("coveredResources") or []) for group in groups)
    causes: list[Cause] = []
    if flavors > 256:
        causes.append(
            bare_invalid(
                "spec",
                f"total number of flavors across all resourceGroups must be ≤ 256, got {flavors}",
            )
        )
    if resources > 256:
        why = (
            f"total number of covered resources across all resourceGroups must be ≤ 256, got"
            f" {resources}"
        )
        causes.append(bare_invalid("spec", why))
    for g, group in enumerate(groups):
        pairs = len(group.get("flavors") or []) * len(group.get("coveredResources") or [])
        if pairs > 512:
            why = (
                f"number of flavor-resource combinations in a resourceGroup must be ≤ 512, got"
                f" {pairs}"
            )
            causes.append(bare_invalid(f"spec.resourceGroups[{g}]", why))
    return causes


class ClusterQueueRules(_KueueRules):
    definition = "ClusterQueue"
    webhook = "vclusterqueue.kb.io"

    def default(self, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        _canonical_quotas(obj, "mclusterqueue.kb.io")
        spec.setdefault("queueingStrategy", "BestEffortFIFO")
        spec.setdefault("stopPolicy", "None")
        fungibility = spec.setdefault("flavorFungibility", {})
        fungibility.setdefault("whenCanBorrow", "MayStopSearch")
        fungibility.setdefault("whenCanPreempt", "TryNextFlavor")
        preemption = spec.setdefault("preemption", {})
        preemption.setdefault("reclaimWithinCohort", "Never")
        preemption.setdefault("withinClusterQueue", "Never")
        preemption.setdefault("borrowWithinCohort", {}).setdefault("policy", "Never")
        if isinstance(spec.get("fairSharing"), dict):
            spec["fairSharing"].setdefault("weight", "1")

    def create(self, obj: Obj, context: Context) -> None:
        _guard(obj)
        super().create(obj, context)

    def rules(self, obj: Obj) -> list[Cause]:
        spec = obj["spec"]
        causes: list[Cause] = []
        if not spec.get("cohortName") and _borrowing_limits(obj):
            causes.append(bare_invalid("spec", "borrowingLimit must be nil when cohort is empty"))
        fungibility = spec["flavorFungibility"]
        both = (
            fungibility.get("whenCanBorrow") == fungibility.get("whenCanPreempt") == "TryNextFlavor"
        )
        if fungibility.get("preference") and not both:
            why = (
                "preference can only be set when both whenCanBorrow and whenCanPreempt are"
                " TryNextFlavor"
            )
            causes.append(bare_invalid("spec.flavorFungibility", why))
        preemption = spec["preemption"]
        if (
            preemption.get("reclaimWithinCohort") == "Never"
            and preemption["borrowWithinCohort"].get("policy") != "Never"
        ):
            causes.append(
                bare_invalid(
                    "spec.preemption",
                    "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never",
                )
            )
        return causes + _same_count_causes(obj)

    def webhook_causes(self, obj: Obj) -> list[Cause]:
        spec = obj["spec"]
        causes = _group_causes(
            obj, parent=spec.get("cohortName") or "", word="cohort", lend_at_most_nominal=True
        )
        causes += _size_causes(obj)
        causes += _selector_causes(spec.get("namespaceSelector"), "spec.namespaceSelector")
        causes += _weight_causes(obj)
        return causes + self._check_flavors(spec)

    def _check_flavors(self, spec: Obj) -> list[Cause]:
        flavors = [
            f.get("name")
            for group in spec.get("resourceGroups") or []
            for f in group.get("flavors") or []
        ]
        causes: list[Cause] = []
        for c, check in enumerate(
            (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or []
        ):
            for f, flavor in enumerate(check.get("onFlavors") or []):
                if flavor not in flavors:
                    path = f"spec.admissionChecksStrategy.admissionChecks[{c}].onFlavors[{f}]"
                    causes.append(unsupported(path, flavor, [str(name) for name in flavors]))
        return causes


def _borrowing_limits(obj: Obj) -> bool:
    """A limit that is a plain number of zero or more; other mistakes are found by later checks."""
    return any(
        resource.get("borrowingLimit") is not None
        and not str(resource["borrowingLimit"]).startswith("-")
        for group in _groups(obj)
        for flavor in group.get("flavors") or []
        for resource in flavor.get("resources") or []
    )


def _selector_causes(selector: Any, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for index, term in enumerate((selector or {}).get("matchExpressions") or []):
        where = f"{path}.matchExpressions[{index}]"
        operator, values = term.get("operator"), term.get("values") or []
        if operator not in _SELECTOR_OPERATORS:
            causes.append(
                invalid_value(f"{where}.operator", operator, "not a valid selector operator")
            )
        elif operator in ("In", "NotIn") and not values:
            why = "must be specified when `operator` is 'In' or 'NotIn'"
            causes.append(Cause(f"{where}.values", "Required value", why, "FieldValueRequired"))
        elif operator in ("Exists", "DoesNotExist") and values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            causes.append(Cause(f"{where}.values", "Forbidden", why, "FieldValueForbidden"))
    return causes + labels_causes((selector or {}).get("matchLabels"), f"{path}.matchLabels")


class CohortRules(_KueueRules):
    definition = "Cohort"
    webhook = "vcohort.kb.io"

    def default(self, obj: Obj) -> None:
        obj.setdefault("spec", {})
        _canonical_quotas(obj, "mcohort.kb.io")

    def rules(self, obj: Obj) -> list[Cause]:
        return _same_count_causes(obj)

    def webhook_causes(self, obj: Obj) -> list[Cause]:
        parent = obj["spec"].get("parentName") or ""
        return _group_causes(
            obj, parent=parent, word="parent", lend_at_most_nominal=False
        ) + _weight_causes(obj)


class LocalQueueRules(_KueueRules):
    definition = "LocalQueue"

    def default(self, obj: Obj) -> None:
        obj.setdefault("spec", {}).setdefault("stopPolicy", "None")
        _canonical_quotas(obj, "mlocalqueue.kb.io")

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        after = new["spec"].get("clusterQueue")
        if after != old["spec"].get("clusterQueue"):
            return [invalid_value("spec.clusterQueue", after, "field is immutable")]
        return []


def _toleration_causes(tolerations: list[Obj]) -> list[Cause]:
    """Each rule is told once, however many break it."""
    broken = {
        "operator must be Exists when 'key' is empty, which means 'match all values and all keys'": any(
            not t.get("key") and t.get("operator") != "Exists" for t in tolerations
        ),
        "effect must be 'NoExecute' when 'tolerationSeconds' is set": any(
            t.get("tolerationSeconds") is not None and t.get("effect") != "NoExecute"
            for t in tolerations
        ),
        "supported toleration values: 'Equal'(default), 'Exists'": any(
            t.get("operator", "Equal") not in ("Equal", "Exists") for t in tolerations
        ),
        "a value must be empty when 'operator' is 'Exists'": any(
            t.get("operator") == "Exists" and "value" in t for t in tolerations
        ),
        "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'": any(
            t.get("effect") and t["effect"] not in _TAINT_EFFECTS for t in tolerations
        ),
    }
    return [bare_invalid("spec.tolerations", why) for why, is_so in broken.items() if is_so]


class FlavorRules(_KueueRules):
    definition = "ResourceFlavor"
    webhook = "vresourceflavor.kb.io"

    def default(self, obj: Obj) -> None:
        obj.setdefault("spec", {})

    def create(self, obj: Obj, context: Context) -> None:
        _guard(obj)
        super().create(obj, context)

    def rules(self, obj: Obj) -> list[Cause]:
        spec = obj["spec"]
        causes: list[Cause] = []
        if any(taint.get("effect") not in _TAINT_EFFECTS for taint in spec.get("nodeTaints") or []):
            why = "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'"
            causes.append(bare_invalid("spec.nodeTaints", why))
        causes += _toleration_causes(spec.get("tolerations") or [])
        if spec.get("topologyName") and not spec.get("nodeLabels"):
            causes.append(
                bare_invalid("spec", "at least one nodeLabel is required when topology is set")
            )
        return causes

    def webhook_causes(self, obj: Obj) -> list[Cause]:
        return labels_causes(obj["spec"].get("nodeLabels"), "spec.nodeLabels")

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        before = old["spec"].get("topologyName")
        if before and new["spec"].get("topologyName") != before:
            return [bare_invalid("spec", "topologyName is immutable when topologyName is set")]
        return []


class WorkloadPriorityClassRules(_KueueRules):
    definition = "WorkloadPriorityClass"
    has_rules = False


class TopologyRules(_KueueRules):
    definition = "Topology"

    def rules(self, obj: Obj) -> list[Cause]:
        labels = [level.get("nodeLabel") for level in (obj.get("spec") or {}).get("levels") or []]
        if len(set(labels)) != len(labels):
            return [bare_invalid("spec.levels", "must be unique")]
        if "kubernetes.io/hostname" in labels[:-1]:
            why = (
                "the kubernetes.io/hostname label can only be used at the lowest level of topology"
            )
            return [bare_invalid("spec.levels", why)]
        return []


class AdmissionCheckRules(_KueueRules):
    definition = "AdmissionCheck"

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        after = (new.get("spec") or {}).get("controllerName")
        if after != (old.get("spec") or {}).get("controllerName"):
            return [invalid_value("spec.controllerName", after, "field is immutable")]
        return []


def _has_quota(workload: Obj) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "QuotaReserved" and c.get("status") == "True" for c in conditions)


class WorkloadRules(_KueueRules):
    definition = "Workload"
    webhook = "vworkload.kb.io"

    def default(self, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("active", True)
        pod_sets = spec.get("podSets") or []
        for pod_set in pod_sets:
            pod_set.setdefault("count", 1)
            pod_set.setdefault("name", "main")

    def webhook_causes(self, obj: Obj) -> list[Cause]:
        causes: list[Cause] = []
        pod_sets = obj["spec"].get("podSets") or []
        if sum(1 for pod_set in pod_sets if pod_set.get("minCount") is not None) > 1:
            causes.append(
                invalid_value("spec.podSets", len(pod_sets), "at most one podSet can use minCount")
            )
        for p, pod_set in enumerate(pod_sets):
            spec = (pod_set.get("template") or {}).get("spec") or {}
            for field in ("initContainers", "containers"):
                for c, container in enumerate(spec.get(field) or []):
                    requests = (container.get("resources") or {}).get("requests") or {}
                    if "pods" in requests:
                        path = (
                            f"spec.podSets[{p}].template.spec.{field}[{c}].resources.requests[pods]"
                        )
                        causes.append(
                            invalid_value(
                                path, "pods", "the key is reserved for internal kueue use"
                            )
                        )
        return causes

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        if not _has_quota(old):
            return []
        if new["spec"].get("queueName") != old["spec"].get("queueName"):
            return [bare_invalid("<nil>", "queueName is immutable while workload quota reserved")]
        before, after = old["spec"].get("podSets") or [], new["spec"].get("podSets") or []
        for index, (mine, theirs) in enumerate(zip(before, after, strict=False)):
            if mine != theirs:
                raise webhook_denied(
                    self.webhook,
                    [invalid_value(f"spec.podSets.{index}", theirs, "field is immutable")],
                )
        if len(before) != len(after):
            raise webhook_denied(
                self.webhook, [invalid_value("spec.podSets", after, "field is immutable")]
            )
        return []
