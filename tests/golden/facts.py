"""An outcome as facts: what a user could point at and say "this is so".

One fact is one command's exit code or printed line, one field of an object, one condition (status, reason and message
together), one event, one row of a table, one section of a describe text, one order of two steps that carries meaning.
Both sides go through the same functions, so that what is not shown in a recording is not asked of us.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from tests.golden.recording import Json

KINDS = {
    "workloads": "Workload",
    "jobs": "Job",
    "pods": "Pod",
    "clusterQueues": "ClusterQueue",
    "localQueues": "LocalQueue",
    "cohorts": "Cohort",
    "admissionChecks": "AdmissionCheck",
}
STEERING = (
    "node.alpha.kubernetes.io/",
    "golden/",
    "makeway.dev/pretend-",
    "kubectl.kubernetes.io/",
    "kwok.x-k8s.io/",
)
# In YAML: what differs from run to run, or that the recordings leave out everywhere else.
UNSHOWN = (
    "resourceVersion",
    "containerID",
    "image",
    "imageID",
    "observedGeneration",
    "lastProbeTime",
    "hostIPs",
    # The recorder's API server ran without the admission plugin ServiceAccount.
    "serviceAccount",
    "serviceAccountName",
)
# The same in a describe text: a section of a Pod, lines in the template of a Workload.
UNSHOWN_LINES = ("Service Account", "Service Account Name")
DEFAULT_TOLERATIONS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

# What a recording shows of each kind's spec and status; the rest is left out of it, and so is not compared.
SPEC = {
    "Pod": (
        "nodeName schedulerName priority priorityClassName preemptionPolicy terminationGracePeriodSeconds"
        " nodeSelector affinity schedulingGates tolerations containers"
    ),
    "Job": "parallelism completions backoffLimit suspend template",
    "Workload": "active maximumExecutionTimeSeconds podSets priority priorityClassRef queueName",
    "ClusterQueue": (
        "admissionChecksStrategy cohortName fairSharing flavorFungibility namespaceSelector preemption"
        " queueingStrategy resourceGroups stopPolicy"
    ),
    "LocalQueue": "clusterQueue stopPolicy",
    "Cohort": "",
    "AdmissionCheck": "controllerName",
}
STATUS = {
    "Pod": "conditions containerStatuses nominatedNodeName phase qosClass reason message",
    "Job": "active completionTime conditions failed ready startTime succeeded terminating",
    "Workload": (
        "accumulatedPastExecutionTimeSeconds admission admissionChecks conditions reclaimablePods"
        " requeueState resourceRequests schedulingStats"
    ),
    "ClusterQueue": (
        "admittedWorkloads conditions fairSharing flavorsReservation flavorsUsage pendingWorkloads"
        " reservingWorkloads"
    ),
    "LocalQueue": (
        "admittedWorkloads conditions flavorsReservation flavorsUsage pendingWorkloads reservingWorkloads"
    ),
    "Cohort": "",
    "AdmissionCheck": "conditions",
}
# Kinds whose spec is given only when it is new or changed.
SPEC_ONCE = {"ClusterQueue", "LocalQueue", "Cohort", "AdmissionCheck"}


# Lines of a describe text.
LEFT_OUT = (
    "Resource Version:",
    "Container ID:",
    "Image ID:",
    "Block Owner Deletion:",
    "Controller:",
)
COMBINED = "(combined from similar events): "
OF_GROUP = re.compile(r"Created Workload: (\S+)$")


class Key(NamedTuple):
    """What a fact is about: `about` is a kind with a name, or a command; `field` the part of it."""

    sort: str  # command | object | condition | event | row | section | order
    about: str
    field: str = ""

    def __str__(self) -> str:
        return f"{self.sort} {self.about} {self.field}".rstrip()


Facts = dict[Key, Any]


class Event(NamedTuple):
    about: str
    type: str
    reason: str
    note: str
    component: str
    action: str


# ---- objects -----------------------------------------------------------------------------------------


def of_objects(outcome: Json) -> Facts:
    facts: Facts = {}
    for plural, kind in KINDS.items():
        for obj in outcome.get(plural) or ():
            facts.update(of_object(kind, obj))
    return facts


def shown_kinds(outcome: Json) -> set[str]:
    """The kinds that a step's recording shows at all."""
    return {kind for plural, kind in KINDS.items() if plural in outcome}


def of_object(kind: str, obj: Json) -> Facts:
    about = title(kind, obj)
    if obj.get("unchanged"):
        return {Key("object", about, "unchanged"): True}
    facts: Facts = {Key("object", about, "exists"): True}
    for field, value in _metadata(obj["metadata"]).items():
        facts[Key("object", about, field)] = value
    if obj.get("spec") is not None:
        for field, value in _spec(kind, obj["spec"]).items():
            facts[Key("object", about, f"spec.{field}")] = value
    status = obj.get("status") or {}
    for condition in status.get("conditions") or ():
        told = {part: condition.get(part, "") for part in ("status", "reason", "message")}
        facts[Key("condition", about, condition["type"])] = told
    for field, value in _status(kind, status).items():
        facts[Key("object", about, f"status.{field}")] = value
    return facts


def title(kind: str, obj: Json) -> str:
    meta = obj["metadata"]
    return f"{kind} {meta.get('namespace', '')}/{meta['name']}".replace(" /", " ")


def _metadata(meta: Json) -> Json:
    shown: Json = {
        "labels": meta.get("labels"),
        "annotations": _not_steering(meta.get("annotations")),
        "finalizers": sorted(meta.get("finalizers") or ()),
        "owners": sorted(
            f"{o['kind']} {o['name']} {o['uid']}" for o in meta.get("ownerReferences") or ()
        ),
        "deleting": bool(meta.get("deletionTimestamp")),
    }
    return {field: value for field, value in shown.items() if value}


def _not_steering(annotations: Json | None) -> Json:
    return {k: v for k, v in (annotations or {}).items() if not k.startswith(STEERING)}


def _spec(kind: str, spec: Json) -> Json:
    shown = {field: spec[field] for field in SPEC[kind].split() if spec.get(field) is not None}
    if kind == "Pod":
        shown.update(_pod_spec(spec))
    if kind == "Job" and "template" in shown:
        template = shown.pop("template")
        shown.update({f"template.{k}": v for k, v in _template(template).items()})
    if kind == "Workload":
        for pod_set in shown.pop("podSets", ()):
            where = f"podSets[{pod_set['name']}]"
            for field in ("count", "minCount", "topologyRequest"):
                if pod_set.get(field) is not None:
                    shown[f"{where}.{field}"] = pod_set[field]
            shown.update({f"{where}.{k}": v for k, v in _template(pod_set["template"]).items()})
    if kind == "ClusterQueue":
        for number, group in enumerate(shown.pop("resourceGroups", ())):
            shown[f"resourceGroups[{number}]"] = group
    return {field: value for field, value in shown.items() if value not in ({}, [], None)}


def _template(template: Json) -> Json:
    meta = template.get("metadata") or {}
    spec = template.get("spec") or {}
    shown = {
        "labels": meta.get("labels"),
        "annotations": _not_steering(meta.get("annotations")),
        "nodeSelector": spec.get("nodeSelector"),
        "priorityClassName": spec.get("priorityClassName"),
        "priority": spec.get("priority"),
        "tolerations": _tolerations(spec),
        "containers": _containers(spec),
    }
    return {field: value for field, value in shown.items() if value}


def _pod_spec(spec: Json) -> Json:
    return {
        "tolerations": _tolerations(spec),
        "containers": _containers(spec),
        "schedulingGates": sorted(gate["name"] for gate in spec.get("schedulingGates") or ()),
    }


def _tolerations(spec: Json) -> list[Json]:
    return [
        {k: v for k, v in toleration.items() if k != "tolerationSeconds"}
        for toleration in spec.get("tolerations") or ()
        if toleration.get("key") not in DEFAULT_TOLERATIONS
    ]


def _containers(spec: Json) -> Json:
    return {
        container["name"]: {
            part: amounts
            for part, amounts in (container.get("resources") or {}).items()
            if part in ("limits", "requests") and amounts
        }
        for container in spec.get("containers") or ()
    }


def _status(kind: str, status: Json) -> Json:
    shown = {
        field: status[field] for field in STATUS[kind].split() if status.get(field) is not None
    }
    shown.pop("conditions", None)
    for field in ("startTime", "completionTime"):
        if field in shown:
            shown[field] = "<time>"
    if "accumulatedPastExecutionTimeSeconds" in shown:
        shown["accumulatedPastExecutionTimeSeconds"] = "<n>"
    if "containerStatuses" in shown:
        shown["containerStatuses"] = _container_statuses(shown["containerStatuses"])
    if "requeueState" in shown:
        shown["requeueState"] = {k: v for k, v in shown["requeueState"].items() if k == "count"}
    if "admission" in shown:
        admission = shown.pop("admission")
        shown["admission.clusterQueue"] = admission["clusterQueue"]
        for assigned in admission.get("podSetAssignments") or ():
            parts = ("count", "flavors", "resourceUsage")
            shown[f"admission.{assigned['name']}"] = {
                part: assigned[part] for part in parts if part in assigned
            }
    for field in ("flavorsReservation", "flavorsUsage"):
        for flavor in shown.pop(field, ()):
            shown[f"{field}.{flavor['name']}"] = {r.pop("name"): r for r in _copies(flavor)}
    if "schedulingStats" in shown:
        evictions = shown["schedulingStats"].get("evictions") or ()
        shown["schedulingStats"] = sorted(
            f"{e['reason']}/{e.get('underlyingCause', '')}: {e['count']}" for e in evictions
        )
    return shown


def _copies(flavor: Json) -> list[Json]:
    return [dict(resource) for resource in flavor.get("resources") or ()]


def _container_statuses(statuses: list[Json]) -> Json:
    return {
        status["name"]: {
            "ready": status.get("ready", False),
            "state": {
                state: {k: v for k, v in (told or {}).items() if k in ("exitCode", "reason")}
                for state, told in (status.get("state") or {}).items()
            },
        }
        for status in statuses
    }


# ---- events ------------------------------------------------------------------------------------------


def event_of(said: Json) -> Event:
    about = said.get("regarding") or said.get("involvedObject") or {}
    where = f"{about.get('namespace', '')}/" if about.get("namespace") else ""
    note = (said.get("note") or said.get("message") or "").removeprefix(COMBINED)
    subject = f"{about.get('kind', '')} {where}{about.get('name', '')}"
    group = OF_GROUP.match(note)
    if group and subject.startswith("Pod ") and "<h>" not in note:
        subject = f"Pod of group {group.group(1)}"  # whichever of its pods was looked at
    return Event(
        about=subject,
        type=said.get("type", ""),
        reason=said.get("reason", ""),
        note=note,
        component=_teller(said),
        action=said.get("action") or "",
    )


def _teller(said: Json) -> str:
    """Who told it; events that Kubernetes' own programs combine say so in the older place only."""
    older = said.get("source") or said.get("deprecatedSource") or {}
    teller = said.get("reportingComponent") or said.get("reportingController")
    return str(teller or older.get("component") or "")


def of_events(said: list[Json]) -> list[Event]:
    """Each event once: how often the same was told depends on how often somebody looked.

    What the node controller says about nodes coming and going is the recorder's own coming and going.
    """
    found = dict.fromkeys(event_of(event) for event in said)
    return [event for event in found if not event.about.startswith("Node ")]


# ---- commands ----------------------------------------------------------------------------------------


def of_command(
    number: int, run: str, exit_code: int | None, out: list[str], err: list[str]
) -> Facts:
    if exit_code is None:
        return {}
    about = run.split(" '#")[0]
    facts: Facts = {Key("command", about, f"{number} exit code"): exit_code}
    if out and not table(run):
        facts[Key("command", about, f"{number} says")] = _words(out)
    if err:
        facts[Key("command", about, f"{number} complains")] = _words(err)
    return facts


def _words(lines: list[str]) -> list[str]:
    return [_sorted_json(words) for line in lines if (words := " ".join(line.split()))]


def _sorted_json(words: str) -> str:
    """An object in a message, in one order of its fields: Go's structs have theirs, JSON has none."""
    start = words.find("{")
    if start < 0:
        return words
    try:
        said, length = json.JSONDecoder().raw_decode(words[start:])
    except ValueError:
        return words
    return words[:start] + json.dumps(said, sort_keys=True) + words[start + length :]


# ---- texts -------------------------------------------------------------------------------------------


def table(command: str) -> bool:
    return command.startswith("kubectl get ") and " -o yaml" not in command


def of_text(command: str, lines: list[str]) -> Facts:
    """What kubectl printed, in the parts that a reader would see as one."""
    if command.endswith("-o yaml"):
        return _of_yaml(command, lines)
    if command.startswith("kubectl describe"):
        return _of_describe(command, lines)
    if "events" in command.split()[1:3] or "events." in command:
        return _of_event_table(command, lines)
    return _of_table(command, lines)


def _of_table(command: str, lines: list[str]) -> Facts:
    facts: Facts = {}
    for number, line in enumerate(lines):
        words = line.split()
        if not words:
            continue
        if number == 0:
            facts[Key("row", command, "header")] = " ".join(words)
            continue
        named = " ".join(words[:2]) if "-A" in command.split() else words[0]
        facts[Key("row", command, named)] = " ".join(words)
    return facts


def _of_event_table(command: str, lines: list[str]) -> Facts:
    if not lines:
        return {}
    told = {" ".join(line.split()) for line in lines[1:] if not _node_event(line)}
    rows = sorted(told, key=_without_reason)
    header = Key("row", command, "header")
    return {header: " ".join(lines[0].split()), Key("section", command, "events"): rows}


def _without_reason(row: str) -> list[str]:
    """Rows of both sides stand in one order, although reasons of waiting are finer in ours."""
    words = row.split()
    return words[:2] + words[3:] if words[1:2] == ["Warning"] else words


def _node_event(line: str) -> bool:
    return bool(re.search(r"\s(node|Node)/", line)) and "event:" in line


def _of_describe(command: str, lines: list[str]) -> Facts:
    facts: Facts = {}
    section: list[str] = []
    name = ""
    for line in [*lines, "End:"]:
        if line and not line[0].isspace() and ":" in line:
            if name and name not in UNSHOWN_LINES:
                facts[Key("section", command, name)] = _section(name, section)
            name, section = line.split(":", 1)[0], []
            line = line.split(":", 1)[1]
        if line.strip() and line.strip().split(":", 1)[0] not in UNSHOWN_LINES:
            section.append(line)
    return facts


def _section(name: str, lines: list[str]) -> list[str]:
    """A section's lines without their widths; sets sorted, and what the recordings leave out left out."""
    words = [" ".join(line.split()) for line in lines]
    match name:
        case "Events":
            told = [w for w in words if not re.match(r"[- ]+$|Type Reason|.*RegisteredNode", w)]
            return sorted(set(told) - {"<none>"})
        case "Annotations":
            return [w for w in words if not w.startswith(STEERING)] or ["<none>"]
        case "Conditions":
            return sorted(words)
        case "Status":
            return _status_lines(lines)
        case "Pod Template":
            return _template_lines(words)
    return [w for w in words if not w.startswith(LEFT_OUT)]


def _template_lines(words: list[str]) -> list[str]:
    """A set of lines; which annotation stands beside the title depends on their order, and steering is left out."""
    untitled = [word.removeprefix("Annotations: ") for word in words]
    return sorted(word for word in untitled if not word.startswith(STEERING))


def _status_lines(lines: list[str]) -> list[str]:
    """Each field of a status as one line, and each condition: they stand in the order in which they were first
    written, which two writers race for.
    """
    fields: list[list[str]] = []
    for line in lines:
        words = " ".join(line.split())
        if not fields or len(line) - len(line.lstrip()) <= 2:
            fields.append([])
        if words.startswith("Last Transition Time:"):
            fields.append([])
        if not words.startswith(("Last Transition Time:", "Observed Generation:")):
            fields[-1].append(re.sub(r"(Time Seconds:) \d+", r"\1 <n>", words))
    return sorted("; ".join(_type_first(field)) for field in fields if field)


def _type_first(field: list[str]) -> list[str]:
    """A condition ends with its message, so that one which says more still begins alike."""
    return field[::-1] if field[-1].startswith("Type:") else field


def _of_yaml(command: str, lines: list[str]) -> Facts:
    try:
        said = yaml.safe_load("\n".join(lines))
    except yaml.YAMLError:
        return {Key("section", command, "text"): lines}
    if not isinstance(said, dict):
        return {Key("section", command, "text"): lines}
    items = said.get("items")
    objects = items if isinstance(items, list) else [said]
    facts: Facts = {}
    for number, obj in enumerate(objects):
        for part, value in obj.items():
            if part == "reportingInstance":
                continue
            facts[Key("section", command, f"{number}.{part}")] = _yaml_part(part, value)
    return facts


def _yaml_part(part: str, value: Any) -> Any:
    if part == "metadata" and isinstance(value, dict):
        value = dict(value)
        for field in ("resourceVersion", "managedFields"):
            value.pop(field, None)
        if notes := _not_steering(value.pop("annotations", None)):
            value["annotations"] = notes
    return _without(value, UNSHOWN)


def _without(value: Any, fields: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {k: _without(v, fields) for k, v in value.items() if k not in fields}
    if isinstance(value, list):
        return [_without(item, fields) for item in value]
    return value


# ---- order -------------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """A step in an object's life that others can be before or after."""

    about: str
    what: str


def of_marks(marks: list[Mark], nodes: Mapping[str, str]) -> Facts:
    """Each object's own life in order; and who had to let go before somebody else could take.

    A pod takes what another left only where both were on one node.
    """
    facts: Facts = {}
    lives: dict[str, list[str]] = {}
    for mark in marks:
        life = lives.setdefault(mark.about, [])
        if not life or life[-1] != mark.what:
            life.append(mark.what)
    for about, life in lives.items():
        if life[-2:] == ["finished", "gone"]:
            del life[-2]  # whoever owned it is gone: two controllers race to say so
        if life[-2:] == ["deleting", "gone"]:
            del life[-2]  # who goes at once is written twice there, with a time of deletion first
        facts[Key("order", about, "life")] = ", ".join(life)
    facts.update(_let_go_before_take(marks, nodes))
    return facts


LET_GO = {"released", "told to end"}
TAKE = {"released": "reserved", "told to end": "bound"}


def _let_go_before_take(marks: list[Mark], nodes: Mapping[str, str]) -> Facts:
    first: dict[Mark, int] = {}
    for place, mark in enumerate(marks):
        first.setdefault(mark, place)
    return {
        Key("order", f"{one.about} {one.what}", f"{other.about} {other.what}"): (
            "before" if first[one] < first[other] else "after"
        )
        for one in first
        if one.what in LET_GO
        for other in first
        if other.what == TAKE[one.what]
        and other.about != one.about
        and nodes.get(one.about) == nodes.get(other.about)
    }


LINE = re.compile(r"([+~-]) (\w+) (\S+?)(?: created| deleted|:)(.*)")
# (kind, what the change says, the mark)
TELLING = (
    ("Workload", re.compile(r"admission\.clusterQueue removed"), "released"),
    ("Workload", re.compile(r"condition\.QuotaReserved=True"), "reserved"),
    ("Workload", re.compile(r"condition\.Admitted=True"), "admitted"),
    ("Workload", re.compile(r"condition\.Evicted=True"), "evicted"),
    ("Workload", re.compile(r"condition\.Finished=True"), "finished"),
    ("Workload", re.compile(r"spec\.active=False"), "deactivated"),
    ("Job", re.compile(r"spec\.suspend=True"), "suspended"),
    ("Job", re.compile(r"spec\.suspend=False"), "resumed"),
    ("Job", re.compile(r"condition\.Complete=True"), "complete"),
    ("Job", re.compile(r"condition\.Failed=True"), "failed"),
    ("Pod", re.compile(r"schedulingGates\S* removed"), "let in"),
    ("Pod", re.compile(r"condition\.(?:DisruptionTarget|TerminationTarget)=True"), "told to end"),
    ("Pod", re.compile(r"metadata\.deletionTimestamp="), "deleting"),
    ("Pod", re.compile(r"spec\.nodeName="), "bound"),
    ("Pod", re.compile(r"status\.phase=Running"), "running"),
    ("Pod", re.compile(r"status\.phase=Succeeded"), "succeeded"),
)


def marks_of_timeline(lines: list[str], being_deleted: set[str]) -> list[Mark]:
    """A recorded timeline's marks. A deletion is marked once: its time is written again when the kubelet is done."""
    marks: list[Mark] = []
    for line in lines:
        found = LINE.match(line)
        if not found:
            continue
        sign, kind, name, rest = found.groups()
        about = f"{kind} {name}"
        if kind not in ("Workload", "Job", "Pod"):
            continue
        if sign == "+":
            marks.append(Mark(about, "created"))
            being_deleted.discard(about)
        elif sign == "-":
            marks.append(Mark(about, "gone"))
        else:
            for telling_kind, pattern, what in TELLING:
                if telling_kind == kind and pattern.search(rest):
                    if what == "deleting" and about in being_deleted:
                        continue
                    if what == "deleting":
                        being_deleted.add(about)
                    marks.append(Mark(about, what))
    return marks
