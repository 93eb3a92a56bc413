"""Deployments, ReplicaSets, StatefulSets, DaemonSets: defaults, selectors, and Kueue's mark on the
template.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from makeway.kinds.serving.kind import Context, Rules
from makeway.kinds.serving.names import metadata_causes, subdomain_problems
from makeway.kinds.serving.queueing import hand_queue_down, refuse_resize_of_queued
from makeway.kinds.serving.refusal import Cause, Obj, forbidden_field, invalid_value, required
from makeway.kinds.serving.template import default_pod_spec, pod_spec_causes


class _TemplateRules(Rules):
    """What the four have in common: a selector, a template, and that they agree."""

    replicated = True
    queues_as = ""  # the kind, where its pods may queue
    replacing = "updateStrategy"  # how a new version comes

    def default(self, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        if self.replicated and spec.get("replicas") is None:
            spec["replicas"] = 1
        template = spec.setdefault("template", {})
        if template.get("metadata") is None:
            template["metadata"] = {}
        default_pod_spec(template.setdefault("spec", {}))

    def create(self, obj: Obj, context: Context) -> None:
        self._pass_queue_to_template(obj)

    def update(self, new: Obj, old: Obj, context: Context) -> None:
        self._pass_queue_to_template(new)

    def _pass_queue_to_template(self, obj: Obj) -> None:
        if self.queues_as:
            hand_queue_down(self.queues_as, obj)

    def validate(self, obj: Obj) -> list[Cause]:
        spec = obj["spec"]
        causes = metadata_causes(obj, subdomain_problems)
        replicas = spec.get("replicas")
        if isinstance(replicas, int) and replicas < 0:
            causes.append(
                invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
            )
        selector = spec.get("selector")
        labels = (spec["template"].get("metadata") or {}).get("labels") or {}
        if selector is None:
            causes.append(required("spec.selector"))
        elif not selector_matches(selector, labels):
            causes.append(
                invalid_value(
                    "spec.template.metadata.labels",
                    labels,
                    "`selector` does not match template `labels`",
                )
            )
        rolling = (spec.get(self.replacing) or {}).get("rollingUpdate") or {}
        shares = share_causes(
            rolling, f"spec.{self.replacing}.rollingUpdate", "maxUnavailable", "maxSurge"
        )
        causes += pod_spec_causes(self._pod_spec(spec), "spec.template.spec", ("Always",))
        return causes + shares

    def _pod_spec(self, spec: Obj) -> Obj:
        """Of the pods that are made from it."""
        return spec["template"].get("spec") or {}

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        if new["spec"].get("selector") != old["spec"].get("selector"):
            return [
                invalid_value("spec.selector", new["spec"].get("selector"), "field is immutable")
            ]
        return []


def selector_matches(selector: Obj, labels: dict[str, Any]) -> bool:
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for term in selector.get("matchExpressions") or []:
        present, value = term.get("key") in labels, labels.get(term.get("key"))
        match term.get("operator"):
            case "In" if value not in (term.get("values") or []) or not present:
                return False
            case "NotIn" if present and value in (term.get("values") or []):
                return False
            case "Exists" if not present:
                return False
            case "DoesNotExist" if present:
                return False
    return True


class DeploymentRules(_TemplateRules):
    queues_as = "Deployment"
    replacing = "strategy"

    def default(self, obj: Obj) -> None:
        super().default(obj)
        spec = obj["spec"]
        strategy = spec.setdefault("strategy", {})
        strategy.setdefault("type", "RollingUpdate")
        if strategy["type"] == "RollingUpdate":
            rolling = strategy.setdefault("rollingUpdate", {})
            rolling.setdefault("maxUnavailable", "25%")
            rolling.setdefault("maxSurge", "25%")
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault("progressDeadlineSeconds", 600)


class ReplicaSetRules(_TemplateRules):
    pass


_MAY_CHANGE = {
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
}
_FIXED = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit',"
    " 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)


class StatefulSetRules(_TemplateRules):
    queues_as = "StatefulSet"

    def update(self, new: Obj, old: Obj, context: Context) -> None:
        refuse_resize_of_queued(new, old, "vstatefulset.kb.io")
        super().update(new, old, context)

    def default(self, obj: Obj) -> None:
        super().default(obj)
        spec = obj["spec"]
        spec.setdefault("podManagementPolicy", "OrderedReady")
        spec.setdefault(
            "updateStrategy", {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
        )
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault(
            "persistentVolumeClaimRetentionPolicy",
            {"whenDeleted": "Retain", "whenScaled": "Retain"},
        )
        for template in spec.get("volumeClaimTemplates") or []:
            template.setdefault("apiVersion", "v1")
            template.setdefault("kind", "PersistentVolumeClaim")
            template.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
            template.setdefault("status", {}).setdefault("phase", "Pending")

    def _pod_spec(self, spec: Obj) -> Obj:
        """With a volume for each claim that is made from a template."""
        pod = super()._pod_spec(spec)
        claims = spec.get("volumeClaimTemplates") or []
        names = [{"name": (claim.get("metadata") or {}).get("name")} for claim in claims]
        return {**pod, "volumes": [*(pod.get("volumes") or []), *names]} if names else pod

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        if any(
            new["spec"].get(key) != old["spec"].get(key)
            for key in {*new["spec"], *old["spec"]} - _MAY_CHANGE
        ):
            return [forbidden_field("spec", _FIXED)]
        return []


class DaemonSetRules(_TemplateRules):
    replicated = False

    def default(self, obj: Obj) -> None:
        super().default(obj)
        spec = obj["spec"]
        spec.setdefault(
            "updateStrategy",
            {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
        )
        spec.setdefault("revisionHistoryLimit", 10)


_PERCENT = re.compile("[0-9]+%")


def share_causes(holder: Obj, path: str, *fields: str) -> list[Cause]:
    """Of what may be a number of pods or a percentage of them."""
    return [
        invalid_value(f"{path}.{field}", holder[field], why)
        for field in fields
        if (why := _share_problem(holder.get(field)))
    ]


def _share_problem(said: Any) -> str:
    if isinstance(said, int):
        return "must be greater than or equal to 0" if said < 0 else ""
    if said is None:
        return ""
    if not _PERCENT.fullmatch(str(said)):
        return (
            "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%',"
            " regex used for validation is '[0-9]+%')"
        )
    return "must not be greater than 100%" if Decimal(said[:-1]) > 100 else ""
