"""Between the versions of a kind: the older one on the wire, the newer one in the store."""

from __future__ import annotations

from typing import Any

from makeway.kinds.serving.refusal import Obj

_STOP_SEARCH = {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"}
_CLASS_SOURCES = {
    "kueue.x-k8s.io/workloadpriorityclass": ("kueue.x-k8s.io", "WorkloadPriorityClass"),
    "scheduling.k8s.io/priorityclass": ("scheduling.k8s.io", "PriorityClass"),
}


def _rename(fields: Any, old: str, new: str) -> None:
    if isinstance(fields, dict) and old in fields:
        fields[new] = fields.pop(old)


class ClusterQueueV1Beta1:
    def to_storage(self, obj: Obj) -> None:
        spec = obj.get("spec")
        if isinstance(spec, dict):
            _rename(spec, "cohort", "cohortName")
            self._checks_to_strategy(spec)
            fungibility = spec.get("flavorFungibility")
            if isinstance(fungibility, dict):
                for field, word in _STOP_SEARCH.items():
                    if fungibility.get(field) == word:
                        fungibility[field] = "MayStopSearch"
        status = obj.get("status")
        if isinstance(status, dict):
            status.pop("pendingWorkloadsStatus", None)

    def _checks_to_strategy(self, spec: Obj) -> None:
        checks = spec.pop("admissionChecks", None)
        if checks:
            strategy = spec.setdefault("admissionChecksStrategy", {})
            strategy.setdefault("admissionChecks", []).extend({"name": name} for name in checks)

    def from_storage(self, obj: Obj) -> None:
        _rename(obj.get("spec"), "cohortName", "cohort")
        if isinstance(obj.get("spec"), dict):
            obj["spec"].pop("concurrentAdmissionPolicy", None)


class LocalQueueV1Beta1:
    def to_storage(self, obj: Obj) -> None:
        _rename(obj.get("status"), "flavorUsage", "flavorsUsage")
        if isinstance(obj.get("status"), dict):
            obj["status"].pop("flavors", None)

    def from_storage(self, obj: Obj) -> None:
        _rename(obj.get("status"), "flavorsUsage", "flavorUsage")


class WorkloadV1Beta1:
    """The misspelt field is part of the older wire format."""

    def to_storage(self, obj: Obj) -> None:
        spec = obj.get("spec")
        if isinstance(spec, dict):
            name = spec.pop("priorityClassName", None)
            source = spec.pop("priorityClassSource", None)
            if name:
                group, kind = _CLASS_SOURCES.get(source or "", ("", ""))
                spec["priorityClassRef"] = {"group": group, "kind": kind, "name": name}
        _rename(
            obj.get("status"),
            "accumulatedPastExexcutionTimeSeconds",
            "accumulatedPastExecutionTimeSeconds",
        )

    def from_storage(self, obj: Obj) -> None:
        spec = obj.get("spec")
        if isinstance(spec, dict):
            reference = spec.pop("priorityClassRef", None)
            spec.pop("preemptionGates", None)
            if reference:
                spec["priorityClassName"] = reference.get("name", "")
                pair = (reference.get("group"), reference.get("kind"))
                source = next((s for s, known in _CLASS_SOURCES.items() if known == pair), "")
                if source:
                    spec["priorityClassSource"] = source
        status = obj.get("status")
        if isinstance(status, dict):
            _rename(
                status,
                "accumulatedPastExecutionTimeSeconds",
                "accumulatedPastExexcutionTimeSeconds",
            )
            status.pop("preemptionGates", None)


class PodGroupV1Alpha2:
    """Kubernetes 1.36 wrote the disruption mode as a word and named the template, not the
    Workload.
    """

    def to_storage(self, obj: Obj) -> None:
        spec = obj.get("spec")
        if not isinstance(spec, dict):
            return
        mode = spec.get("disruptionMode")
        if isinstance(mode, str):
            spec["disruptionMode"] = {"all": {}} if mode == "PodGroup" else {"single": {}}
        template = spec.pop("podGroupTemplateRef", None)
        if isinstance(template, dict) and isinstance(template.get("workload"), dict):
            workload = template["workload"]
            spec["workloadRef"] = {
                "workloadName": workload.get("workloadName", ""),
                "templateName": workload.get("podGroupTemplateName", ""),
            }

    def from_storage(self, obj: Obj) -> None:
        spec = obj.get("spec")
        if not isinstance(spec, dict):
            return
        mode = spec.get("disruptionMode")
        if isinstance(mode, dict):
            spec["disruptionMode"] = "PodGroup" if "all" in mode else "Pod"
        reference = spec.pop("workloadRef", None)
        if isinstance(reference, dict):
            spec["podGroupTemplateRef"] = {
                "workload": {
                    "workloadName": reference.get("workloadName", ""),
                    "podGroupTemplateName": reference.get("templateName", ""),
                }
            }
        for newer in ("parentCompositePodGroupName", "preemptionPolicy"):
            spec.pop(newer, None)


_EVENT_FIELDS = {
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}


class EventsGroup:
    """`events.k8s.io` and the core group show one and the same event under different field
    names.
    """

    def to_storage(self, obj: Obj) -> None:
        for theirs, ours in _EVENT_FIELDS.items():
            _rename(obj, theirs, ours)

    def from_storage(self, obj: Obj) -> None:
        for theirs, ours in _EVENT_FIELDS.items():
            _rename(obj, ours, theirs)
