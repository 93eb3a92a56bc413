"""The small kinds of a cluster: namespaces, nodes, priority classes, config, budgets."""

from __future__ import annotations

import base64
import binascii

from makeway.kinds.serving import quantity
from makeway.kinds.serving.kind import Context, Rules
from makeway.kinds.serving.names import label_problems, metadata_causes, subdomain_problems
from makeway.kinds.serving.priority import CLASSES
from makeway.kinds.serving.refusal import (
    Cause,
    Obj,
    forbidden,
    forbidden_field,
    invalid_value,
    unsupported,
)
from makeway.kinds.serving.replicas import share_causes

HIGHEST_USER_PRIORITY = 1_000_000_000
SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
POLICIES = ("PreemptLowerPriority", "Never")


class NamespaceRules(Rules):
    def default(self, obj: Obj) -> None:
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj[
            "metadata"
        ].get("name", "")
        if not obj.get("spec"):
            obj["spec"] = {"finalizers": ["kubernetes"]}

    def validate(self, obj: Obj) -> list[Cause]:
        return metadata_causes(obj, label_problems)

    def initial_status(self, obj: Obj) -> Obj | None:
        return {"phase": "Active"}

    def delete(self, obj: Obj, context: Context) -> None:
        name = obj["metadata"]["name"]
        if name in ("default", "kube-system", "kube-public"):
            raise forbidden("namespaces", "", name, "this namespace may not be deleted")


class NodeRules(Rules):
    """A node is created with its status, and offers all it has unless it says otherwise."""

    def default(self, obj: Obj) -> None:
        obj.setdefault("spec", {})
        status = obj.setdefault("status", {})
        for field in ("capacity", "allocatable"):
            if isinstance(status.get(field), dict):
                quantity.canonical_map(status[field])
        if status.get("capacity") and not status.get("allocatable"):
            status["allocatable"] = dict(status["capacity"])

    def initial_status(self, obj: Obj) -> Obj | None:
        status: Obj = obj["status"]
        return status

    def update_status(self, new: Obj, old: Obj, context: Context) -> list[Cause]:
        self.default(new)
        return []

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, subdomain_problems)
        for index, taint in enumerate(obj["spec"].get("taints") or []):
            effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
            if taint.get("effect") not in effects:
                causes.append(
                    unsupported(
                        f"metadata.taints[{index}].effect", taint.get("effect", ""), effects
                    )
                )
        return causes


class PriorityClassRules(Rules):
    def default(self, obj: Obj) -> None:
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
        obj.setdefault("value", 0)
        if obj.get("globalDefault") is False:
            del obj["globalDefault"]

    def create(self, obj: Obj, context: Context) -> None:
        self._one_default(obj, context)
        if obj.get("preemptionPolicy") == "PreemptHigherPriority":
            context.warnings.append(
                "There is no policy PreemptHigherPriority: a pod can only ever preempt pods of"
                " lower priority."
                " Write preemptionPolicy: PreemptLowerPriority (the default), or Never for pods"
                " that wait instead."
            )

    def update(self, new: Obj, old: Obj, context: Context) -> None:
        self._one_default(new, context)

    def _one_default(self, obj: Obj, context: Context) -> None:
        if not obj.get("globalDefault"):
            return
        name = obj["metadata"]["name"]
        for other in context.lookup.list(CLASSES):
            if other.get("globalDefault") and other["metadata"]["name"] != name:
                why = (
                    f"PriorityClass {other['metadata']['name']} is already marked as default. Only"
                    f" one default can exist"
                )
                raise forbidden("priorityclasses", "scheduling.k8s.io", name, why)

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, subdomain_problems)
        name, value = obj["metadata"].get("name", ""), int(obj.get("value") or 0)
        if name.startswith("system-"):
            if SYSTEM_CLASSES.get(name) != value:
                why = (
                    "priority class names with 'system-' prefix are reserved for system use only."
                    f" error: {name} is not a known system priority class"
                )
                causes.append(forbidden_field("metadata.name", why))
        elif value > HIGHEST_USER_PRIORITY:
            why = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
            causes.append(forbidden_field("value", why))
        if obj.get("preemptionPolicy") not in POLICIES:
            causes.append(unsupported("preemptionPolicy", obj.get("preemptionPolicy"), POLICIES))
        return causes

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        causes: list[Cause] = []
        if int(new.get("value") or 0) != int(old.get("value") or 0):
            causes.append(forbidden_field("value", "may not be changed in an update."))
        if new.get("preemptionPolicy") != old.get("preemptionPolicy"):
            causes.append(
                invalid_value("preemptionPolicy", new.get("preemptionPolicy"), "field is immutable")
            )
        return causes

    def delete(self, obj: Obj, context: Context) -> None:
        name = obj["metadata"]["name"]
        if name in SYSTEM_CLASSES:
            why = "this is a system priority class and cannot be deleted"
            raise forbidden("priorityclasses", "scheduling.k8s.io", name, why)


class ConfigMapRules(Rules):
    def validate(self, obj: Obj) -> list[Cause]:
        return metadata_causes(obj, subdomain_problems)

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        return _immutable_data(new, old)


def _immutable_data(new: Obj, old: Obj) -> list[Cause]:
    if not old.get("immutable"):
        return []
    fixed = "field is immutable when `immutable` is set"
    return [
        forbidden_field(field, fixed)
        for field in ("data", "binaryData")
        if new.get(field) != old.get(field)
    ]


class SecretRules(Rules):
    def default(self, obj: Obj) -> None:
        obj.setdefault("type", "Opaque")
        for key, text in (obj.pop("stringData", None) or {}).items():
            obj.setdefault("data", {})[key] = base64.b64encode(str(text).encode()).decode()

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, subdomain_problems)
        for key, text in (obj.get("data") or {}).items():
            try:
                base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                causes.append(
                    invalid_value(f"data[{key}]", "<secret contents redacted>", "must be base64")
                )
        return causes

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        causes = _immutable_data(new, old)
        if new.get("type") != old.get("type"):
            causes.append(invalid_value("type", new.get("type"), "field is immutable"))
        return causes


_LAST_PORT = 65535


class ServiceRules(Rules):
    def default(self, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        spec.setdefault("internalTrafficPolicy", "Cluster")
        if spec["type"] != "ExternalName":
            spec.setdefault("clusterIP", "None")
        for port in spec.get("ports") or []:
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, label_problems)
        for index, port in enumerate(obj["spec"].get("ports") or []):
            for field in ("port", "targetPort"):
                number = port.get(field)
                if isinstance(number, int) and not 1 <= number <= _LAST_PORT:
                    why = f"must be between 1 and {_LAST_PORT}, inclusive"
                    causes.append(invalid_value(f"spec.ports[{index}].{field}", number, why))
        return causes

    def initial_status(self, obj: Obj) -> Obj | None:
        return {"loadBalancer": {}}


class BudgetRules(Rules):
    def default(self, obj: Obj) -> None:
        obj.setdefault("spec", {})

    def validate(self, obj: Obj) -> list[Cause]:
        causes = metadata_causes(obj, subdomain_problems)
        spec = obj["spec"]
        if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
            shown = {key: spec[key] for key in ("minAvailable", "maxUnavailable")}
            causes.append(
                invalid_value("spec", shown, "minAvailable and maxUnavailable cannot be both set")
            )
        return causes + share_causes(spec, "spec", "minAvailable", "maxUnavailable")

    def initial_status(self, obj: Obj) -> Obj | None:
        return {
            "currentHealthy": 0,
            "desiredHealthy": 0,
            "disruptionsAllowed": 0,
            "expectedPods": 0,
        }
