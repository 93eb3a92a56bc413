"""KubeAI Models: a model server as pods that the Model itself owns.

As KubeAI does it: a terminating pod still counts as a replica, so an evicted one is replaced only when its
object is gone. What KubeAI leaves to its log is said in conditions here: no replicas, a missing
PriorityClass, a resource profile that does not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from makeway.client.resource import MODELS, PODS, Object
from makeway.embedded.controllers.hashing import short_hash
from makeway.embedded.controllers.plan import Action, Create, Delete, Patch, Plan, merge_patch, plan
from makeway.embedded.controllers.profiles import expand_profile, image_for, times
from makeway.embedded.objects import (
    created_at,
    deleted,
    name_of,
    namespace_of,
    owned_by,
    ready,
    status_of,
    with_condition,
)
from makeway.errors import UserError

HASH = "pod-hash"
LABEL = "app=model"  # on every pod of a Model
PORT = 8000
SURGE = 1
FEATURES = "features.kubeai.org/"


class _Facts(msgspec.Struct, frozen=True):
    """What stands in the way, in words; empty when nothing does."""

    scaled_to_zero: str = ""
    missing_class: str = ""
    bad_profile: str = ""


def reconcile(
    model: Object,
    pods: list[Object],
    now: float,
    profiles: Mapping[str, Any] | None = None,
    priority_classes: Collection[str] | None = None,
) -> Plan:
    """`priority_classes` are the names that exist; None when they are not known."""
    if deleted(model):
        return Plan()
    replicas = _replicas(model)
    spec, bad_profile = _pod_spec_or_reason(model, profiles)
    facts = _Facts(
        scaled_to_zero=_scaled_to_zero(model, replicas),
        missing_class=_missing_class(model, priority_classes),
        bad_profile=bad_profile,
    )
    changes: list[Action] = []
    if spec is not None:
        changes = _roll(model, pods, spec, replicas, may_make=not facts.missing_class)
    return plan(_own_fields(model, replicas), changes, _write_status(model, pods, facts, now))


def _replicas(model: Object) -> int:
    spec = model["spec"]
    asked = int(spec.get("replicas") or 0)
    if spec.get("autoscalingDisabled"):
        return asked
    most = spec.get("maxReplicas")
    raised = max(asked, int(spec.get("minReplicas") or 0))
    return raised if most is None else min(raised, int(most))


def _own_fields(model: Object, replicas: int) -> list[Action]:
    """The clamped number of replicas, and a label for each feature."""
    body: Object = {}
    if int(model["spec"].get("replicas") or 0) != replicas:
        body["spec"] = {"replicas": replicas}
    wanted = {f"{FEATURES}{feature}": "true" for feature in model["spec"].get("features") or []}
    labels = model["metadata"].get("labels") or {}
    present = {key: value for key, value in labels.items() if key.startswith(FEATURES)}
    changed = merge_patch(present, wanted)
    if changed:
        body["metadata"] = {"labels": changed}
    return [Patch(MODELS, model, body)] if body else []


# Pods come and go


def _roll(
    model: Object, pods: list[Object], spec: Object, replicas: int, *, may_make: bool
) -> list[Action]:
    hashed = short_hash(spec)
    outdated = [pod for pod in pods if _hash_of(pod) != hashed]
    wanted = replicas + (SURGE if outdated and replicas else 0)
    going = [pod for pod in outdated if not ready(pod) and not deleted(pod)]
    kept = [pod for pod in pods if not any(pod is each for each in going)]
    missing = wanted - len(kept)
    if missing > 0:
        made = [_pod(model, spec, hashed) for _ in range(missing if may_make else 0)]
        return [*_delete(model, going), *(Create(PODS, pod, tell=model) for pod in made)]
    living = [pod for pod in kept if not deleted(pod)]
    if missing < 0:
        order = sorted(living, key=lambda pod: _worth(pod, hashed))
        return _delete(model, [*going, *order[: -missing - (len(kept) - len(living))]])
    if outdated and all(ready(pod) for pod in kept):
        # All are ready, the surge included: one old server may go.
        stale = [pod for pod in living if _hash_of(pod) != hashed]
        return _delete(model, [*going, *stale[:1]])
    return _delete(model, going)


def _worth(pod: Object, hashed: str) -> tuple[bool, bool, bool, float]:
    """Who goes first: not ready, then not placed, then outdated, then the youngest."""
    placed = bool(pod["spec"].get("nodeName"))
    return ready(pod), placed, _hash_of(pod) == hashed, -created_at(pod)


def _delete(model: Object, pods: list[Object]) -> list[Action]:
    return [Delete(PODS, pod, tell=model) for pod in pods]


def _hash_of(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(HASH, ""))


def _pod(model: Object, spec: Object, hashed: str) -> Object:
    name, engine = name_of(model), str(model["spec"]["engine"]).lower()
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"model-{name}-{hashed}-",
            "namespace": namespace_of(model),
            "labels": {
                "app": "model",
                "model": name,
                "app.kubernetes.io/name": engine,
                "app.kubernetes.io/instance": f"{engine}-{name}",
                "app.kubernetes.io/managed-by": "kubeai",
                HASH: hashed,
                **_passed_on(model["metadata"].get("labels")),
            },
            "annotations": {
                "model-pod-port": str(PORT),
                **_passed_on(model["metadata"].get("annotations")),
            },
            "ownerReferences": owned_by(model, "kubeai.org/v1", "Model"),
        },
        "spec": spec,
    }


def _passed_on(given: Mapping[str, str] | None) -> dict[str, str]:
    """What queues and prices a pod is read from the pod."""
    prefixes = ("kueue.x-k8s.io/", "makeway.dev/")
    return {key: value for key, value in (given or {}).items() if key.startswith(prefixes)}


# The pod template


def _pod_spec_or_reason(
    model: Object, profiles: Mapping[str, Any] | None
) -> tuple[Object | None, str]:
    try:
        return pod_spec(model, profiles), ""
    except UserError as error:
        return None, str(error)


def pod_spec(model: Object, profiles: Mapping[str, Any] | None = None) -> Object:
    given = model["spec"]
    profile, count = expand_profile(str(given.get("resourceProfile") or ""), profiles)
    resources: Object = {
        part: {name: times(amount, count) for name, amount in profile[part].items()}
        for part in ("requests", "limits")
        if profile.get(part)
    }
    container: Object = {
        "name": "server",
        "image": given.get("image") or image_for(str(given["engine"]), profile),
        "resources": resources,
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}],
        **_engine(model),
    }
    container["env"] = [
        *container.get("env", []),
        *({"name": key, "value": str(given["env"][key])} for key in sorted(given.get("env") or {})),
    ]
    if given.get("envFrom"):
        container["envFrom"] = given["envFrom"]
    if given["engine"] != "Infinity":
        container["securityContext"] = {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    spec: Object = {
        "containers": [container],
        "volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory"}}],
    }
    for field in ("nodeSelector", "affinity", "tolerations", "schedulerName"):
        if profile.get(field):
            spec[field] = profile[field]
    if profile.get("runtimeClassName"):
        spec["runtimeClassName"] = profile["runtimeClassName"]
    if given.get("priorityClassName"):
        spec["priorityClassName"] = given["priorityClassName"]
    return spec


def _engine(model: Object) -> Object:
    return _ENGINES[str(model["spec"]["engine"])](model)


def _reference(model: Object) -> str:
    """The part of the URL that the server is told: without its scheme and its options."""
    return str(model["spec"]["url"]).partition("://")[2].partition("?")[0]


def _vllm(model: Object) -> Object:
    url = str(model["spec"]["url"])
    where = "/model" if url.startswith("pvc://") else _reference(model)
    where = url.partition("?")[0] if url.startswith("s3://") else where
    args = [f"--model={where}", f"--served-model-name={name_of(model)}"]
    if url.startswith("s3://") and not model["spec"].get("cacheProfile"):
        args.append("--load-format=runai_streamer")
    if model["spec"].get("adapters"):
        args.append("--enable-lora")
    return {
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": [*args, *_extra_args(model)],
        **_probes("/health", startup_period=2, startup_failures=5400),
    }


def _ollama(model: Object) -> Object:
    name, reference = name_of(model), _reference(model)
    script = f"/bin/ollama pull {reference} && /bin/ollama cp {reference} {name}"
    script += f" && /bin/ollama run {name} hi"
    probes = _probes("/", startup_period=3, startup_failures=10)
    probes["startupProbe"] = {
        "exec": {"command": ["bash", "-c", script]},
        "initialDelaySeconds": 1,
        "periodSeconds": 3,
        "failureThreshold": 10,
        "timeoutSeconds": 10800,
    }
    probes["livenessProbe"]["initialDelaySeconds"] = 900
    return {
        **_with_args(model),
        "env": [
            {"name": "OLLAMA_HOST", "value": f"0.0.0.0:{PORT}"},
            {"name": "OLLAMA_KEEP_ALIVE", "value": "999999h"},
        ],
        **probes,
    }


def _whisper(model: Object) -> Object:
    return {
        **_with_args(model),
        "env": [
            {"name": "WHISPER__MODEL", "value": _reference(model)},
            {"name": "ENABLE_UI", "value": "false"},
        ],
        **_probes("/health", startup_period=2, startup_failures=900),
    }


def _infinity(model: Object) -> Object:
    return {
        "args": ["v2", *_extra_args(model)],
        "env": [
            {"name": "INFINITY_MODEL_ID", "value": _reference(model)},
            {"name": "INFINITY_SERVED_MODEL_NAME", "value": name_of(model)},
            {"name": "INFINITY_URL_PREFIX", "value": "/v1"},
            {"name": "INFINITY_ENGINE", "value": "torch"},
            {"name": "INFINITY_PORT", "value": str(PORT)},
        ],
        **_probes("/health", startup_period=2, startup_failures=600),
    }


_ENGINES = {
    "VLLM": _vllm,
    "OLlama": _ollama,
    "FasterWhisper": _whisper,
    "Infinity": _infinity,
}


def _extra_args(model: Object) -> list[str]:
    return [str(each) for each in model["spec"].get("args") or []]


def _with_args(model: Object) -> Object:
    args = _extra_args(model)
    return {"args": args} if args else {}


def _probes(path: str, *, startup_period: int, startup_failures: int) -> Object:
    asked = {"httpGet": {"path": path, "port": "http"}}
    return {
        "startupProbe": {
            **asked,
            "periodSeconds": startup_period,
            "failureThreshold": startup_failures,
        },
        "readinessProbe": {**asked, "periodSeconds": 10, "failureThreshold": 3},
        "livenessProbe": {**asked, "periodSeconds": 30, "failureThreshold": 3},
    }


# Status


def _scaled_to_zero(model: Object, replicas: int) -> str:
    if replicas:
        return ""
    name = name_of(model)
    return (
        "This model has no replicas, so no pod is made and nothing can be preempted for it."
        f" Start one: kubectl scale model {name} --replicas=1 -n {namespace_of(model)},"
        " or set spec.minReplicas: 1"
    )


def _missing_class(model: Object, known: Collection[str] | None) -> str:
    name = model["spec"].get("priorityClassName")
    if not name or known is None or name in known:
        return ""
    listed = ", ".join(sorted(known)) or "none"
    return f"no PriorityClass with name {name} was found. Create it, or use one of: {listed}"


def _write_status(model: Object, pods: list[Object], facts: _Facts, now: float) -> list[Action]:
    old = status_of(model)
    conditions = list(old.get("conditions") or [])
    for kind, reason, said in (
        ("ScaledToZero", "NoReplicas", facts.scaled_to_zero),
        ("PriorityClassMissing", "NotFound", facts.missing_class),
        ("ResourceProfileInvalid", "NotFound", facts.bad_profile),
    ):
        known = any(each["type"] == kind for each in conditions)
        if said or known:
            conditions = with_condition(
                conditions,
                kind,
                status="True" if said else "False",
                reason=reason if said else "AsExpected",
                message=said,
                now=now,
            )
    status = {
        **old,
        "replicas": {"all": len(pods), "ready": sum(ready(pod) for pod in pods)},
    }
    if conditions:
        status["conditions"] = conditions
    body = merge_patch(old, status)
    return [Patch(MODELS, model, {"status": body}, "status")] if body else []
