"""One form for what differs from run to run: uids, random suffixes, times, ages, waiting times, addresses.

The recordings number their random suffixes over a whole situation (`one-<r03>`); here they are numbered
per owner in order of creation (`one-<r1>`), so that a pod more elsewhere does not rename all others.
A uid becomes the object it belongs to, where that can be known.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import yaml

from tests.golden.recording import Json, Situation

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
LONG_TIME = re.compile(r"\b[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}")
AGE = re.compile(r"(?<![\w.<-])(?:\d+(?:ms|[smhdy]))+(?![\w.>-])")
INVALID_AGE = re.compile(r"<invalid>|<dur>|<unknown>(?=\s)")
SECONDS = re.compile(r"(?<=was )\d+(?:\.\d+)?(?=s\b)")
ADDRESS = re.compile(r"\b10\.\d+\.\d+\.\d+\b")
EVENT_NAME = re.compile(r"\.(?:[0-9a-f]{13,20})\b")
REPEATED = re.compile(r"<age> \(x\d+ over <age>\)")
UID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
SUFFIX = re.compile(r"([a-z0-9][a-z0-9.-]*)-<r(\d+)>")
HASH = re.compile(r"<h\d+>")
RECORDED_UID = re.compile(r"<uid:\d+>")
NODE_NAME = re.compile(r"(?<![\w.-])[a-z0-9][\w.-]*[\w](?![\w.-])")
# What a Deployment's template hashes to is in the names of its pods; only a label says which part of them it is.
TEMPLATE_HASHES = ("pod-template-hash", "controller-revision-hash")
RECORDED_TEMPLATE_HASH = re.compile(
    rf'"(?:{"|".join(TEMPLATE_HASHES)})": "(?:[a-z0-9-]+-)?([a-z0-9]+)"'
)
PRETENDED = re.compile(r"makeway\.dev/pretend-(grace|ready|start|exit-code)")

HOST = f"-{socket.gethostname()}"
DESCRIBED = {
    "workload": "Workload",
    "job": "Job",
    "pod": "Pod",
    "clusterqueue": "ClusterQueue",
    "localqueue": "LocalQueue",
    "admissioncheck": "AdmissionCheck",
}


def plain(text: str) -> str:
    """Both sides: ages in one form, addresses out of the way."""
    text = INVALID_AGE.sub("<age>", AGE.sub("<age>", text))
    return ADDRESS.sub("<ip>", REPEATED.sub("<age>", text))


class RecordedNames:
    """The recording's placeholders in our form."""

    def __init__(self, situation: Situation) -> None:
        text = json.dumps([step.outcome for step in situation.steps])
        self._templates = Templates(RECORDED_TEMPLATE_HASH.findall(text))
        text = self._templates.of(text)
        numbers: dict[str, set[int]] = {}
        for base, number in SUFFIX.findall(text):
            numbers.setdefault(base, set()).add(int(number))
        self._rank = {
            (base, number): rank
            for base, found in numbers.items()
            for rank, number in enumerate(sorted(found), 1)
        }
        self._owners: dict[str, tuple[str, str, str]] = {}  # uid -> kind, namespace, name
        self._alike = _interchangeable_nodes(situation)
        self._nodes: dict[str, str] = {}
        self._swaps: dict[str, str] = {}  # named pods that stand for each other
        if situation.uses_kueue:
            # Kueue does not choose nodes: there the equal ones need not be told apart at all.
            self._nodes = {
                name: f"<node like {min(_equal(self._alike, name))}>" for name in self._alike
            }
        for step in situation.steps:
            self._learn(step.outcome)

    def of(self, text: str) -> str:
        return self.unswapped(self._swapped(text))

    def _swapped(self, text: str) -> str:
        return NODE_NAME.sub(lambda m: self._swaps.get(m.group(), m.group()), text)

    def unswapped(self, text: str) -> str:
        text = HASH.sub("<h>", SUFFIX.sub(self._suffix, self._templates.of(text)))
        text = self.nodes(text)
        return plain(RECORDED_UID.sub(lambda m: self._owner(m.group()), text))

    def _owner(self, uid: str) -> str:
        """Of whom a uid is, under the name that stands for it by now."""
        if uid not in self._owners:
            return uid
        kind, namespace, name = self._owners[uid]
        name = HASH.sub("<h>", SUFFIX.sub(self._suffix, self._templates.of(name)))
        return f"<uid {kind} {namespace}/{name}>"

    def nodes(self, text: str) -> str:
        """Which of two equal nodes a pod goes to is luck."""
        return NODE_NAME.sub(lambda m: self._nodes.get(m.group(), m.group()), text)

    def match_pods(self, situation: Situation, ours: list[Json]) -> None:
        """Which of an owner's equal pods was placed or evicted first is luck: those that fared alike stand for each other."""
        if not situation.uses_kueue:
            self._match_named(situation, ours)
        theirs = _fates([step.outcome for step in situation.steps], self._templates.of)
        mine = _fates(ours, str)
        for base, pods in theirs.items():
            left = dict(mine.get(base) or {})
            unlike = []
            for number, fate in sorted(pods.items()):
                rank = next((r for r, other in sorted(left.items()) if other == fate), None)
                if rank is None:
                    unlike.append(number)
                else:
                    del left[rank]
                    self._swap(base, number, rank)
            for number, rank in zip(unlike, sorted(left), strict=False):
                self._swap(base, number, rank)

    def _match_named(self, situation: Situation, ours: list[Json]) -> None:
        """Which of two equal pods of one file goes to which of two equal nodes is luck, if else they fared alike."""
        theirs = _places([step.outcome for step in situation.steps], self.nodes)
        mine = _places(ours, str)
        for names in _equal_pods(situation):
            known = [name for name in names if name in theirs and name in mine]
            if any(_unplaced(theirs[name]) != _unplaced(mine[name]) for name in known):
                continue
            left = [name for name in known if theirs[name] != mine[name]]
            while left:
                name = left.pop(0)
                other = next((n for n in left if theirs[name] == mine[n]), None)
                if other is not None and theirs[other] == mine[name]:
                    left.remove(other)
                    self._swaps |= {name: other, other: name}

    def _swap(self, base: str, number: int, rank: int) -> None:
        """Give a recorded pod another rank; who had that one takes its."""
        before = self._rank[base, number]
        for key, taken in self._rank.items():
            if key[0] == base and taken == rank:
                self._rank[key] = before
        self._rank[base, number] = rank

    def match_nodes(self, outcome: Json, got: Json) -> None:
        """The first pod on one of several equal nodes decides which of ours stands for it."""
        ours = {self._about(pod): _node(pod) for pod in got.get("pods") or ()}
        for pod in outcome.get("pods") or ():
            theirs, mine = _node(pod), ours.get(self.of(self._about(pod)), "")
            if not theirs or not mine or theirs in self._nodes or mine in self._nodes.values():
                continue
            if self._alike.get(theirs) == self._alike.get(mine):
                self._nodes[theirs] = mine

    def _about(self, pod: Json) -> str:
        return f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}"

    def deep(self, value: Any) -> Any:
        return deep(value, self.of)

    def _suffix(self, match: re.Match[str]) -> str:
        base, number = match.group(1), int(match.group(2))
        # The Workload of a pod is called after it.
        known = (base.removeprefix("pod-"), number) if base.startswith("pod-") else (base, number)
        return f"{base}-<r{self._rank.get(known) or self._rank[base, number]}>"

    def _learn(self, outcome: Json) -> None:
        for kind in ("workloads", "pods", "jobs"):
            for obj in outcome.get(kind) or ():
                namespace = obj["metadata"].get("namespace", "")
                for owner in obj["metadata"].get("ownerReferences") or ():
                    self._know(owner["uid"], owner["kind"], namespace, owner["name"])
        for command, lines in (outcome.get("text") or {}).items():
            self._learn_described(command, lines)
        for event in outcome.get("newEvents") or ():
            for name, uid in re.findall(r"workload (\S+) \(UID: (<uid:\d+>)\)", event["note"]):
                self._know(uid, "Workload", *name.split("/", 1))

    def _learn_described(self, command: str, lines: list[str]) -> None:
        found = re.match(r"kubectl describe (\w+) .*?(\S+)$", command)
        text = "\n".join(lines)
        namespace = re.search(r"^Namespace: +(\S+)$", text, re.MULTILINE)
        uid = re.search(r"^  UID: +(<uid:\d+>)$", text, re.MULTILINE)
        kind = DESCRIBED.get(found.group(1).rstrip("s")) if found else None
        if found and kind and uid:
            self._know(uid.group(1), kind, namespace.group(1) if namespace else "", found.group(2))

    def _know(self, uid: str, kind: str, namespace: str, name: str) -> None:
        if RECORDED_UID.fullmatch(uid):
            self._owners[uid] = (kind, namespace, name)


def _fates(
    outcomes: list[Json], named: Callable[[str], str]
) -> dict[str, dict[int, tuple[Any, ...]]]:
    """Each generated pod's state in every step, by owner and number."""
    fates: dict[str, dict[int, tuple[Any, ...]]] = {}
    for place, outcome in enumerate(outcomes):
        for pod in outcome.get("pods") or ():
            found = SUFFIX.fullmatch(named(pod["metadata"]["name"]))
            if not found:
                continue
            fate = fates.setdefault(found.group(1), {}).get(int(found.group(2)), ())
            fate += (None,) * (place - len(fate))
            state = fate[-1] if pod.get("unchanged") and fate else _state(pod)
            fates[found.group(1)][int(found.group(2))] = (*fate, state)
    return fates


Place = tuple[str, str]  # a pod's phase and node


def _places(outcomes: list[Json], node_of: Callable[[str], str]) -> dict[str, list[Place | None]]:
    """Where each pod was after every step."""
    found: dict[str, list[Place | None]] = {}
    for number, outcome in enumerate(outcomes):
        for pod in outcome.get("pods") or ():
            places = found.setdefault(pod["metadata"]["name"], [])
            places += [None] * (number - len(places))
            same = pod.get("unchanged") and places
            state = str((pod.get("status") or {}).get("phase")), node_of(_node(pod))
            places.append(places[-1] if same else state)
    return found


def _unplaced(places: list[Place | None]) -> list[str | None]:
    return [place and place[0] for place in places]


def _equal_pods(situation: Situation) -> list[list[str]]:
    """Named pods of one file that differ in nothing but their names."""
    alike: dict[str, list[str]] = {}
    for file, obj in _documents(situation):
        if obj.get("kind") == "Pod":
            meta = {k: v for k, v in obj["metadata"].items() if k != "name"}
            form = json.dumps([file, meta, obj["spec"]], sort_keys=True)
            alike.setdefault(form, []).append(obj["metadata"].get("name", ""))
    return [names for names in alike.values() if len(names) > 1]


def _documents(situation: Situation) -> Iterator[tuple[str, Json]]:
    for file in sorted(situation.path.glob("[0-9]*.yaml")):
        try:
            documents = list(yaml.safe_load_all(file.read_text()))
        except yaml.YAMLError:
            continue
        for obj in documents:
            if isinstance(obj, dict) and isinstance(obj.get("metadata"), dict):
                yield file.name, obj


def _equal(nodes: dict[str, str], name: str) -> list[str]:
    return [other for other, form in nodes.items() if form == nodes[name]]


def _state(pod: Json) -> tuple[bool, str]:
    return (not _node(pod), str((pod.get("status") or {}).get("phase")))


def _node(pod: Json) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _interchangeable_nodes(situation: Situation) -> dict[str, str]:
    """Each node with what tells it from others, its name left out."""
    found: dict[str, str] = {}
    for _, node in _documents(situation):
        if node.get("kind") == "Node":
            meta = node["metadata"]
            labels = {k: v for k, v in (meta.get("labels") or {}).items() if v != meta["name"]}
            found[meta["name"]] = json.dumps([labels, node.get("spec"), node.get("status")])
    return found


class Templates:
    """Hashes of pod templates: each server has its own way to come by them."""

    def __init__(self, hashes: Iterable[str] = ()) -> None:
        self._hashes = set(hashes)
        self._pattern: re.Pattern[str] | None = None

    def learn(self, pod: Json) -> None:
        labels = pod["metadata"].get("labels") or {}
        found = {labels[label].rpartition("-")[2] for label in TEMPLATE_HASHES if label in labels}
        if not found <= self._hashes:
            self._hashes |= found
            self._pattern = None

    def of(self, text: str) -> str:
        if not self._hashes:
            return text
        if self._pattern is None:
            self._pattern = re.compile(rf"(?<![a-z0-9])(?:{'|'.join(self._hashes)})(?![a-z0-9])")
        return self._pattern.sub("hash", text)


class OurNames:
    """Our objects' names and uids in the same form, learned as they are created."""

    def __init__(self, nodes: Callable[[str], str] = str) -> None:
        self.nodes = nodes
        self._names: dict[str, str] = {}  # real name -> common form
        self._uids: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._templates = Templates()
        self._pattern: re.Pattern[str] | None = None

    def learn(self, kind: str, obj: Json) -> None:
        meta = obj["metadata"]
        if meta["uid"] in self._uids:
            return
        self._templates.learn(obj)
        name = self._common(kind, meta, obj)
        if name != meta["name"]:
            self._names[meta["name"]] = name
            self._pattern = None
        self._uids[meta["uid"]] = f"<uid {kind} {meta.get('namespace', '')}/{name}>"

    def real(self, text: str, recorded: RecordedNames) -> str:
        """A recorded command with our names in it; the youngest of those that share a form."""
        for word in re.findall(r"[a-z0-9][\w.-]*-<[hr]\d+>", text):
            common = recorded.of(word)
            found = [real for real, form in self._names.items() if form == common]
            if found:
                text = text.replace(word, found[-1])
        return text

    def of(self, text: str) -> str:
        text = self._named(text)
        text = UID.sub(lambda m: self._uids.get(m.group(), f"<uid {m.group()}>"), text)
        text = LONG_TIME.sub("<time>", TIME.sub("<time>", text))
        return plain(SECONDS.sub("<n>", self.nodes(text)))

    def _named(self, text: str) -> str:
        if self._names:
            if self._pattern is None:
                longest_first = sorted(self._names, key=len, reverse=True)
                self._pattern = re.compile("|".join(map(re.escape, longest_first)))
            text = self._pattern.sub(lambda m: self._names[m.group()], text)
        return self._templates.of(text)

    def of_text(self, text: str) -> str:
        """What kubectl printed: there are names of events in it, and our steering."""
        text = EVENT_NAME.sub(".<event>", self.of(text).replace(HOST, "-<host>"))
        ours = r"makeway\.dev/pretend-grace(: \"?|\":\")(\d+)s(?:\+\d+s)?"
        text = re.sub(ours, r"golden/grace\1\2", text)
        return plain(PRETENDED.sub(r"golden/\1", text))

    def deep(self, value: Any) -> Any:
        return deep(value, self.of)

    def _common(self, kind: str, meta: Json, obj: Json) -> str:
        name: str = meta["name"]
        if meta.get("generateName"):
            base = self._templates.of(meta["generateName"].rstrip("-"))
            return f"{base}-<r{self._count(meta, base)}>"
        owned = meta.get("ownerReferences")
        if kind == "Workload" and owned and re.search(r"-[0-9a-f]{5}$", name):
            return self._named(name[:-5]) + "<h>"
        return self._templates.of(name)

    def _count(self, meta: Json, base: str) -> int:
        # Kueue and the recordings count over all namespaces: names of owners seldom repeat there.
        self._counts[base] = self._counts.get(base, 0) + 1
        return self._counts[base]


def deep(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [deep(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): deep(item, change) for key, item in value.items()}
    return value
