"""What was recorded: situations on disk, each a folder with its steps.

Kueue's and kube-scheduler's folders have `NN-name.yaml` (what was applied) and `NN-name.out.json` (what
came of it). Koordinator's have `NN.input.yaml`, an `expect.json` with the right outcome of each step, and one folder for
each recorded variant.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from makeway.control.config import Configuration, parse

Json = dict[str, Any]
Program = Literal["kueue", "kube-scheduler", "koordinator"]

VICTIMS: dict[Program, str] = {
    "kueue": "kueue",
    "kube-scheduler": "kube",
    "koordinator": "least-loss",
}

# The recorder's configurations of Kueue, by the names that the situations' READMEs use.
CONFIGURATIONS = {
    "default": "",
    "granular": "featureGates: {UnadmittedWorkloadsObservability: true}",
    "fairsharing": (
        "fairSharing: {preemptionStrategies: [LessThanOrEqualToFinalShare, LessThanInitialShare]}"
    ),
    "podsready": (
        "waitForPodsReady: {timeout: 4s, recoveryTimeout: 4s, requeuingStrategy: {timestamp: Eviction,"
        " backoffLimitCount: 2, backoffBaseSeconds: 2, backoffMaxSeconds: 60}}"
    ),
    "blockadmission": "waitForPodsReady: {timeout: 5m, blockAdmission: true}",
}


# A third of them, short ones, so that each program and each kind of outcome is among them.
TAGGED = frozenset(
    {
        "kueue/01-seed-demo",
        "kueue/02-seed-demo-threshold-99",
        "kueue/04-within-cluster-queue",
        "kueue/05-plain-pods",
        "kueue/07-borrowing-and-lending-limits",
        "kueue/10-partial-admission",
        "kueue/12c-deactivated",
        "kueue/17-finish-and-delete",
        "kueue/21-seed-002-skypilot-pods",
        "kueue/24-slow-termination",
        "kueue/08b-strict-fifo",
        "kube-scheduler/01-cheapest-node",
        "kube-scheduler/08c-seed-003-verbatim",
        "kube-scheduler/09-seed-004",
        "kube-scheduler/11-job-victims",
        "koordinator/a-seed-003",
        "koordinator/b-one-node-freeable",
        "koordinator/c-three-over-two-nodes",
        "koordinator/f2-surplus-three-nodes",
        "koordinator/j-pdb",
        "koordinator/l-plain-pod",
    }
)


class Command(NamedTuple):
    run: str
    exit_code: int | None
    stdout: tuple[str, ...]
    stderr: tuple[str, ...]

    @property
    def steers_kubelet(self) -> bool:
        return self.run.startswith("#")

    @property
    def only_reads(self) -> bool:
        return self.run.startswith(("kubectl get ", "kubectl describe ", "kubectl events"))


class Step(NamedTuple):
    name: str
    commands: tuple[Command, ...]
    outcome: Json

    @property
    def passes_time(self) -> bool:
        """Nothing was done, and yet something happened: a grace, a timeout or a back-off ended."""
        return bool(self.outcome.get("timeline")) and all(c.only_reads for c in self.commands)


class Situation(NamedTuple):
    path: Path
    program: Program

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def tagged(self) -> bool:
        """Replayed on a real API server whenever that is tested."""
        return self.name in TAGGED

    @property
    def needs_an_operator(self) -> bool:
        """Of kinds that a bare control plane does not serve; the embedded API runs them itself."""
        return any("JobSet" in file.read_text() for file in self.path.glob("*.yaml"))

    @property
    def steps(self) -> tuple[Step, ...]:
        return _steps(self.path)

    @property
    def uses_kueue(self) -> bool:
        return self.program == "kueue"

    def configuration(self, victims: str = "") -> Configuration:
        """What the recorded program was told, with its own choice of victims."""
        said = re.search(r"Kueue configuration: `([\w-]+)`", _readme(self.path))
        name = said.group(1) if said else "default"
        if name not in CONFIGURATIONS:
            raise ValueError(f"{self.path}/README.md: no configuration is called {name!r}")
        ours = f"victims: {victims or VICTIMS[self.program]}"
        if self.program != "koordinator":
            # The default scheduler of a cluster prefers the emptiest node.
            ours += ", spread: true"
        if self.program == "kube-scheduler":
            ours += ", schedulerNames: [default-scheduler]"
        return parse(f"{CONFIGURATIONS[name]}\nmakeway: {{{ours}}}", where=str(self.path))


def find(root: Path) -> list[Situation]:
    """The situation at a path, or all below it."""
    folders = [root, *sorted(path for path in root.rglob("*") if path.is_dir())]
    return [Situation(path, program) for path in folders if (program := _program(path))]


def _program(path: Path) -> Program | None:
    if (path / "expect.json").exists():
        return "koordinator"
    outcomes = sorted(path.glob("[0-9]*-*.out.json"))
    if not outcomes:
        return None
    said = str(json.loads(outcomes[0].read_text()).get("situation", path.parent.name))
    return "kube-scheduler" if said.startswith("kube-scheduler") else "kueue"


def _readme(path: Path) -> str:
    readme = path / "README.md"
    return readme.read_text() if readme.exists() else ""


@cache
def _steps(path: Path) -> tuple[Step, ...]:
    if (path / "expect.json").exists():
        return tuple(_input(file) for file in sorted(path.glob("*.input.yaml")))
    steps = []
    for file in sorted(path.glob("[0-9]*-*.out.json")):
        outcome = json.loads(file.read_text())
        commands = tuple(
            Command(
                said["run"],
                said.get("exitCode"),
                tuple(said.get("stdout") or ()),
                tuple(said.get("stderr") or ()),
            )
            for said in outcome["commands"]
        )
        steps.append(Step(file.name.removesuffix(".out.json"), commands, outcome))
    return tuple(steps)


def _input(file: Path) -> Step:
    """A step of Koordinator's: something is applied, and nothing is recorded that we would have to imitate."""
    apply = Command(f"kubectl apply -f {file.name}", 0, (), ())
    return Step(file.name.removesuffix(".input.yaml"), (apply,), {})
