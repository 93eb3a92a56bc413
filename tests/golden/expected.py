"""Koordinator: what would be right after each step, the messages its users know, and the order of its writes.

The recorded program gets stuck or evicts too much in most situations, so its outcome is no model: `expect.json` says what is right. Its
messages count where a recorded variant did the right thing; the words on victims count always.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from makeway.embedded.store import Change
from tests.golden import wanted
from tests.golden.apart import ABSENT
from tests.golden.comparing import Outcome
from tests.golden.facts import Key
from tests.golden.recording import Json, Situation
from tests.golden.replay import Replay

TRIGGER = re.compile(r"triggerPod: [^\s;]+")
UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Expected:
    """One situation's right outcomes, and what the recorded variants said on the way."""

    def __init__(self, situation: Situation) -> None:
        self._path = situation.path
        self.steps: Json = json.loads((situation.path / "expect.json").read_text())["steps"]
        self._uids: dict[str, str] = {}  # of the pods that ran when the last step was over

    def judge(self, number: str, replay: Replay) -> list[Outcome]:
        step = self.steps[number]
        seen = Seen(replay.pods(), replay.changes, self._uids)
        found = [
            *self._running(number, step, seen),
            *_sets(number, "evicted", step.get("evicted", []), seen.evicted),
            *_sets(number, "pending", step.get("pending", []), list(seen.pending)),
            *self._untouched(number, step, seen),
            *_room(number, replay),
            *self._words(number, step, seen),
            *_order(number, seen),
        ]
        self._uids = {name: pod["metadata"]["uid"] for name, pod in seen.running.items()}
        return found

    def _running(self, number: str, step: Json, seen: Seen) -> Iterator[Outcome]:
        at = {name: pod["spec"]["nodeName"] for name, pod in seen.running.items()}
        right = max(
            alternatives(step.get("running", {})),
            key=lambda one: sum(at.get(name) in nodes for name, nodes in one.items()),
        )
        for name, nodes in right.items():
            yield _fact(
                number, f"Pod {name}", "runs on", nodes, at.get(name), at.get(name) in nodes
            )
        for name in sorted(at.keys() - right.keys()):
            yield _fact(number, f"Pod {name}", "runs on", ABSENT, at[name], False)

    def _untouched(self, number: str, step: Json, seen: Seen) -> Iterator[Outcome]:
        same = {
            name
            for name, pod in seen.running.items()
            if self._uids.get(name) == pod["metadata"]["uid"]
        }
        right = max(alternatives(step.get("untouched", [])), key=lambda one: len(same & set(one)))
        for name in right:
            yield _fact(number, f"Pod {name}", "runs on", "untouched", name in same, name in same)

    def _words(self, number: str, step: Json, seen: Seen) -> Iterator[Outcome]:
        parts = (step.get("condition") or {}).get("DisruptionTarget message contains", [])
        told = {TRIGGER.sub("triggerPod: …", message) for message in self._told_victims}
        for name in seen.evicted:
            said = seen.disruption.get(name, "")
            right = all(part in said for part in parts) and bool(said)
            yield _fact(number, f"Pod {name}", "DisruptionTarget", parts, said, right)
            if told:
                yield _begins(number, f"Pod {name}", "DisruptionTarget words", told, said)
                note = next(iter(seen.events(name, "Preempted")), "")
                where = seen.nodes.get(name, "")
                want = {f"Preempted by pod <uid> on node {where}"}
                yield _begins(
                    number, f"Pod {name}", "Preempted event", want, UID.sub("<uid>", note)
                )
        for name in seen.pending:
            said = seen.reason(name)
            yield _fact(number, f"Pod {name}", "has a reason", "a message", said, bool(said))
            known = self._reasons(number, name)
            if known:
                yield _begins(number, f"Pod {name}", "PodScheduled words", known, said)
        for name in seen.bound:
            note = f"Successfully assigned default/{name} to {seen.nodes.get(name)}"
            got = seen.events(name, "Scheduled")
            yield _fact(number, f"Pod {name}", "Scheduled event", note, got, note in got)

    # ---- what the recorded variants said

    @cached_property
    def _told_victims(self) -> set[str]:
        """DisruptionTarget messages of job-level preemption, in any variant."""
        texts = [file.read_text() for file in self._path.glob("*/stream.json")]
        found = re.findall(r'"(\S+: preempting to accommodate higher [^"]*)"', "\n".join(texts))
        return set(found)

    def _reasons(self, number: str, pod: str) -> set[str]:
        """What was said to a waiting pod, by variants that had done the right thing so far."""
        found: set[str] = set()
        for variant in self._right_variants(number):
            said = _snapshot(variant, number)
            for one in said.get("pods") or ():
                if one["metadata"]["name"] == pod:
                    found |= {
                        c["message"]
                        for c in one["status"].get("conditions") or ()
                        if c["type"] == "PodScheduled" and c.get("message")
                    }
            found |= {
                e["note"]
                for e in said.get("events") or ()
                if e["regarding"] == f"Pod/{pod}" and e["reason"] == "FailedScheduling"
            }
        return found

    def _right_variants(self, number: str) -> Iterator[Path]:
        for variant in sorted(self._path.iterdir()):
            # Later than 1.7 only: that one ends these sentences with one more full stop.
            if variant.is_dir() and not variant.name.startswith("v1"):
                so_far = [step for step in self.steps if step <= number]
                if all(self._was_right(variant, step) for step in so_far):
                    yield variant

    def _was_right(self, variant: Path, number: str) -> bool:
        said = _snapshot(variant, number)
        if not said:
            return False
        running = {
            one["metadata"]["name"]
            for one in said["pods"]
            if one["status"].get("phase") == "Running" and one["spec"].get("nodeName")
        }
        wanted_ = alternatives(self.steps[number].get("running", {}))
        return any(running == set(one) for one in wanted_)


def _snapshot(variant: Path, number: str) -> Json:
    file = variant / f"{number}.out.json"
    found: Json = json.loads(file.read_text()) if file.exists() else {}
    return found


class Seen:
    """What our pods did in a step."""

    def __init__(self, pods: list[Json], changes: list[Change], ran_before: dict[str, str]) -> None:
        self.pods = {pod["metadata"]["name"]: pod for pod in pods}
        self.changes = changes
        self.running = {n: p for n, p in self.pods.items() if _runs(p)}
        self.pending = {n: p for n, p in self.pods.items() if not p["spec"].get("nodeName")}
        self.evicted = sorted(
            name
            for name, uid in ran_before.items()
            if name not in self.running or self.running[name]["metadata"]["uid"] != uid
        )
        self.disruption: dict[str, str] = {}
        self.nodes: dict[str, str] = {}
        self.bound: list[str] = []
        self.deeds: list[tuple[str, str]] = []  # (what, pod) in order
        for change in changes:
            if change.kind == "pods":
                self._look(change)

    def _look(self, change: Change) -> None:
        before = change.before.decode() if change.before else {}
        after = change.after.decode() if change.after else None
        name = change.last.name
        if after is None:
            self.deeds.append(("gone", name))
            return
        if node := after["spec"].get("nodeName"):
            self.nodes[name] = node
            if not (before.get("spec") or {}).get("nodeName"):
                self.bound.append(name)
                self.deeds.append(("bind", name))
        for condition in after.get("status", {}).get("conditions") or ():
            if condition["type"] == "DisruptionTarget" and name not in self.disruption:
                self.disruption[name] = condition.get("message", "")
                self.deeds.append(("tell", name))
        nominated = after.get("status", {}).get("nominatedNodeName")
        if nominated and nominated != before.get("status", {}).get("nominatedNodeName"):
            self.deeds.append(("nominate", name))
        meta = before.get("metadata") or {}
        if after["metadata"].get("deletionTimestamp") and not meta.get("deletionTimestamp"):
            self.deeds.append(("delete", name))

    def events(self, pod: str, reason: str) -> list[str]:
        found = []
        for change in self.changes:
            if change.kind == "events" and change.after is not None:
                event = change.after.decode()
                about = event.get("regarding") or event.get("involvedObject") or {}
                if about.get("name") == pod and event.get("reason") == reason:
                    found.append(event.get("note") or event.get("message") or "")
        return found

    def reason(self, pod: str) -> str:
        for condition in self.pods[pod].get("status", {}).get("conditions") or ():
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return str(condition.get("message", ""))
        return ""


def _runs(pod: Json) -> bool:
    return (
        pod["status"].get("phase") == "Running"
        and bool(pod["spec"].get("nodeName"))
        and not pod["metadata"].get("deletionTimestamp")
    )


def alternatives(said: Any) -> list[Any]:
    return list(said["oneOf"]) if isinstance(said, dict) and "oneOf" in said else [said]


def _sets(number: str, what: str, want: Any, got: list[str]) -> Iterator[Outcome]:
    right = max(
        alternatives(want), key=lambda one: (len(set(one) & set(got)), -len(set(one) ^ set(got)))
    )
    for name in sorted({*right, *got}):
        yield _fact(
            number, f"Pod {name}", what, name in right, name in got, name in right and name in got
        )


def _room(number: str, replay: Replay) -> Iterator[Outcome]:
    for node, (used, offered) in replay.room().items():
        over = {r: (used[r], offered.get(r, 0)) for r in used if used[r] > offered.get(r, 0)}
        yield _fact(number, f"Node {node}", "requests fit", {}, over, not over)


def _order(number: str, seen: Seen) -> Iterator[Outcome]:
    """Each victim is told, then deleted; nominations follow the last deletion; members are bound when victims are gone."""
    place = {deed: index for index, deed in reversed(list(enumerate(seen.deeds)))}
    deletes = [place["delete", v] for v in seen.evicted if ("delete", v) in place]
    for victim in seen.evicted:
        told, deleted = place.get(("tell", victim)), place.get(("delete", victim))
        right = told is not None and deleted is not None and told < deleted
        yield _fact(number, f"Pod {victim}", "told before deleted", True, right, right)
    for what, pod in dict.fromkeys(seen.deeds):
        if what == "nominate" and deletes:
            right = place[what, pod] > max(deletes)
            yield _fact(number, f"Pod {pod}", "nominated after the last delete", True, right, right)
        if what == "bind" and deletes:
            here = [v for v in seen.evicted if seen.nodes.get(v) == seen.nodes.get(pod)]
            gone = [place.get(("gone", v), len(seen.deeds)) for v in here]
            right = all(place[what, pod] > g for g in gone)
            yield _fact(number, f"Pod {pod}", "bound when victims are gone", True, right, right)


def _fact(number: str, about: str, what: str, want: Any, got: Any, right: bool) -> Outcome:
    key = Key("outcome", about, what)
    return Outcome(number, key, "equal" if right else "different", want, got)


def _begins(number: str, about: str, what: str, known: set[str], got: str) -> Outcome:
    key = Key("words", about, what)
    ours = TRIGGER.sub("triggerPod: …", got)
    if ours in known:
        return Outcome(number, key, "equal")
    if why := next((w for one in known if (w := _why(key, one, ours))), ""):
        return Outcome(number, key, "wanted", sorted(known), got, why)
    return Outcome(number, key, "different", sorted(known), got)


def _why(key: Key, want: str, got: str) -> str:
    return wanted.reason(key, "", want, got, wanted.Context())
