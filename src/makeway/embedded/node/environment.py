"""What a container's process sees: its variables, its arguments, who it runs as.

Pure: what has to be fetched (ConfigMaps, Secrets) is handed in as `Sources`. A reference that cannot be
resolved is a `StartError` with the reason that a kubelet gives in `kubectl get pods`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from makeway.client.resource import Object
from makeway.model.resources import amount_of, parse_quantity

VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
PLAIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class StartError(Exception):
    """The container cannot be started as it is written; `reason` shows as its state."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def config_error(message: str) -> StartError:
    return StartError("CreateContainerConfigError", message)


class Source(msgspec.Struct, frozen=True):
    """The keys of a ConfigMap or Secret, as bytes."""

    data: dict[str, bytes]


Sources = Mapping[tuple[str, str], Source | None]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the pod runs: what fieldRef and resourceFieldRef ask about."""

    host_ip: str
    pod_ip: str
    allocatable: Mapping[str, str]


def source_of(obj: Object) -> Source:
    data = {key: text.encode() for key, text in (obj.get("data") or {}).items()}
    if obj.get("kind") == "Secret":
        data = {key: base64.b64decode(text) for key, text in (obj.get("data") or {}).items()}
    binary = {key: base64.b64decode(text) for key, text in (obj.get("binaryData") or {}).items()}
    return Source({**data, **binary})


def references(spec: Object) -> set[tuple[str, str]]:
    """Every ConfigMap and Secret that this pod names, as (kind, name)."""
    found: set[tuple[str, str]] = set()
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        for entry in container.get("envFrom") or []:
            found.update(_named(entry, "configMapRef", "secretRef"))
        for variable in container.get("env") or []:
            found.update(_named(variable.get("valueFrom") or {}, "configMapKeyRef", "secretKeyRef"))
    for volume in spec.get("volumes") or []:
        for part in [volume, *((volume.get("projected") or {}).get("sources") or [])]:
            found.update(_named(part, "configMap", "secret"))
    return found


def _named(entry: Object, config_map: str, secret: str) -> Iterator[tuple[str, str]]:
    if entry.get(config_map):
        yield "ConfigMap", str(entry[config_map]["name"])
    if entry.get(secret):
        yield "Secret", str(entry[secret].get("name") or entry[secret].get("secretName"))


# Variables


def environment(
    pod: Object, container: Object, sources: Sources, place: Place, base: Mapping[str, str]
) -> dict[str, str]:
    """`base` is what the runner gives; the pod's own words win over it."""
    result = dict(base)
    for entry in container.get("envFrom") or []:
        result.update(_all_keys(entry, sources))
    for variable in container.get("env") or []:
        value = _value(variable, pod, container, sources, place)
        if value is not None:
            result[variable["name"]] = expand(value, result)
    return result


def _all_keys(entry: Object, sources: Sources) -> dict[str, str]:
    prefix = str(entry.get("prefix") or "")
    for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        named = entry.get(field)
        if not named:
            continue
        source = sources.get((kind, named["name"]))
        if source is None:
            if named.get("optional"):
                return {}
            raise config_error(f'{kind.lower()} "{named["name"]}" not found')
        return {prefix + key: value.decode(errors="replace") for key, value in source.data.items()}
    return {}


def _value(
    variable: Object, pod: Object, container: Object, sources: Sources, place: Place
) -> str | None:
    source = variable.get("valueFrom")
    if not source:
        return str(variable.get("value") or "")
    if source.get("fieldRef"):
        return field_value(pod, source["fieldRef"]["fieldPath"], place)
    if source.get("resourceFieldRef"):
        return resource_value(pod, container, source["resourceFieldRef"], place)
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if source.get(field):
            return _key_value(source[field], kind, sources)
    raise config_error(f"variable {variable['name']}: valueFrom names no source known here")


def _key_value(reference: Object, kind: str, sources: Sources) -> str | None:
    name, key = reference["name"], reference["key"]
    source = sources.get((kind, name))
    if source is None or key not in source.data:
        if reference.get("optional"):
            return None
        if source is None:
            raise config_error(f'{kind.lower()} "{name}" not found')
        raise config_error(f"couldn't find key {key} in {kind} {name}")
    return source.data[key].decode(errors="replace")


def field_value(pod: Object, path: str, place: Place) -> str:
    metadata, spec = pod["metadata"], pod["spec"]
    keyed = KEYED.fullmatch(path)
    if keyed:
        return str((metadata.get(keyed[1]) or {}).get(keyed[2], ""))
    simple = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.hostIP": place.host_ip,
        "status.hostIPs": place.host_ip,
        "status.podIP": place.pod_ip,
        "status.podIPs": place.pod_ip,
    }
    if path in simple:
        return str(simple[path])
    if path in ("metadata.labels", "metadata.annotations"):
        entries = metadata.get(path.partition(".")[2]) or {}
        return "\n".join(f'{key}="{_quoted(value)}"' for key, value in sorted(entries.items()))
    raise config_error(f"fieldRef: {path} is not a field that can be read here")


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resource_value(pod: Object, container: Object, reference: Object, place: Place) -> str:
    part, _, resource = str(reference["resource"]).partition(".")
    named = reference.get("containerName")
    if named:
        everyone = [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
        container = next(each for each in everyone if each["name"] == named)
    resources = container.get("resources") or {}
    quantity = (resources.get(part) or {}).get(resource)
    if quantity is None and part == "limits":
        # Who sets no limit may use the whole node.
        quantity = place.allocatable.get(resource)
    return str(_divided(resource, quantity or "0", str(reference.get("divisor") or "0")))


def _divided(resource: str, quantity: Any, divisor: str) -> int:
    """Rounded up, as the API documents it."""
    if resource == "cpu":
        by = amount_of("cpu", divisor) or 1000
    else:
        by = parse_quantity(divisor) or 1
    amount = amount_of("cpu", quantity) if resource == "cpu" else parse_quantity(str(quantity))
    return -(-amount // by)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` becomes the variable's value if there is one; `$$` is a plain dollar."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return VARIABLE.sub(replace, text)


# Arguments


def arguments(container: Object, variables: Mapping[str, str]) -> tuple[str, ...]:
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    return tuple(expand(str(word), variables) for word in words)


# Who it runs as


class User(msgspec.Struct, frozen=True):
    uid: int | None = None
    gid: int | None = None


def user_of(pod: Object, container: Object, own_uid: int) -> User:
    """As asked, if this process may; nobody runs as somebody else by accident."""
    pod_wide = pod["spec"].get("securityContext") or {}
    context = {**pod_wide, **(container.get("securityContext") or {})}
    uid, gid = context.get("runAsUser"), context.get("runAsGroup")
    becomes = own_uid if uid is None else int(uid)
    if context.get("runAsNonRoot") and becomes == 0:
        raise config_error(
            "container has runAsNonRoot and would run as root here: set runAsUser to another user"
        )
    if becomes == own_uid and gid is None:
        return User()
    if own_uid != 0:
        raise config_error(
            f"runAsUser {becomes} cannot be honoured: makeway runs as user {own_uid} and only root"
            " may start processes as somebody else. Remove runAsUser, or start makeway as root"
        )
    return User(becomes, becomes if gid is None else int(gid))
