"""One form for what differs from run to run: uids, random suffixes, times, ages, waiting times, addresses.

The recordings number their random suffixes over a whole situation (`one-<r03>`); here they are numbered
per owner in order of creation (`one-<r1>`), so that a pod more elsewhere does not rename all others.
A uid becomes the object it belongs to, where that can be known.
"""

from __future__ import annotations

import json
import re
from typing import Any

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
PRETENDED = re.compile(r"makeway\.dev/pretend-(grace|ready|start|exit-code)")

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
    text = INVALID_AGE.sub("<age>", text)
    return ADDRESS.sub("<ip>", REPEATED.sub("<age>", text))


class RecordedNames:
    """The recording's placeholders in our form."""

    def __init__(self, situation: Situation) -> None:
        text = json.dumps([step.outcome for step in situation.steps])
        numbers: dict[str, set[int]] = {}
        for base, number in SUFFIX.findall(text):
            numbers.setdefault(base, set()).add(int(number))
        self._rank = {
            (base, number): rank
            for base, found in numbers.items()
            for rank, number in enumerate(sorted(found), 1)
        }
        self._owners: dict[str, str] = {}
        for step in situation.steps:
            self._learn(step.outcome)

    def of(self, text: str) -> str:
        text = HASH.sub("<h>", SUFFIX.sub(self._suffix, text))
        return plain(RECORDED_UID.sub(lambda m: self._owners.get(m.group(), m.group()), text))

    def deep(self, value: Any) -> Any:
        return deep(value, self.of)

    def _suffix(self, match: re.Match[str]) -> str:
        base, number = match.group(1), int(match.group(2))
        return f"{base}-<r{self._rank[base, number]}>"

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
            name = HASH.sub("<h>", SUFFIX.sub(self._suffix, name))
            self._owners[uid] = f"<uid {kind} {namespace}/{name}>"


class OurNames:
    """Our objects' names and uids in the same form, learned as they are created."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # real name -> common form
        self._uids: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._pattern: re.Pattern[str] | None = None

    def learn(self, kind: str, obj: Json) -> None:
        meta = obj["metadata"]
        if meta["uid"] in self._uids:
            return
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
        if self._names:
            if self._pattern is None:
                longest_first = sorted(self._names, key=len, reverse=True)
                self._pattern = re.compile("|".join(map(re.escape, longest_first)))
            text = self._pattern.sub(lambda m: self._names[m.group()], text)
        text = UID.sub(lambda m: self._uids.get(m.group(), m.group()), text)
        text = LONG_TIME.sub("<time>", TIME.sub("<time>", text))
        return plain(SECONDS.sub("<n>", text))

    def of_text(self, text: str) -> str:
        """What kubectl printed: there are ages in it, and names of events."""
        text = AGE.sub("<age>", EVENT_NAME.sub(".<event>", self.of(text)))
        text = re.sub(r"makeway\.dev/pretend-grace(: \"?|\":\")(\d+)s", r"golden/grace\1\2", text)
        return plain(PRETENDED.sub(r"golden/\1", text))

    def deep(self, value: Any) -> Any:
        return deep(value, self.of)

    def _common(self, kind: str, meta: Json, obj: Json) -> str:
        name: str = meta["name"]
        if meta.get("generateName"):
            base = meta["generateName"].rstrip("-")
            return f"{base}-<r{self._count(meta, base)}>"
        owned = meta.get("ownerReferences")
        if kind == "Workload" and owned and re.search(r"-[0-9a-f]{5}$", name):
            return name[:-5] + "<h>"
        return name

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
