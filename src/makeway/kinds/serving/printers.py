"""The columns of the built-in kinds, as the API server prints them."""

from __future__ import annotations

from typing import Any

from makeway.control.clock import parse_timestamp
from makeway.kinds.serving.columns import AGE, NAME, Cell, Column, at, human_duration, since
from makeway.kinds.serving.refusal import Obj


def _column(
    name: str,
    path: tuple[str, ...],
    type: str = "string",  # noqa: A002  the API's own word
    *,
    empty: Cell = None,
    wide: bool = False,
) -> Column:
    def cell(obj: Obj, _: float) -> Cell:
        value = at(obj, *path)
        return empty if value is None or value == "" else value

    return Column(name, cell, type, wide=wide, description=".".join(path))


def _number(name: str, *path: str, wide: bool = False) -> Column:
    return _column(name, path, "integer", empty=0, wide=wide)


def _text(name: str, *path: str, wide: bool = False) -> Column:
    return _column(name, path, empty="<none>", wide=wide)


def _computed(name: str, cell: Any, type: str = "string", *, wide: bool = False) -> Column:  # noqa: A002
    return Column(name, cell, type, wide=wide, description=name)


def selector_text(selector: Any) -> str:
    """A label selector in the one-line form that kubectl shows."""
    if not selector:
        return "<none>"
    if not any(key in selector for key in ("matchLabels", "matchExpressions")):
        return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or []:
        key, operator, values = term.get("key"), term.get("operator"), term.get("values") or []
        listed = f"({','.join(sorted(values))})"
        parts.append(
            {
                "In": f"{key} in {listed}",
                "NotIn": f"{key} notin {listed}",
                "Exists": f"{key}",
                "DoesNotExist": f"!{key}",
            }.get(operator, f"{key} {operator} {listed}")
        )
    return ",".join(parts)


def _containers(obj: Obj) -> list[Obj]:
    return at(obj, "spec", "template", "spec", "containers") or []


CONTAINERS = _computed(
    "Containers", lambda obj, _: ",".join(c["name"] for c in _containers(obj)), wide=True
)
IMAGES = _computed(
    "Images", lambda obj, _: ",".join(c.get("image", "") for c in _containers(obj)), wide=True
)
SELECTOR = _computed(
    "Selector", lambda obj, _: selector_text(at(obj, "spec", "selector")), wide=True
)


# ---- pods ----------------------------------------------------------------------------------------


def _restartable(container: Obj) -> bool:
    return container.get("restartPolicy") == "Always"


def _init_reason(obj: Obj) -> tuple[str, bool]:
    """The status while init containers run: the text and whether they are still at work."""
    specs = {c["name"]: c for c in at(obj, "spec", "initContainers") or []}
    for index, status in enumerate(at(obj, "status", "initContainerStatuses") or []):
        state = status.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting")
        if terminated and terminated.get("exitCode", 0) == 0:
            continue
        if _restartable(specs.get(status.get("name", ""), {})) and status.get("started"):
            continue
        if terminated:
            if terminated.get("reason"):
                return f"Init:{terminated['reason']}", True
            if terminated.get("signal"):
                return f"Init:Signal:{terminated['signal']}", True
            return f"Init:ExitCode:{terminated.get('exitCode', 0)}", True
        if waiting and waiting.get("reason") not in (None, "", "PodInitializing"):
            return f"Init:{waiting['reason']}", True
        return f"Init:{index}/{len(specs)}", True
    return "", False


def _gated(obj: Obj) -> bool:
    return any(
        condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated"
        for condition in at(obj, "status", "conditions") or []
    )


def _ready_condition(obj: Obj) -> bool:
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in at(obj, "status", "conditions") or []
    )


def pod_status(obj: Obj, _: float = 0) -> str:
    status = obj.get("status") or {}
    reason = status.get("reason") or status.get("phase") or "Unknown"
    if _gated(obj):
        reason = "SchedulingGated"
    init_reason, initializing = _init_reason(obj)
    if initializing:
        reason = init_reason
    else:
        running = False
        for container in reversed(status.get("containerStatuses") or []):
            state = container.get("state") or {}
            waiting, terminated = state.get("waiting"), state.get("terminated")
            if waiting and waiting.get("reason"):
                reason = waiting["reason"]
            elif terminated and terminated.get("reason"):
                reason = terminated["reason"]
            elif terminated:
                signal = terminated.get("signal")
                reason = (
                    f"Signal:{signal}" if signal else f"ExitCode:{terminated.get('exitCode', 0)}"
                )
            elif container.get("ready") and state.get("running"):
                running = True
        if reason == "Completed" and running:
            reason = "Running" if _ready_condition(obj) else "NotReady"
    if at(obj, "metadata", "deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        # A pod whose containers have ended stays with its end state until its object is gone.
        if status.get("phase") not in ("Failed", "Succeeded"):
            return "Terminating"
    return str(reason)


def _pod_ready(obj: Obj, _: float) -> str:
    sidecars = [c for c in at(obj, "spec", "initContainers") or [] if _restartable(c)]
    total = len(at(obj, "spec", "containers") or []) + len(sidecars)
    names = {c["name"] for c in sidecars}
    ready = sum(1 for c in at(obj, "status", "containerStatuses") or [] if c.get("ready"))
    ready += sum(
        1
        for c in at(obj, "status", "initContainerStatuses") or []
        if c.get("name") in names and c.get("ready")
    )
    return f"{ready}/{total}"


def _pod_restarts(obj: Obj, now: float) -> str:
    statuses = at(obj, "status", "containerStatuses") or []
    count = sum(int(status.get("restartCount") or 0) for status in statuses)
    ends = [at(status, "lastState", "terminated", "finishedAt") for status in statuses]
    finished = [parse_timestamp(end) for end in ends if end]
    if count and finished:
        return f"{count} ({human_duration(now - max(finished))} ago)"
    return str(count)


def _readiness_gates(obj: Obj, _: float) -> str:
    gates = at(obj, "spec", "readinessGates") or []
    if not gates:
        return "<none>"
    true = {c["type"] for c in at(obj, "status", "conditions") or [] if c.get("status") == "True"}
    return f"{sum(1 for gate in gates if gate.get('conditionType') in true)}/{len(gates)}"


POD = (
    NAME,
    _computed("Ready", _pod_ready),
    _computed("Status", pod_status),
    _computed("Restarts", _pod_restarts),
    AGE,
    _text("IP", "status", "podIP", wide=True),
    _text("Node", "spec", "nodeName", wide=True),
    _text("Nominated Node", "status", "nominatedNodeName", wide=True),
    _computed("Readiness Gates", _readiness_gates, wide=True),
)


# ---- nodes ---------------------------------------------------------------------------------------


def _node_status(obj: Obj, _: float) -> str:
    ready = [c for c in at(obj, "status", "conditions") or [] if c.get("type") == "Ready"]
    words = ["Ready" if ready[0].get("status") == "True" else "NotReady"] if ready else ["Unknown"]
    if at(obj, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(obj: Obj, _: float) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = set()
    for key, value in (at(obj, "metadata", "labels") or {}).items():
        if key.startswith(prefix) and len(key) > len(prefix):
            roles.add(key.removeprefix(prefix))
        elif key == "kubernetes.io/role" and value:
            roles.add(value)
    return ",".join(sorted(roles)) or "<none>"


def _node_address(kind: str) -> Any:
    def cell(obj: Obj, _: float) -> str:
        for address in at(obj, "status", "addresses") or []:
            if address.get("type") == kind:
                return str(address.get("address"))
        return "<none>"

    return cell


def _node_info(field: str) -> Any:
    return lambda obj, _: at(obj, "status", "nodeInfo", field) or "<unknown>"


NODE = (
    NAME,
    _computed("Status", _node_status),
    _computed("Roles", _node_roles),
    AGE,
    _computed("Version", lambda obj, _: at(obj, "status", "nodeInfo", "kubeletVersion") or ""),
    _computed("Internal-IP", _node_address("InternalIP"), wide=True),
    _computed("External-IP", _node_address("ExternalIP"), wide=True),
    _computed("OS-Image", _node_info("osImage"), wide=True),
    _computed("Kernel-Version", _node_info("kernelVersion"), wide=True),
    _computed("Container-Runtime", _node_info("containerRuntimeVersion"), wide=True),
)


# ---- workloads -----------------------------------------------------------------------------------


def job_status(obj: Obj, _: float = 0) -> str:
    conditions = {
        c["type"] for c in at(obj, "status", "conditions") or [] if c.get("status") == "True"
    }
    if "Complete" in conditions:
        return "Complete"
    if "Failed" in conditions:
        return "Failed"
    if at(obj, "metadata", "deletionTimestamp"):
        return "Terminating"
    if "Suspended" in conditions:
        return "Suspended"
    if "FailureTarget" in conditions:
        return "FailureTarget"
    if "SuccessCriteriaMet" in conditions:
        return "SuccessCriteriaMet"
    return "Running"


def _job_completions(obj: Obj, _: float) -> str:
    succeeded = at(obj, "status", "succeeded") or 0
    completions = at(obj, "spec", "completions")
    if completions is not None:
        return f"{succeeded}/{completions}"
    parallelism = at(obj, "spec", "parallelism") or 0
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_duration(obj: Obj, now: float) -> str:
    start, end = at(obj, "status", "startTime"), at(obj, "status", "completionTime")
    if not start:
        return ""
    return human_duration((parse_timestamp(end) if end else now) - parse_timestamp(start))


JOB = (
    NAME,
    _computed("Status", job_status),
    _computed("Completions", _job_completions),
    _computed("Duration", _job_duration),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
)


def _cron_containers(name: str, field: str) -> Column:
    def cell(obj: Obj, _: float) -> str:
        template = at(obj, "spec", "jobTemplate", "spec", "template", "spec", "containers") or []
        return ",".join(str(container.get(field, "")) for container in template)

    return _computed(name, cell, wide=True)


CRONJOB = (
    NAME,
    _text("Schedule", "spec", "schedule"),
    _text("Timezone", "spec", "timeZone"),
    _computed("Suspend", lambda obj, _: "True" if at(obj, "spec", "suspend") else "False"),
    _computed("Active", lambda obj, _: len(at(obj, "status", "active") or []), "integer"),
    _computed(
        "Last Schedule",
        lambda obj, now: (
            since(last, now) if (last := at(obj, "status", "lastScheduleTime")) else "<none>"
        ),
    ),
    AGE,
    _cron_containers("Containers", "name"),
    _cron_containers("Images", "image"),
    _computed("Selector", lambda obj, _: "<none>", wide=True),
)


def _ready_of_desired(ready: str) -> Any:
    return lambda obj, _: f"{at(obj, 'status', ready) or 0}/{at(obj, 'spec', 'replicas') or 0}"


DEPLOYMENT = (
    NAME,
    _computed("Ready", _ready_of_desired("readyReplicas")),
    _computed("Up-to-date", lambda obj, _: at(obj, "status", "updatedReplicas") or 0, "string"),
    _computed("Available", lambda obj, _: at(obj, "status", "availableReplicas") or 0, "string"),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
)
REPLICASET = (
    NAME,
    _number("Desired", "spec", "replicas"),
    _number("Current", "status", "replicas"),
    _number("Ready", "status", "readyReplicas"),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
)
STATEFULSET = (
    NAME,
    _computed("Ready", _ready_of_desired("readyReplicas")),
    AGE,
    CONTAINERS,
    IMAGES,
)
SCALE = (
    NAME,
    _number("Desired", "spec", "replicas"),
    _number("Available", "status", "replicas"),
    AGE,
)
DAEMONSET = (
    NAME,
    _number("Desired", "status", "desiredNumberScheduled"),
    _number("Current", "status", "currentNumberScheduled"),
    _number("Ready", "status", "numberReady"),
    _number("Up-to-date", "status", "updatedNumberScheduled"),
    _number("Available", "status", "numberAvailable"),
    _computed(
        "Node Selector",
        lambda obj, _: selector_text(at(obj, "spec", "template", "spec", "nodeSelector")),
    ),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
)


# ---- the rest ------------------------------------------------------------------------------------

NAMESPACE = (NAME, _column("Status", ("status", "phase")), AGE)
PRIORITY_CLASS = (
    NAME,
    _number("Value", "value"),
    _computed("Global-Default", lambda obj, _: bool(obj.get("globalDefault")), "boolean"),
    AGE,
    _column("PreemptionPolicy", ("preemptionPolicy",)),
)
CONFIG_MAP = (
    NAME,
    _computed(
        "Data", lambda obj, _: str(len(obj.get("data") or {}) + len(obj.get("binaryData") or {}))
    ),
    AGE,
)
SECRET = (
    NAME,
    _column("Type", ("type",)),
    _computed("Data", lambda obj, _: str(len(obj.get("data") or {}))),
    AGE,
)
SERVICE_ACCOUNT = (
    NAME,
    _computed("Secrets", lambda obj, _: str(len(obj.get("secrets") or []))),
    AGE,
)


def _service_ports(obj: Obj, _: float) -> str:
    ports = at(obj, "spec", "ports") or []
    return (
        ",".join(
            f"{p.get('port')}:{p['nodePort']}/{p.get('protocol', 'TCP')}"
            if p.get("nodePort")
            else f"{p.get('port')}/{p.get('protocol', 'TCP')}"
            for p in ports
        )
        or "<none>"
    )


def _external_ip(obj: Obj, _: float) -> str:
    if at(obj, "spec", "type") == "ExternalName":
        return at(obj, "spec", "externalName") or "<none>"
    addresses = list(at(obj, "spec", "externalIPs") or [])
    if at(obj, "spec", "type") == "LoadBalancer" and not addresses:
        return "<pending>"
    return ",".join(addresses) or "<none>"


SERVICE = (
    NAME,
    _column("Type", ("spec", "type")),
    _text("Cluster-IP", "spec", "clusterIP"),
    _computed("External-IP", _external_ip),
    _computed("Port(s)", _service_ports),
    AGE,
    SELECTOR,
)


def _endpoints(obj: Obj, _: float) -> str:
    found = [
        f"{address.get('ip')}:{port.get('port')}"
        for subset in obj.get("subsets") or []
        for address in subset.get("addresses") or []
        for port in subset.get("ports") or [{"port": ""}]
    ]
    return (
        ",".join(found[:3]) + (f" + {len(found) - 3} more..." if len(found) > 3 else "") or "<none>"
    )


ENDPOINTS = (NAME, _computed("Endpoints", _endpoints), AGE)


def event_times(obj: Obj) -> tuple[str | None, str | None, int]:
    """First and last time, and the count, from whichever fields the writer used."""
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp") or first
    count = obj.get("count") or 1
    series = obj.get("series")
    if series:
        last, count = series.get("lastObservedTime") or last, series.get("count") or count
    return first, last, int(count)


def _event_object(obj: Obj, _: float) -> str:
    about = obj.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _event_source(obj: Obj, _: float) -> str:
    source = obj.get("source") or {}
    component = source.get("component") or obj.get("reportingComponent") or ""
    instance = source.get("host") or obj.get("reportingInstance") or ""
    return f"{component}, {instance}" if instance else str(component)


def _last_seen(obj: Obj, now: float) -> str:
    first, last, count = event_times(obj)
    if obj.get("series") or count > 1:
        return (
            f"{since(last, now)} (x{count} over {since(first, now)})" if first else since(last, now)
        )
    return since(last, now)


EVENT = (
    _computed("Last Seen", _last_seen),
    _column("Type", ("type",)),
    _column("Reason", ("reason",)),
    _computed("Object", _event_object),
    _computed("Subobject", lambda obj, _: at(obj, "involvedObject", "fieldPath") or "", wide=True),
    _computed("Source", _event_source, wide=True),
    _computed("Message", lambda obj, _: str(obj.get("message") or "").strip()),
    _computed("First Seen", lambda obj, now: since(event_times(obj)[0], now), wide=True),
    _computed("Count", lambda obj, _: event_times(obj)[2], "string", wide=True),
    Column("Name", lambda obj, _: obj["metadata"]["name"], format="name", wide=True),
)


def _budget_limit(name: str) -> Any:
    def cell(obj: Obj, _: float) -> str:
        value = at(obj, "spec", name)
        return "N/A" if value is None else str(value)

    return cell


DISRUPTION_BUDGET = (
    NAME,
    _computed("Min Available", _budget_limit("minAvailable")),
    _computed("Max Unavailable", _budget_limit("maxUnavailable")),
    _number("Allowed Disruptions", "status", "disruptionsAllowed"),
    AGE,
)
LEASE = (NAME, _column("Holder", ("spec", "holderIdentity")), AGE)


def _quota_cell(prefix: str) -> Any:
    def cell(obj: Obj, _: float) -> str:
        hard = at(obj, "status", "hard") or at(obj, "spec", "hard") or {}
        used = at(obj, "status", "used") or {}
        chosen = [
            name for name in sorted(hard) if name.startswith("limits") == (prefix == "limits")
        ]
        return ", ".join(f"{name}: {used.get(name, '0')}/{hard[name]}" for name in chosen)

    return cell


RESOURCE_QUOTA = (
    NAME,
    _computed("Request", _quota_cell("requests")),
    _computed("Limit", _quota_cell("limits")),
    AGE,
)
LIMIT_RANGE = (
    NAME,
    _computed("Created At", lambda obj, _: at(obj, "metadata", "creationTimestamp")),
)

_ACCESS = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _access_modes(*path: str) -> Any:
    return lambda obj, _: ",".join(_ACCESS.get(mode, mode) for mode in at(obj, *path) or [])


def _claim(obj: Obj, _: float) -> str:
    claim = at(obj, "spec", "claimRef")
    return f"{claim.get('namespace')}/{claim.get('name')}" if claim else ""


VOLUME = (
    NAME,
    _column("Capacity", ("spec", "capacity", "storage")),
    _computed("Access Modes", _access_modes("spec", "accessModes")),
    _column("Reclaim Policy", ("spec", "persistentVolumeReclaimPolicy")),
    _column("Status", ("status", "phase")),
    _computed("Claim", _claim),
    _column("StorageClass", ("spec", "storageClassName"), empty=""),
    _column("VolumeAttributesClass", ("spec", "volumeAttributesClassName"), empty="<unset>"),
    _column("Reason", ("status", "reason"), empty=""),
    AGE,
    _column("VolumeMode", ("spec", "volumeMode"), empty="Filesystem", wide=True),
)
VOLUME_CLAIM = (
    NAME,
    _column("Status", ("status", "phase")),
    _column("Volume", ("spec", "volumeName"), empty=""),
    _column("Capacity", ("status", "capacity", "storage"), empty=""),
    _computed("Access Modes", _access_modes("status", "accessModes")),
    _column("StorageClass", ("spec", "storageClassName"), empty=""),
    _column("VolumeAttributesClass", ("spec", "volumeAttributesClassName"), empty="<unset>"),
    AGE,
    _column("VolumeMode", ("spec", "volumeMode"), empty="Filesystem", wide=True),
)


def _storage_class_name(obj: Obj, _: float) -> str:
    name = str(obj["metadata"]["name"])
    default = (at(obj, "metadata", "annotations") or {}).get(
        "storageclass.kubernetes.io/is-default-class"
    )
    return f"{name} (default)" if default == "true" else name


STORAGE_CLASS = (
    Column("Name", _storage_class_name, format="name"),
    _column("Provisioner", ("provisioner",)),
    _column("ReclaimPolicy", ("reclaimPolicy",), empty="Delete"),
    _column("VolumeBindingMode", ("volumeBindingMode",), empty="<unset>"),
    _computed(
        "AllowVolumeExpansion", lambda obj, _: bool(obj.get("allowVolumeExpansion")), "boolean"
    ),
    AGE,
)
CSI_NODE = (
    NAME,
    _computed("Drivers", lambda obj, _: len(at(obj, "spec", "drivers") or []), "integer"),
    AGE,
)
RUNTIME_CLASS = (NAME, _column("Handler", ("handler",)), AGE)
DEFINITION = (
    NAME,
    _computed("Created At", lambda obj, _: at(obj, "metadata", "creationTimestamp")),
)
