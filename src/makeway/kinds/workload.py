"""kueue.x-k8s.io Workload, v1beta1 and v1beta2: what was asked for, and from its status what was decided and done so far."""

from __future__ import annotations

from typing import Any

from makeway.control.durations import duration
from makeway.errors import InvalidObject
from makeway.kinds import promises
from makeway.kinds.fields import (
    Json,
    amount,
    annotations_of,
    condition,
    created_at,
    key_of,
    labels_of,
    namespace_of,
    spec_of,
    status_of,
    timestamp,
    title_of,
    true_condition,
)
from makeway.kinds.pods import read_shape, requests_above_limits
from makeway.model.queue import FlavorName, QueueName
from makeway.model.workload import (
    Admission,
    Assignment,
    Checkpoint,
    CheckState,
    PodSet,
    TopologyRequest,
    Workload,
    WorkloadId,
)

JOB_UID = "kueue.x-k8s.io/job-uid"
PRIORITY_BOOST = "kueue.x-k8s.io/priority-boost"
ADMISSION_GATED_BY = "kueue.x-k8s.io/admission-gated-by"
PLACEMENT = "makeway.dev/placement"


def read(obj: Json, *, priority_boost: bool = False, reclaimable_pods: bool = True) -> Workload:
    """The two switches are Kueue's feature gates of the same names."""
    spec, status = spec_of(obj), status_of(obj)
    meta = obj.get("metadata") or {}
    boost = _boost(obj) if priority_boost else 0
    evicted = true_condition(obj, "Evicted") or {}
    preempted = true_condition(obj, "Preempted") or {}
    requeued = condition(obj, "Requeued")
    return Workload(
        id=WorkloadId(key_of(obj)),
        uid=str(meta.get("uid") or ""),
        owner_uid=str(labels_of(obj).get(JOB_UID) or ""),
        owner=_owner(obj),
        local_queue=spec.get("queueName") or None,
        needs="quota" if labels_of(obj).get(PLACEMENT) == "external" else "both",
        priority=int(spec.get("priority") or 0) + boost,
        boost=boost,
        preemption_gated=_preemption_gated(obj),
        created_at=created_at(obj),
        queued_at=timestamp(requeued.get("lastTransitionTime")) if requeued else None,
        pod_sets=tuple(_read_pod_set(obj, i, p) for i, p in enumerate(spec.get("podSets") or ())),
        checkpoint=_read_checkpoint(obj),
        active=spec.get("active", True) is not False,
        finished=true_condition(obj, "Finished") is not None,
        held_back=_held_back(obj),
        invalid=_invalid(obj),
        admission=_read_admission(obj),
        reclaimable=_read_reclaimable(status) if reclaimable_pods else (),
        checks=tuple(_read_check(check) for check in status.get("admissionChecks") or ()),
        evicted_at=timestamp(evicted.get("lastTransitionTime"), 0.0) if evicted else None,
        evicted_reason=str(evicted.get("reason") or ""),
        last_eviction_at=timestamp(evicted.get("lastTransitionTime")),
        last_eviction_reason=str(evicted.get("reason") or ""),
        last_preemption_at=timestamp(preempted.get("lastTransitionTime")),
        last_preemption_reason=str(preempted.get("reason") or ""),
        requeue_at=timestamp((status.get("requeueState") or {}).get("requeueAt")),
        requeue_blocked=requeued is not None and requeued.get("status") == "False",
    )


def _owner(obj: Json) -> str:
    references = (obj.get("metadata") or {}).get("ownerReferences") or ()
    for reference in references:
        if reference.get("controller", len(references) == 1):
            return f"{reference.get('kind')}/{namespace_of(obj)}/{reference.get('name')}"
    return ""


def _boost(obj: Json) -> int:
    """What is not a number counts as none."""
    try:
        return int(annotations_of(obj).get(PRIORITY_BOOST, "0"))
    except ValueError:
        return 0


def _preemption_gated(obj: Json) -> bool:
    """Some gate of the spec that no status says is open."""
    gates = [str(gate.get("name")) for gate in spec_of(obj).get("preemptionGates") or ()]
    states = {
        str(gate.get("name")): gate.get("position")
        for gate in status_of(obj).get("preemptionGates") or ()
    }
    return any(states.get(gate) != "Open" for gate in gates)


def _held_back(obj: Json) -> str:
    """Why it may not even be queued."""
    gates = annotations_of(obj).get(ADMISSION_GATED_BY)
    if gates:
        return f"Admission is gated by: {gates}"
    pod_sets: list[Json] = spec_of(obj).get("podSets") or []
    reserved = condition(obj, "QuotaReserved")
    if reserved is not None and reserved.get("reason") == "OnHold":
        return "Job is on hold"
    if any((s.get("topologyRequest") or {}).get("podSetSliceRequiredTopology") for s in pod_sets):
        return (
            "podset-slice-required-topology is not supported: podset-required-topology keeps the"
            " whole pod set together"
        )
    if true_condition(obj, "WaitingForReplacementPods") is not None:
        return "Waiting for replacement pods"
    return ""


# -- pod sets --------------------------------------------------------------------------------------------------------


def _read_pod_set(obj: Json, index: int, item: Json) -> PodSet:
    path = f"spec.podSets[{index}]"
    count = int(item.get("count", 1))
    min_count = item.get("minCount")
    if min_count is not None and not 1 <= int(min_count) <= count:
        raise InvalidObject(
            f"minCount {min_count} must be between 1 and the count of {count}.",
            obj=title_of(obj),
            field=f"{path}.minCount",
            hint="Lower minCount or raise count.",
        )
    template = item.get("template") or {}
    request = item.get("topologyRequest") or {}
    return PodSet(
        name=str(item.get("name") or "main"),
        count=count,
        min_count=None if min_count is None else int(min_count),
        shape=read_shape(
            obj,
            template.get("spec") or {},
            path=f"{path}.template.spec",
            namespace=namespace_of(obj),
            labels=labels_of(template),
        ),
        topology=_read_topology_request(request),
        group=request.get("podSetGroupName") or None,
    )


def _read_topology_request(request: Json) -> TopologyRequest | None:
    if request.get("required"):
        return TopologyRequest(level=str(request["required"]), required=True)
    if request.get("preferred"):
        return TopologyRequest(level=str(request["preferred"]), required=False)
    return None


def _invalid(obj: Json) -> str:
    """The API server refuses pods that request more than their limit; better to say so before quota is given."""
    problems = [
        problem
        for index, item in enumerate(spec_of(obj).get("podSets") or ())
        for problem in requests_above_limits(
            obj,
            (item.get("template") or {}).get("spec") or {},
            f"spec.podSets[{index}].template.spec",
        )
    ]
    return f"resources validation failed: {', '.join(problems)}" if problems else ""


# -- status ----------------------------------------------------------------------------------------------------------


def _read_admission(obj: Json) -> Admission | None:
    """The condition says whether quota is reserved; the block says where."""
    reserved = true_condition(obj, "QuotaReserved")
    if reserved is None:
        return None
    block = status_of(obj).get("admission") or {}
    since = timestamp(reserved.get("lastTransitionTime"))
    admitted = true_condition(obj, "Admitted") or {}
    return Admission(
        queue=QueueName(str(block.get("clusterQueue") or "")),
        assignments=tuple(
            _read_assignment(obj, i, item)
            for i, item in enumerate(block.get("podSetAssignments") or ())
        ),
        reserved_at=created_at(obj) if since is None else since,
        admitted=_is_admitted(obj),
        admitted_at=timestamp(admitted.get("lastTransitionTime")),
    )


def _is_admitted(obj: Json) -> bool:
    """Without checks there is nothing between reserved and admitted, whether or not the condition is there yet."""
    admitted = condition(obj, "Admitted")
    if admitted is None:
        return not status_of(obj).get("admissionChecks")
    return bool(admitted.get("status") == "True")


def _read_assignment(obj: Json, index: int, item: Json) -> Assignment:
    path = f"status.admission.podSetAssignments[{index}].resourceUsage"
    usage = {
        name: amount(obj, f"{path}[{name}]", name, quantity)
        for name, quantity in (item.get("resourceUsage") or {}).items()
    }
    return Assignment(
        pod_set=str(item.get("name") or "main"),
        flavors=tuple(sorted((r, FlavorName(f)) for r, f in (item.get("flavors") or {}).items())),
        usage=tuple(sorted(usage.items())),
        count=int(item.get("count") or 0),
    )


def _read_reclaimable(status: Json) -> tuple[tuple[str, int], ...]:
    return tuple(
        sorted(
            (str(item["name"]), int(item["count"])) for item in status.get("reclaimablePods") or ()
        )
    )


def _read_check(item: Json) -> CheckState:
    state: Any = item.get("state") or "Pending"
    return CheckState(name=str(item["name"]), state=state, message=str(item.get("message") or ""))


# -- what its owner says about saving --------------------------------------------------------------------------------

_DURATIONS = {
    promises.CHECKPOINT_EVERY: "every_s",
    promises.CHECKPOINT_ON_TERM: "on_term_s",
    promises.RESTART_TAKES: "restart_s",
    promises.EXPECTED_RUNTIME: "expected_runtime_s",
    promises.PATIENCE: "patience_s",
    promises.MIN_RUNTIME: "min_runtime_s",
}


def _read_checkpoint(obj: Json) -> Checkpoint:
    return read_checkpoint(obj, annotations_of(obj))


def read_checkpoint(obj: Json, annotations: dict[str, str]) -> Checkpoint:
    """From annotations of a workload or a pod; `obj` is named in errors."""
    known: dict[str, Any] = {}
    for annotation, field in _DURATIONS.items():
        text = annotations.get(annotation)
        if text is None:
            continue
        known[field] = duration(text)
        if known[field] is None:
            raise InvalidObject(
                f'expected a duration, got "{text}".',
                obj=title_of(obj),
                field=f"metadata.annotations[{annotation}]",
                hint='Write for example "10m".',
            )
    if promises.LAST_CHECKPOINT in annotations:
        known["last_at"] = _read_time(obj, annotations[promises.LAST_CHECKPOINT])
    return Checkpoint(**known)


def _read_time(obj: Json, text: str) -> float | None:
    try:
        return timestamp(text)
    except ValueError as error:
        raise InvalidObject(
            f'expected an RFC 3339 time, got "{text}".',
            obj=title_of(obj),
            field=f"metadata.annotations[{promises.LAST_CHECKPOINT}]",
            hint='Write for example "2026-01-15T12:00:00Z".',
        ) from error
