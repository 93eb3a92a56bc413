"""Pod specs, in pods and in templates alike: defaults and validation."""

from __future__ import annotations

from typing import Any

from makeway.kinds.serving import quantity
from makeway.kinds.serving.names import label_problems, labels_causes
from makeway.kinds.serving.refusal import (
    Cause,
    Obj,
    duplicate,
    invalid_value,
    required,
    unsupported,
)

_NATIVE = {"cpu", "memory", "ephemeral-storage", "storage"}
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def default_pod_spec(spec: Obj) -> None:
    """What every pod spec gets, whether a pod's own or a template's."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    if not spec.get("securityContext"):
        spec["securityContext"] = {}
    if spec.get("serviceAccountName"):
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    elif spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or []:
            default_container(container)
    for volume in spec.get("volumes") or []:
        _default_volume(volume)
    if isinstance(spec.get("overhead"), dict):
        quantity.canonical_map(spec["overhead"])


def default_container(container: Obj) -> None:
    container.setdefault("imagePullPolicy", _pull_policy(str(container.get("image") or "")))
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = container.get("resources")
    if not isinstance(resources, dict):
        resources = container["resources"] = {}
    for kind in ("limits", "requests"):
        if isinstance(resources.get(kind), dict):
            quantity.canonical_map(resources[kind])
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or []:
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference:
            reference.setdefault("apiVersion", "v1")
    for name in _PROBES:
        if container.get(name):
            _default_probe(container[name])
    for hook in (container.get("lifecycle") or {}).values():
        _default_http(hook)


def _pull_policy(image: str) -> str:
    if "@" in image:
        return "IfNotPresent"
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return "Always" if not colon or tag == "latest" else "IfNotPresent"


def _default_probe(probe: Obj) -> None:
    for field, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        if not probe.get(field):
            probe[field] = value
    _default_http(probe)
    if isinstance(probe.get("grpc"), dict):
        probe["grpc"].setdefault("service", "")


def _default_http(handler: Any) -> None:
    if isinstance(handler, dict) and isinstance(handler.get("httpGet"), dict):
        handler["httpGet"].setdefault("path", "/")
        handler["httpGet"].setdefault("scheme", "HTTP")


def _default_volume(volume: Obj) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for kind in ("configMap", "secret", "downwardAPI", "projected"):
        if isinstance(volume.get(kind), dict):
            volume[kind].setdefault("defaultMode", 420)
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")
    empty = volume.get("emptyDir")
    if isinstance(empty, dict) and "sizeLimit" in empty:
        empty["sizeLimit"] = quantity.canonical(empty["sizeLimit"])


# ---- validation ----------------------------------------------------------------------------------


def pod_spec_causes(
    spec: Obj, path: str, restart_policies: tuple[str, ...] = ("Always", "OnFailure", "Never")
) -> list[Cause]:
    causes: list[Cause] = []
    containers = spec.get("containers") or []
    if not containers:
        causes.append(required(f"{path}.containers"))
    names: set[str] = set()
    volumes = {volume.get("name") for volume in spec.get("volumes") or []}
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or []):
            causes += _container_causes(container, f"{path}.{field}[{index}]", names, volumes)
    policy = spec.get("restartPolicy")
    if policy not in restart_policies:
        causes.append(unsupported(f"{path}.restartPolicy", policy, restart_policies))
    grace = spec.get("terminationGracePeriodSeconds")
    if isinstance(grace, int) and grace < 0:
        causes.append(
            invalid_value(
                f"{path}.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0"
            )
        )
    causes += labels_causes(spec.get("nodeSelector"), f"{path}.nodeSelector")
    causes += _toleration_causes(spec, path)
    return causes


def _container_causes(container: Obj, path: str, names: set[str], volumes: set[Any]) -> list[Cause]:
    causes: list[Cause] = []
    name = container.get("name") or ""
    if not name:
        causes.append(required(f"{path}.name"))
    else:
        causes += [invalid_value(f"{path}.name", name, problem) for problem in label_problems(name)]
    image = container.get("image") or ""
    if not image:
        causes.append(required(f"{path}.image"))
    elif image != image.strip():
        causes.append(
            invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace")
        )
    policy = container.get("imagePullPolicy")
    if policy not in ("Always", "IfNotPresent", "Never"):
        causes.append(
            unsupported(f"{path}.imagePullPolicy", policy, ("Always", "IfNotPresent", "Never"))
        )
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            causes.append(
                Cause(
                    f"{path}.volumeMounts[{index}].name",
                    f'Not found: "{mount.get("name")}"',
                    "",
                    "FieldValueNotFound",
                )
            )
    causes += resource_causes(container.get("resources") or {}, f"{path}.resources")
    if name and name in names:
        causes.append(duplicate(f"{path}.name", name))
    names.add(name)
    return causes


def resource_causes(resources: Obj, path: str) -> list[Cause]:
    causes: list[Cause] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            causes += _amount_causes(name, text, f"{path}.{kind}[{name}]")
    for name, text in requests.items():
        limit = limits.get(name)
        if limit is None:
            if _extended(name):
                causes.append(
                    required(f"{path}.limits", "Limit must be set for non overcommitable resources")
                )
            continue
        asked, allowed = quantity.parse(text), quantity.parse(limit)
        if _extended(name) and asked != allowed:
            causes.append(
                invalid_value(f"{path}.requests", text, f"must be equal to {name} limit of {limit}")
            )
        elif asked > allowed:
            causes.append(
                invalid_value(
                    f"{path}.requests",
                    text,
                    f"must be less than or equal to {name} limit of {limit}",
                )
            )
    return causes


def _extended(name: str) -> bool:
    return name not in _NATIVE and not name.startswith("hugepages-") and "/" in name


def _amount_causes(name: str, text: str, path: str) -> list[Cause]:
    value = quantity.parse(text)
    if value < 0:
        return [invalid_value(path, text, "must be greater than or equal to 0")]
    if _extended(name) and value != value.to_integral_value():
        return [invalid_value(path, text, "must be an integer")]
    if "/" not in name and name not in _NATIVE and not name.startswith("hugepages-"):
        return [invalid_value(path, name, "must be a standard resource type or fully qualified")]
    return []


def _toleration_causes(spec: Obj, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for index, toleration in enumerate(spec.get("tolerations") or []):
        where = f"{path}.tolerations[{index}]"
        operator = toleration.get("operator") or "Equal"
        if operator not in ("Equal", "Exists", "Lt", "Gt"):
            causes.append(unsupported(f"{where}.operator", operator, ("Equal", "Exists")))
        elif operator == "Exists" and toleration.get("value"):
            causes.append(
                invalid_value(
                    f"{where}.operator",
                    toleration["value"],
                    "value must be empty when `operator` is 'Exists'",
                )
            )
        if not toleration.get("key") and operator != "Exists":
            causes.append(
                invalid_value(
                    f"{where}.operator",
                    operator,
                    'operator must be Exists when `key` is empty, which means "match all values'
                    ' and all keys"',
                )
            )
    return causes
