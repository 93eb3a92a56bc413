"""What Kueue's webhooks do to jobs and pods that name a queue: hold them back until they are
admitted.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from makeway.kinds import nearness
from makeway.kinds.frameworks import JOB_KINDS
from makeway.kinds.metadata import (
    GROUP_NAME,
    GROUP_TOTAL,
    MANAGED,
    MAX_EXEC_TIME,
    MIN_PARALLELISM,
    PRIORITY_CLASS,
    QUEUE_NAME,
    ROLE_HASH,
    SUSPENDING_PARENT,
)
from makeway.kinds.serving.kind import Context
from makeway.kinds.serving.names import qualified_name_problems, subdomain_problems
from makeway.kinds.serving.refusal import (
    Cause,
    Obj,
    bare_invalid,
    forbidden_field,
    invalid_value,
    required,
    webhook_denied,
)

GATES = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
DEFAULT_QUEUE = "default"
_UNMANAGED_NAMESPACES = ("kube-system", "kueue-system")
# Owners that queue as a whole; their pods are not queued once more.
_QUEUED_OWNERS = {(kind.group, kind.kind) for kind in JOB_KINDS.values()}


def _labels(obj: Obj) -> Obj:
    labels: Obj = obj["metadata"].get("labels") or {}
    return labels


def _annotations(obj: Obj) -> Obj:
    annotations: Obj = obj["metadata"].get("annotations") or {}
    return annotations


def _group_of(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _queued_owner(obj: Obj) -> bool:
    return any(
        owner.get("controller")
        and (_group_of(owner.get("apiVersion", "")), owner.get("kind")) in _QUEUED_OWNERS
        for owner in obj["metadata"].get("ownerReferences") or []
    )


def _give_default_queue(obj: Obj, context: Context) -> None:
    """Where a LocalQueue called `default` exists, who names no queue gets that one."""
    metadata = obj["metadata"]
    if _labels(obj).get(QUEUE_NAME) or metadata.get("ownerReferences"):
        return
    namespace = metadata.get("namespace", "")
    if context.lookup.get("localqueues.kueue.x-k8s.io", namespace, DEFAULT_QUEUE) is not None:
        metadata.setdefault("labels", {})[QUEUE_NAME] = DEFAULT_QUEUE


# ---- jobs ----------------------------------------------------------------------------------------


def suspend_queued_job(
    job: Obj, context: Context, path: tuple[str, ...] = ("spec", "suspend")
) -> None:
    if job["metadata"].get("namespace") in _UNMANAGED_NAMESPACES or _queued_owner(job):
        return
    _give_default_queue(job, context)
    if _labels(job).get(QUEUE_NAME):
        inner = job
        for field in path[:-1]:
            inner = inner.setdefault(field, {})
        inner[path[-1]] = True


def queued_job_causes(job: Obj) -> list[Cause]:
    labels, annotations = _labels(job), _annotations(job)
    causes: list[Cause] = []
    queue = labels.get(QUEUE_NAME)
    if queue:
        field = f"metadata.labels[{QUEUE_NAME}]"
        causes += [invalid_value(field, queue, problem) for problem in subdomain_problems(queue)]
    if MAX_EXEC_TIME in labels:
        causes += _positive(labels[MAX_EXEC_TIME], f"metadata.labels[{MAX_EXEC_TIME}]")
    if MIN_PARALLELISM in annotations:
        causes += _min_parallelism_causes(job, annotations[MIN_PARALLELISM])
    template = job["spec"].get("template")
    if isinstance(template, dict):
        causes += _nearness_causes(template, "spec.template.metadata.annotations")
    return causes


def _nearness_causes(template: Obj, where: str) -> list[Cause]:
    """Annotations that say how near pods must be have to make sense together."""
    said = _annotations(template)
    levels = (nearness.REQUIRED, nearness.PREFERRED, nearness.UNCONSTRAINED)
    causes: list[Cause] = []
    if sum(level in said for level in levels) > 1:
        named = ", ".join(f'"{level}"' for level in levels)
        why = f"must not contain more than one topology annotation: [{named}]"
        causes.append(bare_invalid(where, why))
    causes += [
        invalid_value(f"{where}[{level}]", said[level], problem)
        for level in (nearness.REQUIRED, nearness.PREFERRED, nearness.SLICE)
        if level in said
        for problem in qualified_name_problems(said[level])
    ]
    if nearness.SLICE in said and nearness.SLICE_SIZE not in said:
        why = f"must be set when '{nearness.SLICE}' is specified"
        causes.append(required(f"{where}[{nearness.SLICE_SIZE}]", why))
    if nearness.SLICE_SIZE in said and nearness.SLICE not in said:
        why = f"may not be set when '{nearness.SLICE}' is not specified"
        causes.append(forbidden_field(f"{where}[{nearness.SLICE_SIZE}]", why))
    return causes


def _positive(text: str, field: str) -> list[Cause]:
    number = _as_int(text)
    if number is None:
        return [invalid_value(field, text, f'strconv.Atoi: parsing "{text}": invalid syntax')]
    return [] if number > 0 else [invalid_value(field, number, "should be greater than 0")]


def _min_parallelism_causes(job: Obj, text: str) -> list[Cause]:
    field = f"metadata.annotations[{MIN_PARALLELISM}]"
    number = _as_int(text)
    if number is None:
        return [invalid_value(field, text, f'strconv.Atoi: parsing "{text}": invalid syntax')]
    spec = job["spec"]
    pods = int(spec.get("parallelism") or 1)
    if spec.get("completions") is not None:
        pods = min(pods, int(spec["completions"]))
    if not 0 < number < pods:
        return [invalid_value(field, number, f"should be between 0 and {pods - 1}")]
    return []


def _as_int(text: Any) -> int | None:
    try:
        return int(str(text))
    except ValueError:
        return None


def refuse_queue_change_of_job(
    new: Obj, old: Obj, *, running: bool, webhook: str = "vjob.kb.io"
) -> None:
    """A job that is not suspended keeps its queue; its priority class may change but not come or
    go.
    """
    causes: list[Cause] = []
    before, after = _labels(old), _labels(new)
    if not before.get(QUEUE_NAME) and not after.get(QUEUE_NAME):
        return
    if running and before.get(QUEUE_NAME, "") != after.get(QUEUE_NAME, ""):
        causes.append(
            invalid_value(
                f"metadata.labels[{QUEUE_NAME}]", after.get(QUEUE_NAME, ""), "field is immutable"
            )
        )
    field = f"metadata.labels[{PRIORITY_CLASS}]"
    had, has = before.get(PRIORITY_CLASS, ""), after.get(PRIORITY_CLASS, "")
    if had and not has:
        causes.append(
            invalid_value(field, has, "WorkloadPriorityClass cannot be removed from a workload")
        )
    if running and has and not had:
        causes.append(
            invalid_value(
                field, has, "WorkloadPriorityClass cannot be added to a non-suspended workload"
            )
        )
    causes += queued_job_causes(new)
    if causes:
        raise webhook_denied(webhook, causes)


def hand_queue_down(kind: str, owner: Obj) -> None:
    """Owners that cannot be suspended hand their queue and priority class down to the pods that are made of their templates."""
    if not _labels(owner).get(QUEUE_NAME):
        return
    spec = owner["spec"]
    templates = [spec.get("template")]
    if kind == "LeaderWorkerSet":
        form = spec.get("leaderWorkerTemplate") or {}
        templates = [form.get("leaderTemplate"), form.get("workerTemplate")]
    for template in templates:
        if isinstance(template, dict):
            _mark_template(owner, template, kind.lower())


def refuse_resize_of_queued(new: Obj, old: Obj, webhook: str) -> None:
    """What is admitted as a whole is switched on and off as a whole."""
    before, after = (int(obj["spec"].get("replicas", 1)) for obj in (old, new))
    if _labels(old).get(QUEUE_NAME) and before and after and before != after:
        raise webhook_denied(webhook, [invalid_value("spec.replicas", after, "field is immutable")])


def _mark_template(owner: Obj, template: Obj, parent: str) -> None:
    labels = _labels(owner)
    if not isinstance(template.get("metadata"), dict):
        template["metadata"] = {}
    metadata = template["metadata"]
    target = metadata.setdefault("labels", {})
    target[QUEUE_NAME] = labels[QUEUE_NAME]
    if labels.get(PRIORITY_CLASS):
        target[PRIORITY_CLASS] = labels[PRIORITY_CLASS]
    metadata.setdefault("annotations", {})[SUSPENDING_PARENT] = parent


# ---- pods ----------------------------------------------------------------------------------------


def gate_queued_pod(pod: Obj, context: Context) -> None:
    metadata = pod["metadata"]
    if metadata.get("namespace") in _UNMANAGED_NAMESPACES or _queued_owner(pod):
        return
    _give_default_queue(pod, context)
    if not _labels(pod).get(QUEUE_NAME):
        return
    metadata["labels"][MANAGED] = "true"
    finalizers = metadata.setdefault("finalizers", [])
    # A parent that makes pods anew must not wait for the old ones.
    if MANAGED not in finalizers and SUSPENDING_PARENT not in _annotations(pod):
        finalizers.append(MANAGED)
    gates = pod["spec"].setdefault("schedulingGates", [])
    present = {gate.get("name") for gate in gates}
    gates.extend({"name": gate} for gate in GATES if gate not in present)
    metadata.setdefault("annotations", {})[ROLE_HASH] = role_hash(pod["spec"])


def queued_pod_causes(pod: Obj) -> list[Cause]:
    labels, annotations = _labels(pod), _annotations(pod)
    if not labels.get(QUEUE_NAME):
        return []
    causes: list[Cause] = []
    field = f"metadata.labels[{QUEUE_NAME}]"
    causes += [
        invalid_value(field, labels[QUEUE_NAME], problem)
        for problem in subdomain_problems(labels[QUEUE_NAME])
    ]
    if labels.get(GROUP_NAME):
        causes += [
            invalid_value(f"metadata.labels[{GROUP_NAME}]", labels[GROUP_NAME], problem)
            for problem in subdomain_problems(labels[GROUP_NAME])
        ]
    causes += _nearness_causes(pod, "metadata.annotations")
    group = labels.get(GROUP_NAME) or annotations.get(GROUP_NAME)
    total = annotations.get(GROUP_TOTAL)
    both = f"both the '{GROUP_TOTAL}' annotation and the '{GROUP_NAME}' label should be set"
    if group and total is None:
        causes.append(required(f"metadata.annotations[{GROUP_TOTAL}]", both))
    elif total is not None and not group:
        causes.append(required(f"metadata.labels[{GROUP_NAME}]", both))
    elif total is not None:
        number = _as_int(total)
        where = f"metadata.annotations[{GROUP_TOTAL}]"
        if number is None:
            causes.append(
                invalid_value(where, total, f'strconv.Atoi: parsing "{total}": invalid syntax')
            )
        elif number < 1:
            causes.append(invalid_value(where, total, "should be greater than or equal to 1"))
    return causes


def refuse_queue_change_of_pod(new: Obj, old: Obj) -> None:
    """A pod that nothing holds back keeps its queue, and gets none later: it would count and yet never have waited."""
    before, after = _labels(old), _labels(new)
    if old["metadata"].get("namespace") in _UNMANAGED_NAMESPACES:
        return
    if old["spec"].get("schedulingGates"):
        return
    if before.get(QUEUE_NAME, "") != after.get(QUEUE_NAME, ""):
        field = f"metadata.labels[{QUEUE_NAME}]"
        raise webhook_denied(
            "vpod.kb.io", [invalid_value(field, after.get(QUEUE_NAME, ""), "field is immutable")]
        )


# Kueue hashes Go's JSON of the fields that make pods alike. Maps come out sorted, structs in the
# order in which their fields were declared, so that order is part of the hash.
_DECLARED = [
    "name",
    "hostPort",
    "containerPort",
    "protocol",
    "hostIP",
    "key",
    "operator",
    "value",
    "effect",
    "tolerationSeconds",
    "nodeAffinity",
    "podAffinity",
    "podAntiAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
    "weight",
    "podAffinityTerm",
    "nodeSelectorTerms",
    "matchLabels",
    "matchExpressions",
    "matchFields",
    "values",
    "maxSkew",
    "whenUnsatisfiable",
    "labelSelector",
    "namespaces",
    "topologyKey",
    "namespaceSelector",
    "minDomains",
    "nodeAffinityPolicy",
    "nodeTaintsPolicy",
    "matchLabelKeys",
    "mismatchLabelKeys",
    "preference",
    "resourceClaimName",
    "resourceClaimTemplateName",
]
_RANK = {name: rank for rank, name in enumerate(_DECLARED)}


def role_hash(spec: Obj) -> str:
    """Which pods of a group are alike: the first eight hex digits that Kueue would write."""
    shape = {
        field: _declared_order(spec.get(field)) or None
        for field in (
            "affinity",
            "nodeSelector",
            "overhead",
            "resourceClaims",
            "tolerations",
            "topologySpreadConstraints",
        )
    }
    shape["priority"] = spec.get("priority")
    shape["runtimeClassName"] = spec.get("runtimeClassName")
    for field in ("containers", "initContainers"):
        shape[field] = [
            {
                "ports": _declared_order(container.get("ports")) or None,
                "resources": {
                    "requests": _sorted((container.get("resources") or {}).get("requests")) or None
                },
            }
            for container in spec.get(field) or []
        ] or None
    text = msgspec.json.encode({"spec": _sorted(shape)})
    return hashlib.sha256(text).hexdigest()[:8]


def _sorted(mapping: Any) -> Any:
    return {key: mapping[key] for key in sorted(mapping)} if isinstance(mapping, dict) else mapping


def _declared_order(value: Any) -> Any:
    if isinstance(value, dict):
        ordered = sorted(value, key=lambda key: (_RANK.get(key, len(_RANK)), key))
        return {key: _declared_order(value[key]) for key in ordered}
    if isinstance(value, list):
        return [_declared_order(item) for item in value]
    return value
