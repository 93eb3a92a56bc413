"""A situation's steps on a whole machine in one process, and what came of each in the recording's own shape.

The recordings' pretend kubelet is steered by `golden/...` annotations and by `# ...` lines; ours by the annotations of
pretended nodes. A step is over when nothing was written for a moment and the loop is idle; a step that only waits (for a grace or
a timeout to end) is over when the recorded state is reached, or will not be.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import os
import re
import shlex
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from makeway.client.resource import PODS
from makeway.control.clock import timestamp
from makeway.control.config import Configuration
from makeway.embedded.store import Change
from makeway.model.resources import amount_of
from tests.e2e.harness import Machine, chosen_backend, kubectl_path, machine
from tests.golden.facts import KINDS, Mark
from tests.golden.names import OurNames, RecordedNames
from tests.golden.recording import Command, Json, Situation, Step

SETTLE_S = 60.0
# A state that the recording reached and we did not is given this long after the last change, however slow the machine
# is: timers differ by a second or two.
REACH_S = 4.0
PASS_TIME_S = 40.0
STORES = {
    "workloads.kueue.x-k8s.io": "Workload",
    "jobs.batch": "Job",
    "jobsets.jobset.x-k8s.io": "JobSet",
    "pods": "Pod",
    "clusterqueues.kueue.x-k8s.io": "ClusterQueue",
    "localqueues.kueue.x-k8s.io": "LocalQueue",
    "cohorts.kueue.x-k8s.io": "Cohort",
    "admissionchecks.kueue.x-k8s.io": "AdmissionCheck",
    "nodes": "Node",
}
# Not shown in recordings, but their uids are, in who owns what.
OWNERS = {"replicasets.apps": "ReplicaSet", "statefulsets.apps": "StatefulSet"}
POD_GROUPS = ("podgroups.scheduling.sigs.k8s.io", "podgroups.scheduling.x-k8s.io")
FAKE_NODE = {"kwok.x-k8s.io/node": "fake"}
EXITS = re.compile(r"# the containers of pods (\S+) exit with code (\d+)")
DOCUMENT = re.compile(r"^---[^\n]*\n", re.MULTILINE)


class Replay:
    def __init__(
        self, situation: Situation, config: Configuration, box: Machine, folder: Path
    ) -> None:
        self.config = config
        self.bound: dict[str, tuple[str, dict[str, int]]] = {}  # pods on nodes, for the promises
        self.situation = situation
        self.box = box
        self.recorded = RecordedNames(situation)
        # Where equal nodes share a name in the recording, they do so here.
        shared = self.recorded.nodes if situation.uses_kueue else str
        self.names = OurNames(shared)
        self.changes: list[Change] = []
        self._folder = folder
        self._store = box.server.app.store
        self._learned = self._store.version
        self._last_step_at = 0.0
        self._recorded_state: dict[str, Any] = {}
        self._created: set[str] = set()

    async def step(self, step: Step, *, as_recorded: bool = True) -> Json:
        """Do what was done, wait until it is over, and look.

        Under another policy than the recorded one (`as_recorded` is false) nothing says which state is to be reached.
        """
        await self._next_second()
        self._last_step_at = time.monotonic()
        before = self._store.version
        anew = self._begins_anew(step)
        if anew:
            await self._clear()
        commands = [await self._do(command) for command in step.commands]
        await self._over(step, as_recorded)
        self.changes = self._store.changes_since(before)
        after = self._store.version
        text = await self._texts(list(step.outcome.get("text") or {}) if as_recorded else [])
        if self._store.version != after and not step.passes_time:
            # Looking takes a moment; what happened meanwhile belongs to this step.
            self.changes = self._store.changes_since(before)
            self._learn()
        return {
            "commands": commands,
            "anew": anew,
            "marks": self._marks(self.changes),
            "newEvents": self._events(self.changes),
            "repeatedEvents": self._events(self.changes, again=True),
            **self.objects(),
            "text": text,
        }

    def objects(self) -> Json:
        return {
            plural: [
                self.names.deep(entry.decode())
                for store, stored_kind in STORES.items()
                if stored_kind == kind
                for entry in self._store.sorted(store)
            ]
            for plural, kind in KINDS.items()
        }

    def pods(self) -> list[Json]:
        return [entry.decode() for entry in self._store.sorted("pods")]

    def preemptions(self) -> list[Json]:
        return [entry.decode() for entry in self._store.sorted("preemptions.makeway.dev")]

    def exists(self, uid: str) -> bool:
        stores = ("pods", "jobs.batch", "workloads.kueue.x-k8s.io", *POD_GROUPS)
        return any(entry.uid == uid for store in stores for entry in self._store.all(store))

    def gang_minimums(self) -> dict[str, int]:
        return {
            f"{entry.namespace}/{entry.name}": int(entry.decode()["spec"].get("minMember", 1))
            for store in POD_GROUPS
            for entry in self._store.all(store)
        }

    def answers_to(self, scheduler: str) -> bool:
        names = self.config.makeway.scheduler_names
        return not names or scheduler in names

    def room(self) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
        """Each node with what its pods ask for and what it offers."""
        found: dict[str, tuple[dict[str, int], dict[str, int]]] = {}
        for entry in self._store.sorted("nodes"):
            status = entry.decode().get("status") or {}
            found[entry.name] = ({}, amounts(status.get("allocatable") or status.get("capacity")))
        for pod in self.pods():
            node = pod["spec"].get("nodeName")
            if node in found and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                used = found[node][0]
                for resource, amount in requests(pod).items():
                    used[resource] = used.get(resource, 0) + amount
        return found

    # ---- beginning anew

    def _begins_anew(self, step: Step) -> bool:
        """The recorder cleared the cluster between the parts of a situation: what was there is created again."""
        created = {
            line.removesuffix(" created")
            for command in step.commands
            for line in command.stdout
            if line.endswith(" created") and line.startswith(("node/", "namespace/"))
        }
        anew = bool(created & self._created)
        self._created = created if anew else self._created | created
        return anew

    async def _clear(self) -> None:
        for kinds in ("jobs,pods", "localqueues", "clusterqueues"):
            await self._kubectl(["delete", kinds, "--all", "-A", "--timeout=20s"])
        for kinds in ("resourceflavors", "workloadpriorityclasses", "nodes"):
            await self._kubectl(["delete", kinds, "--all", "--timeout=20s"])
        spaces = [name.removeprefix("namespace/") for name in self._created if "namespace" in name]
        await self._kubectl(["delete", "namespace", *spaces, "--timeout=20s"])
        self._learn()

    # ---- doing

    async def _next_second(self) -> None:
        """Creation times have whole seconds: what the recording did one after the other must not become a tie."""
        born = {"pods", "jobs.batch", "workloads.kueue.x-k8s.io"}
        if not any(change.before is None and change.kind in born for change in self.changes):
            return
        left = self._last_step_at + 1.05 - time.monotonic()
        if left > 0:
            await asyncio.sleep(left)

    async def _do(self, command: Command) -> Json:
        if command.steers_kubelet:
            await self._exit(command.run)
            return {"run": command.run, "exitCode": None, "stdout": [], "stderr": []}
        run, _, remark = command.run.partition(" '#")
        run = self.names.real(run, self.recorded).replace("<time>", timestamp(time.time()))
        args = [translated(arg) for arg in shlex.split(run)[1:]]
        apart = re.search(r"one document at a time", remark)
        file = self._written(args)
        if apart and file:
            code, out, err = await self._apply_apart(args, file)
        else:
            code, out, err = await self._kubectl(args)
        return {
            "run": command.run,
            "exitCode": code,
            "stdout": self._lines(out),
            "stderr": self._lines(err),
        }

    def _written(self, args: list[str]) -> Path | None:
        """The manifest that a command names, with our steering in place of the recorder's."""
        if "-f" not in args:
            return None
        name = args[args.index("-f") + 1]
        target = self._folder / name
        target.write_text(translated_manifest((self.situation.path / name).read_text()))
        return target

    async def _apply_apart(self, args: list[str], file: Path) -> tuple[int, str, str]:
        outs, errs, worst = [], [], 0
        documents = [d for d in DOCUMENT.split(file.read_text()) if d.strip()]  # noqa: ASYNC240
        for number, document in enumerate(documents):
            if number:
                await asyncio.sleep(1.1)
            file.write_text(document)  # noqa: ASYNC240  a few lines in a temporary folder
            code, out, err = await self._kubectl(args)
            worst = max(worst, code)
            outs.append(out)
            errs.append(err)
        return worst, "".join(outs), "".join(errs)

    async def _kubectl(self, args: list[str]) -> tuple[int, str, str]:
        server = self.box.server
        process = await asyncio.create_subprocess_exec(
            kubectl_path(),
            *args,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._folder,
            env={**os.environ, "KUBECONFIG": str(server.kubeconfig), "HOME": str(server.home)},
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode or 0, out.decode(), err.decode()

    async def _exit(self, line: str) -> None:
        """The pretend kubelet says that containers ended."""
        found = EXITS.match(line)
        if not found:
            raise ValueError(f"do not know how to do: {line}")
        pattern, code = found.group(1), int(found.group(2))
        for entry in self._store.sorted("pods"):
            pod = entry.decode()
            if not fnmatch.fnmatch(f"{entry.namespace}/{entry.name}", pattern):
                continue
            if pod["status"].get("phase") == "Running":
                await self._end(pod, code)
            elif pod["status"].get("phase") == "Pending":
                # It ends as soon as it has started.
                exits = {"metadata": {"annotations": {"makeway.dev/pretend-exit-code": str(code)}}}
                await self.box.client.patch(PODS, entry.name, exits, entry.namespace)

    async def _end(self, pod: Json, code: int) -> None:
        meta = pod["metadata"]
        await self.box.client.patch(
            PODS,
            meta["name"],
            {"status": ended(pod, code)},
            meta["namespace"],
            kind="strategic",
            subresource="status",
        )

    # ---- waiting

    async def _over(self, step: Step, as_recorded: bool) -> None:
        expected = _states(self.recorded.deep(step.outcome), self._recorded_state)
        self._recorded_state = expected
        deadline = time.monotonic() + (PASS_TIME_S if step.passes_time else SETTLE_S)
        patience = PASS_TIME_S if step.passes_time else REACH_S
        version, changed_at = self._store.version, time.monotonic()
        while time.monotonic() < deadline:
            await self._quiet(deadline)
            self._learn()
            known = step.outcome and as_recorded
            over = self._reached(expected) if known else not self._somebody_leaves()
            if self._store.version != version:
                version, changed_at = self._store.version, time.monotonic()
            if over or time.monotonic() >= changed_at + patience:
                return
            await asyncio.sleep(0.1)

    async def _quiet(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            before = self._store.version
            await asyncio.sleep(self.box.backend.quiet_s)
            if self._store.version == before and self.box.loop.idle.is_set():
                return

    def _somebody_leaves(self) -> bool:
        return any(pod["metadata"].get("deletionTimestamp") for pod in self.pods())

    def _reached(self, expected: dict[str, Any]) -> bool:
        return _alike(_states(self.objects(), {})) == _alike(expected)

    # ---- looking

    async def _texts(self, commands: list[str]) -> Json:
        printed = await asyncio.gather(*(self._text(command) for command in commands))
        return dict(zip(commands, printed, strict=True))

    async def _text(self, command: str) -> list[str]:
        args = shlex.split(self.names.real(command, self.recorded))[1:]
        _, out, err = await self._kubectl(args)
        return self._lines(out or err)

    def _lines(self, text: str) -> list[str]:
        return [line.rstrip() for line in self.names.of_text(text).splitlines()]

    def _learn(self) -> None:
        """The names of what was created since we looked last."""
        for change in self._store.changes_since(self._learned):
            self._learned = change.version
            if change.before is None and change.kind != "events":
                kind = OWNERS.get(change.kind) or STORES.get(change.kind, change.kind)
                self.names.learn(kind, change.last.decode())

    def _events(self, changes: list[Change], *, again: bool = False) -> list[Json]:
        return [
            self.names.deep(change.after.decode())
            for change in changes
            if change.kind == "events"
            and change.after is not None
            and (change.before is not None) == again
        ]

    def _marks(self, changes: list[Change]) -> list[Mark]:
        marks: list[Mark] = []
        for change in changes:
            kind = STORES.get(change.kind)
            if kind not in ("Workload", "Job", "Pod"):
                continue
            before = change.before.decode() if change.before else None
            after = change.after.decode() if change.after else None
            meta = change.last.decode()["metadata"]
            about = f"{kind} {meta.get('namespace', '')}/{self.names.of(meta['name'])}"
            marks += [Mark(about, what) for what in marks_of_change(kind, before, after)]
        return marks


def amounts(said: Json | None) -> dict[str, int]:
    return {resource: amount_of(resource, text) for resource, text in (said or {}).items()}


def requests(pod: Json) -> dict[str, int]:
    total: dict[str, int] = {"pods": amount_of("pods", 1)}
    for container in pod["spec"]["containers"]:
        for resource, amount in amounts((container.get("resources") or {}).get("requests")).items():
            total[resource] = total.get(resource, 0) + amount
    return total


def marks_of_change(kind: str, before: Json | None, after: Json | None) -> list[str]:
    if after is None:
        return ["gone"]
    found = ["created"] if before is None else []
    before = before or {}
    return found + [
        what for what, holds in LIFE[kind].items() if holds(after) and not holds(before)
    ]


def _is_true(*kinds: str) -> Any:
    def holds(obj: Json) -> bool:
        conditions = (obj.get("status") or {}).get("conditions") or ()
        return any(c["type"] in kinds and c["status"] == "True" for c in conditions)

    return holds


def _phase(phase: str) -> Any:
    return lambda obj: (obj.get("status") or {}).get("phase") == phase


def _was_let_go(obj: Json) -> bool:
    """No admission although there was one: only a change of it is a mark."""
    return bool(obj) and not (obj.get("status") or {}).get("admission")


def _spec(field: str, value: Any) -> Any:
    return lambda obj: (obj.get("spec") or {}).get(field) == value


LIFE: dict[str, dict[str, Any]] = {
    "Workload": {
        "released": lambda obj: _was_let_go(obj) if obj else True,
        "reserved": _is_true("QuotaReserved"),
        "admitted": _is_true("Admitted"),
        "evicted": _is_true("Evicted"),
        "finished": _is_true("Finished"),
        "deactivated": _spec("active", False),
    },
    "Job": {
        "suspended": lambda obj: not obj or _spec("suspend", True)(obj),
        "resumed": lambda obj: not obj or not _spec("suspend", True)(obj),
        "complete": _is_true("Complete"),
        "failed": _is_true("Failed"),
    },
    "Pod": {
        "let in": lambda obj: not (obj.get("spec") or {}).get("schedulingGates"),
        "told to end": _is_true("DisruptionTarget", "TerminationTarget"),
        "deleting": lambda obj: bool((obj.get("metadata") or {}).get("deletionTimestamp")),
        "bound": lambda obj: bool((obj.get("spec") or {}).get("nodeName")),
        "running": _phase("Running"),
        "succeeded": _phase("Succeeded"),
    },
}


def _states(outcome: Json, before: dict[str, Any]) -> dict[str, Any]:
    """Who runs, who waits: enough to see that a step is over. Which of an owner's pods it is does not matter."""
    found: dict[str, Any] = {}
    for plural in ("workloads", "pods", "jobs"):
        for obj in outcome.get(plural) or ():
            about = f"{plural} {obj['metadata'].get('namespace')}/{obj['metadata']['name']}"
            found[about] = before.get(about) if obj.get("unchanged") else _state(plural, obj)
    return found


def _alike(states: dict[str, Any]) -> list[str]:
    return sorted(f"{re.sub('<r[0-9]+>', '<r>', about)} {state}" for about, state in states.items())


def _state(plural: str, obj: Json) -> Any:
    status = obj.get("status") or {}
    true = {c["type"] for c in status.get("conditions") or () if c["status"] == "True"}
    match plural:
        case "workloads":
            evicted = [
                c["reason"] for c in status.get("conditions") or () if c["type"] == "Evicted"
            ]
            active = (obj.get("spec") or {}).get("active", True)
            return [
                sorted(true & {"QuotaReserved", "Admitted", "Finished", "Evicted"}),
                evicted,
                active,
            ]
        case "pods":
            deleting = bool(obj["metadata"].get("deletionTimestamp"))
            return [status.get("phase"), bool(obj["spec"].get("nodeName")), deleting]
        case _:
            return [obj["spec"].get("suspend", False), sorted(true & {"Complete", "Failed"})]


# ---- steering ----------------------------------------------------------------------------------------


# Each look at a real API server takes seconds on a busy machine: who is told to go stays until it was looked at.
LOOKED_AT_WITHIN = "+20s"


def translated(text: str) -> str:
    """The recorder's annotations as ours."""
    longer = LOOKED_AT_WITHIN if chosen_backend() == "kube" else ""
    ours = rf"makeway.dev/pretend-grace: \1s{longer}"
    text = re.sub(r"golden/grace: *['\"]?(\d+)['\"]?", ours, text)
    return re.sub(r"golden/(ready|start|exit-code)", r"makeway.dev/pretend-\1", text)


def translated_manifest(text: str) -> str:
    """A manifest as the recorder applied it, on nodes that pretend."""
    separators = DOCUMENT.findall(text)
    documents = DOCUMENT.split(text)
    parts = [_pretending(translated(document)) for document in documents]
    return "".join(
        part + (separators[number] if number < len(separators) else "")
        for number, part in enumerate(parts)
    )


def _pretending(document: str) -> str:
    if not re.search(r"^kind: Node\s*$", document, re.MULTILINE):
        return document
    try:
        node = yaml.safe_load(document)
    except yaml.YAMLError:
        return document
    annotations = node.setdefault("metadata", {}).setdefault("annotations", {})
    annotations.update(FAKE_NODE)
    return json.dumps(node) + "\n"


def ended(pod: Json, code: int) -> Json:
    """What a kubelet writes when all containers of a pod have ended with this exit code."""
    now = timestamp(time.time())
    why_not_ready = "PodCompleted" if code == 0 else "PodFailed"
    return {
        "phase": "Succeeded" if code == 0 else "Failed",
        "conditions": [
            {"type": kind, "status": status, "reason": reason, "lastTransitionTime": now}
            for kind, status, reason in (
                ("Ready", "False", why_not_ready),
                ("ContainersReady", "False", why_not_ready),
                ("Initialized", "True", "PodCompleted" if code == 0 else None),
                ("PodReadyToStartContainers", "False", None),
            )
        ],
        "containerStatuses": [
            {
                **status,
                "ready": False,
                "started": False,
                "state": {
                    "terminated": {
                        "exitCode": code,
                        "reason": "Completed" if code == 0 else "Error",
                        "startedAt": status["state"].get("running", {}).get("startedAt", now),
                        "finishedAt": now,
                    }
                },
            }
            for status in pod["status"].get("containerStatuses") or ()
        ],
    }


@contextlib.asynccontextmanager
async def replaying(situation: Situation, config: Configuration) -> AsyncIterator[Replay]:
    with tempfile.TemporaryDirectory(prefix="makeway-golden-") as folder:
        # Where it was recorded, Kueue and its jobs were all there was: no operator made Jobs of JobSets.
        async with machine(config, without=("JobSet",)) as box:
            yield Replay(situation, config, box, Path(folder))
