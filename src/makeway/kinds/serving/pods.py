"""Pods: defaults, priority, Kueue's gate, quality of service, and what may change afterwards."""

from __future__ import annotations

import copy
from typing import Any

from makeway.control.clock import timestamp
from makeway.kinds.serving import quantity
from makeway.kinds.serving.kind import Context, Rules
from makeway.kinds.serving.limitranges import apply_limit_ranges
from makeway.kinds.serving.names import metadata_causes, subdomain_problems
from makeway.kinds.serving.notice import give_notice
from makeway.kinds.serving.priority import admit_priority
from makeway.kinds.serving.queueing import (
    gate_queued_pod,
    queued_pod_causes,
    refuse_queue_change_of_pod,
)
from makeway.kinds.serving.refusal import Cause, Obj, forbidden_field, webhook_denied
from makeway.kinds.serving.runtimes import admit_runtime
from makeway.kinds.serving.template import default_pod_spec, pod_spec_causes

GATED = "Scheduling is blocked due to non-empty scheduling gates"
_UPDATE_RULE = (
    "pod updates may not change fields other than"
    " `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


class PodRules(Rules):
    def default(self, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        default_pod_spec(spec)
        spec.setdefault("enableServiceLinks", True)
        for field in ("initContainers", "containers"):
            for container in spec.get(field) or []:
                _request_what_is_limited(container["resources"])

    def create(self, obj: Obj, context: Context) -> None:
        spec = obj["spec"]
        account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
        spec["serviceAccountName"] = spec["serviceAccount"] = account
        _tolerate_lost_nodes(spec)
        namespace = obj["metadata"].get("namespace", "")
        apply_limit_ranges(obj, context.lookup.list("limitranges", namespace))
        admit_runtime(obj, context)
        admit_priority(obj, context)
        gate_queued_pod(obj, context)
        give_notice(obj)
        causes = queued_pod_causes(obj)
        if causes:
            raise webhook_denied("vpod.kb.io", causes)
        obj["status"] = self._first_status(obj, context)

    def _first_status(self, obj: Obj, context: Context) -> Obj:
        status: Obj = {"phase": "Pending", "qosClass": quality_of_service(obj["spec"])}
        if obj["spec"].get("schedulingGates"):
            status["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "lastProbeTime": None,
                    "lastTransitionTime": timestamp(context.now),
                    "reason": "SchedulingGated",
                    "message": GATED,
                    "observedGeneration": 1,
                }
            ]
        return status

    def initial_status(self, obj: Obj) -> Obj | None:
        status: Obj | None = obj.get("status")
        return status

    def validate(self, obj: Obj) -> list[Cause]:
        return metadata_causes(obj, subdomain_problems) + pod_spec_causes(obj["spec"], "spec")

    def update(self, new: Obj, old: Obj, context: Context) -> None:
        refuse_queue_change_of_pod(new, old)
        if old["spec"].get("schedulingGates") and not new["spec"].get("schedulingGates"):
            _forget_gated(new)

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        if new["spec"] == old["spec"]:
            return []
        gates = {gate["name"] for gate in old["spec"].get("schedulingGates") or []}
        added = [
            g["name"] for g in new["spec"].get("schedulingGates") or [] if g["name"] not in gates
        ]
        if added:
            return [
                forbidden_field(
                    "spec.schedulingGates",
                    "only deletion is allowed, but found new scheduling gate(s)",
                )
            ]
        if _with_allowed_changes(old["spec"], new["spec"], gated=bool(gates)) == new["spec"]:
            return []
        return [
            forbidden_field("spec", _UPDATE_RULE + "\n" + _difference(old["spec"], new["spec"]))
        ]

    def update_status(self, new: Obj, old: Obj, context: Context) -> list[Cause]:
        status = new.setdefault("status", {})
        if not status.get("qosClass"):
            status["qosClass"] = quality_of_service(new["spec"])
        return []


def _request_what_is_limited(resources: Obj) -> None:
    """A limit without a request is also the request."""
    limits = resources.get("limits")
    if limits:
        requests = resources.setdefault("requests", {})
        for name, amount in limits.items():
            requests.setdefault(name, amount)


def _tolerate_lost_nodes(spec: Obj) -> None:
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(_tolerates_no_execute(toleration, key) for toleration in tolerations):
            tolerations.append(
                {"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300}
            )


def _tolerates_no_execute(toleration: Obj, key: str) -> bool:
    return toleration.get("key", key) in (key, "") and toleration.get("effect", "NoExecute") in (
        "NoExecute",
        "",
    )


def quality_of_service(spec: Obj) -> str:
    """Guaranteed when every container limits CPU and memory to what it requests; BestEffort when
    none asks.
    """
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    asked = False
    guaranteed = bool(containers)
    for container in containers:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            limit, request = limits.get(name), requests.get(name, limits.get(name))
            # Nothing of something is not asked for.
            if any(amount is not None and quantity.parse(amount) for amount in (limit, request)):
                asked = True
            if limit is None or request is None or quantity.parse(limit) != quantity.parse(request):
                guaranteed = False
    if not asked:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _forget_gated(pod: Obj) -> None:
    """The last gate is gone: the pod waits for a scheduler now, and no longer for a gate."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    kept = [
        c
        for c in conditions
        if not (c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated")
    ]
    if len(kept) != len(conditions):
        if kept:
            pod["status"]["conditions"] = kept
        else:
            del pod["status"]["conditions"]


def _with_allowed_changes(old: Obj, new: Obj, *, gated: bool) -> Obj:
    """The old spec with every change of the new one that is allowed."""
    allowed = copy.deepcopy(old)
    for field in ("activeDeadlineSeconds", "schedulingGates"):
        _copy_field(allowed, new, field)
    for kind in ("containers", "initContainers"):
        for mine, theirs in zip(allowed.get(kind) or [], new.get(kind) or [], strict=False):
            if mine.get("name") == theirs.get("name"):
                mine["image"] = theirs.get("image")
    tolerations = new.get("tolerations") or []
    if all(toleration in tolerations for toleration in old.get("tolerations") or []):
        _copy_field(allowed, new, "tolerations")
    if gated and not old.get("nodeName"):
        # While gated, a pod may still be steered to nodes: that is how flavors reach it.
        selector = new.get("nodeSelector") or {}
        if all(
            selector.get(key) == value for key, value in (old.get("nodeSelector") or {}).items()
        ):
            _copy_field(allowed, new, "nodeSelector")
        _copy_field(allowed, new, "affinity")
    return allowed


def _copy_field(target: Obj, source: Obj, field: str) -> None:
    if field in source:
        target[field] = source[field]
    else:
        target.pop(field, None)


def _difference(old: Obj, new: Obj) -> str:
    """The fields that differ, as `- before` and `+ after` lines."""
    lines = []
    for field in sorted(old.keys() | new.keys()):
        before, after = old.get(field), new.get(field)
        if before != after:
            shown = field[:1].upper() + field[1:]
            lines += [f'- "{shown}": {_json(before)},', f'+ "{shown}": {_json(after)},']
    return "\n".join(lines)


def _json(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
