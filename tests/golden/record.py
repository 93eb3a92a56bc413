"""`python -m tests.golden.record OUT SITUATION...`: plays situations on the real Kueue and writes what it did in the form of the recordings.

A situation is a folder with `NN-name.yaml` (applied in this order) or `NN-name.cmd` (commands, one a line: kubectl, the `# ...` lines
that steer the pretended kubelet, `sleep N`; `wl:job-one` stands for the Workload whose name begins so). Its README may name a
configuration. What was recorded once can be compared by `python -m tests.golden OUT`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.control_plane import KUBELETS, ControlPlane, kubelet_rights
from tools.kubectl import kubectl
from tools.kueue import running

from makeway.client import Client, Resource, from_kubeconfig
from makeway.embedded.node.pretend import run_pretended
from tests.golden.facts import KINDS, SPEC_ONCE
from tests.golden.names import AGE, LONG_TIME, SECONDS, TIME, UID
from tests.golden.recording import CONFIGURATIONS, Json
from tests.golden.replay import EXITS, ended, translated, translated_manifest

QUIET_S = 2.5
SETTLE_S = 60.0
# The recordings were made without these.
WITHOUT = "ServiceAccount,TaintNodesByCondition"
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
WATCHED = {
    "workloads": "workloads.v1beta2.kueue.x-k8s.io",
    "jobs": "jobs.batch",
    "pods": "pods",
    "clusterQueues": "clusterqueues.v1beta2.kueue.x-k8s.io",
    "localQueues": "localqueues.v1beta2.kueue.x-k8s.io",
    "cohorts": "cohorts.v1beta2.kueue.x-k8s.io",
    "admissionChecks": "admissionchecks.v1beta2.kueue.x-k8s.io",
}
TABLES = (
    "kubectl get workloads -A",
    "kubectl get clusterqueues",
    "kubectl get clusterqueues -o wide",
    "kubectl get localqueues -A",
    "kubectl get jobs -A",
    "kubectl get pods -A -o wide",
)
PAST_TIME = re.compile(r"(accumulatedPastExecutionTimeSeconds\"?: *)\d+")
STEP = re.compile(r"(\d+\w*-[\w-]+)\.(?:yaml|cmd)")
UNSHOWN = [
    "managedFields",
    "resourceVersion",
    "generation",
    "uid",
    "creationTimestamp",
    "generateName",
]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Names:
    """Uids, random suffixes and hashes, numbered over the situation."""

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self.workloads: dict[str, str] = {}

    def learn(self, kind: str, meta: Json) -> None:
        name, base = meta["name"], meta.get("generateName", "")
        if base and name.startswith(base) and len(name) == len(base) + 5:
            numbered = len([n for n in self._names if n not in self.workloads]) + 1
            self._names.setdefault(name, f"{base}<r{numbered:02d}>")
        if kind == "Workload" and meta.get("ownerReferences") and re.search("-[0-9a-f]{5}$", name):
            self.workloads.setdefault(name, f"{name[:-5]}<h{len(self.workloads) + 1:02d}>")
            self._names[name] = self.workloads[name]

    def of(self, text: str) -> str:
        for name in sorted(self._names, key=len, reverse=True):
            text = text.replace(name, self._names[name])
        text = UID.sub(self._uid, LONG_TIME.sub("<time>", TIME.sub("<time>", text)))
        return PAST_TIME.sub(r'\1"<n>"', SECONDS.sub("<n>", text))

    def deep(self, value: Any) -> Any:
        return json.loads(self.of(json.dumps(value)))

    def _uid(self, found: re.Match[str]) -> str:
        return self._uids.setdefault(found.group(), f"<uid:{len(self._uids) + 1}>")

    def real(self, text: str) -> str:
        """With the Workload for `wl:job-one`."""
        return re.sub(r"wl:([\w.-]+)", lambda m: self._workload(m.group(1)), text)

    def _workload(self, start: str) -> str:
        return next((name for name in self.workloads if name[:-6] == start), start)


class Watch:
    """All changes of what recordings show, as lines in the order of the store."""

    def __init__(self, plane: ControlPlane, names: Names) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.changed_at = time.monotonic()
        self._lines: list[tuple[int, str]] = []
        self._lock = threading.Lock()
        self._names = names
        self._processes = [self._follow(plane, *each) for each in WATCHED.items()]

    def stop(self) -> None:
        for process in self._processes:
            process.kill()

    def taken(self) -> list[str]:
        """The lines since this was asked last."""
        if any(process.poll() is not None for process in self._processes):
            raise RuntimeError("a watch has ended: record it again")
        with self._lock:
            lines, self._lines = sorted(self._lines), []
        return [line for _, line in lines]

    def _follow(self, plane: ControlPlane, plural: str, resource: str) -> subprocess.Popen[str]:
        command = f"get {resource} -A --watch -o json --output-watch-events"
        process = subprocess.Popen(
            [str(kubectl()), *command.split()],
            env=os.environ | {"KUBECONFIG": str(plane.kubeconfig)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self._read, args=(process, plural), daemon=True).start()
        return process

    def _read(self, process: subprocess.Popen[str], plural: str) -> None:
        assert process.stdout is not None
        read = ""
        for line in process.stdout:
            read += line
            if line.startswith(("}", "{")) and line.rstrip().endswith("}"):
                event, read = json.loads(read), ""
                with self._lock:
                    self._note(plural, event["type"], event["object"])

    def _note(self, plural: str, change: str, obj: Json) -> None:
        self.changed_at = time.monotonic()
        meta, kind = obj["metadata"], KINDS[plural]
        about = "/".join(filter(None, (meta.get("namespace"), meta["name"])))
        before = self.objects.get((plural, about))
        if change == "DELETED":
            self.objects.pop((plural, about), None)
            line = f"- {kind} {about} deleted"
        elif before is None or before["metadata"]["uid"] != meta["uid"]:
            self.objects[plural, about] = obj
            self._names.learn(kind, meta)
            line = f"+ {kind} {about} created"
        else:
            self.objects[plural, about] = obj
            line = f"~ {kind} {about}: {'; '.join(_changes(_flat(before), _flat(obj)))}"
        if not line.endswith(": "):
            self._lines.append((int(meta["resourceVersion"]), line))


def _changes(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    yield from (f"{field}={after[field]}" for field in after if before.get(field) != after[field])
    yield from (f"{field} removed" for field in before if field not in after)


def _flat(obj: Json) -> dict[str, str]:
    shown = {part: obj.get(part) for part in ("metadata", "spec", "status")}
    for field in ("managedFields", "resourceVersion", "generation"):
        shown["metadata"] = {k: v for k, v in (shown["metadata"] or {}).items() if k != field}
    return dict(_leaves(shown, ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for field, part in value.items():
            yield from _leaves(part, f"{path}.{field}" if path else field)
    elif isinstance(value, list) and path.endswith("conditions"):
        for one in value:
            said = (one["status"], one.get("reason", ""), one.get("message", ""))
            yield f"status.condition.{one['type']}", " / ".join(said)
    elif isinstance(value, list):
        for place, part in enumerate(value):
            named = part.get("name", place) if isinstance(part, dict) else place
            yield from _leaves(part, f"{path}[{named}]")
    elif value is not None:
        yield path, str(value)


class Recorder:
    def __init__(self, plane: ControlPlane, source: Path, folder: Path) -> None:
        self._plane, self._source, self._folder = plane, source, folder
        self._names = Names()
        self._watch = Watch(plane, self._names)
        self._shown: dict[tuple[str, str], Json] = {}
        self._tables: dict[str, list[str]] = {}
        self._told: dict[str, int] = {}

    def step(self, step: str) -> Json:
        commands = [self._do(run) for run in self._commands(step)]
        self._settle()
        events = self._events()
        timeline = [*self._watch.taken(), *map(_told, events)]
        return {
            "situation": f"kueue/{self._source.name}",
            "step": step,
            "commands": commands,
            "timeline": self._names.deep(timeline),
            "newEvents": self._names.deep(events),
            **{plural: found for plural in WATCHED if (found := self._objects(plural))},
            "text": dict(self._texts()),
        }

    def stop(self) -> None:
        self._watch.stop()

    def _commands(self, step: str) -> list[str]:
        file = self._source / f"{step}.cmd"
        if file.exists():
            return file.read_text().strip().splitlines()
        manifest = self._source / f"{step}.yaml"
        (self._folder / manifest.name).write_text(translated_manifest(manifest.read_text()))
        return [f"kubectl apply -f {manifest.name}"]

    def _do(self, run: str) -> Json:
        if run.startswith("sleep "):
            time.sleep(float(run.split()[1]))
            return {"run": "kubectl get nodes -o name", "exitCode": 0, "stdout": []}
        if run.startswith("#"):
            self._exit(run)
            return {"run": run}
        run = self._names.real(run)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        code, out, err = self._kubectl(*shlex.split(run.replace("<time>", now))[1:])
        said = {"run": self._names.of(run), "exitCode": code}
        printed = {"stdout": out, "stderr": err}
        return said | {k: self._names.of(v).splitlines() for k, v in printed.items() if v}

    def _kubectl(self, *args: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [str(kubectl()), *map(translated, args)],
            env=os.environ | {"KUBECONFIG": str(self._plane.kubeconfig)},
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def _exit(self, line: str) -> None:
        found = EXITS.match(line)
        if not found:
            raise ValueError(f"do not know how to do: {line}")
        for (plural, about), obj in list(self._watch.objects.items()):
            running_now = plural == "pods" and obj["status"].get("phase") == "Running"
            if running_now and fnmatch.fnmatch(about, found.group(1)):
                space, name = about.split("/")
                status = json.dumps({"status": ended(obj, int(found.group(2)))})
                patch = ["--subresource=status", "--type=strategic", "-p", status]
                self._kubectl("patch", "pod", name, "-n", space, *patch)

    def _settle(self) -> None:
        started = self._watch.changed_at = time.monotonic()
        while time.monotonic() < min(started + SETTLE_S, self._watch.changed_at + QUIET_S):
            time.sleep(0.1)

    def _events(self) -> list[Json]:
        _, printed, _ = self._kubectl("get", "events.events.k8s.io", "-A", "-o", "json")
        found = []
        for event in json.loads(printed)["items"]:
            often = (event.get("series") or {}).get("count") or event.get("deprecatedCount") or 0
            uid, regarding = event["metadata"]["uid"], event.get("regarding") or {}
            if self._told.get(uid) != often and regarding.get("name"):
                self._told[uid] = often
                found.append(_event(event, regarding, often > 1))
        return found

    def _objects(self, plural: str) -> list[Json]:
        found = []
        for (kind, about), obj in sorted(self._watch.objects.items()):
            if kind == plural:
                shown = _shown(obj)
                last = self._shown.get((kind, about), {})
                self._shown[kind, about] = shown
                known = KINDS[plural] in SPEC_ONCE and last.get("spec") == shown.get("spec")
                if last == shown:
                    named = {
                        k: v for k, v in shown["metadata"].items() if k in ("namespace", "name")
                    }
                    shown = {"metadata": named, "unchanged": True}
                elif known:
                    shown = {part: value for part, value in shown.items() if part != "spec"}
                found.append(self._names.deep(shown))
        return found

    def _texts(self) -> Iterator[tuple[str, list[str]]]:
        for command in TABLES:
            _, printed, _ = self._kubectl(*shlex.split(command)[1:])
            lines = AGE.sub("<age>", self._names.of(printed)).splitlines()
            if lines and self._tables.get(command) != lines:
                self._tables[command] = lines
                yield command, lines


def _told(event: Json) -> str:
    about = event["regarding"]
    name = "/".join(filter(None, (about.get("namespace"), about["name"])))
    return f"event {event['type']} {event['reason']} on {about['kind']} {name}: {event.get('note', '')}"


def _event(event: Json, regarding: Json, repeated: bool) -> Json:
    named = ("apiVersion", "kind", "namespace", "name")
    said = {
        field: event[field] for field in ("type", "reason", "action", "note") if event.get(field)
    }
    source = (event.get("deprecatedSource") or {}).get("component", "")
    said["regarding"] = {field: regarding[field] for field in named if regarding.get(field)}
    said["reportingComponent"] = event.get("reportingController") or source
    return said | ({"repeated": True} if repeated else {})


def _shown(obj: Json) -> Json:
    shown: Json = json.loads(
        json.dumps({k: obj[k] for k in ("metadata", "spec", "status") if k in obj})
    )
    for field in UNSHOWN:
        shown["metadata"].pop(field, None)
    for owner in shown["metadata"].get("ownerReferences") or ():
        for field in ("apiVersion", "controller", "blockOwnerDeletion"):
            owner.pop(field, None)
    (shown["metadata"].get("annotations") or {}).pop(LAST_APPLIED, None)
    for condition in (shown.get("status") or {}).get("conditions") or ():
        for field in ("lastTransitionTime", "lastProbeTime", "observedGeneration"):
            condition.pop(field, None)
    return shown


@contextlib.contextmanager
def _kubelets(plane: ControlPlane) -> Iterator[None]:
    """Pretended nodes, on an event loop in a thread beside kubectl."""

    async def pretend() -> None:
        async with Client(from_kubeconfig(plane.kubeconfig)) as admin:
            await admin.create(BINDINGS, kubelet_rights())
        async with Client(from_kubeconfig(plane.kubeconfig_of(KUBELETS))) as client:
            await run_pretended(client)

    threading.Thread(target=lambda: asyncio.run(pretend()), daemon=True).start()
    yield


def record(source: Path, target: Path) -> None:
    readme = source / "README.md"
    text = readme.read_text() if readme.exists() else ""
    named = re.search(r"Kueue configuration: `([\w-]+)`", text)
    config = CONFIGURATIONS[named.group(1)] if named else ""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.cmd"), dirs_exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="makeway-record-") as folder,
        ControlPlane.start(scheduler=True, without_admission=WITHOUT) as plane,
        _kubelets(plane),
        running(plane, config),
    ):
        recorder = Recorder(plane, source, Path(folder))
        time.sleep(QUIET_S)
        try:
            steps = {m.group(1) for file in source.iterdir() if (m := STEP.fullmatch(file.name))}
            for step in sorted(steps):
                outcome = recorder.step(step)
                (target / f"{step}.out.json").write_text(json.dumps(outcome, indent=1))
                print(f"{source.name} {step}: {len(outcome['timeline'])} lines", flush=True)
        finally:
            recorder.stop()


def main() -> None:
    out, *sources = map(Path, sys.argv[1:])
    if len(sources) == 1:
        record(sources[0], out / sources[0].name)
        return
    for source in sources:  # each in its own process: what pretends to be kubelets ends with it
        command = [sys.executable, "-m", "tests.golden.record", str(out), str(source)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
