"""A transcript: what kubectl says to each command of `commands.txt`, made comparable between two servers and two days.

Times, ages, versions, UIDs, addresses and made-up suffixes become words; the rest is kept to the letter. A transcript is text that
people read in a diff:

    $ get pod nope
    ! Error from server (NotFound): pods "nope" not found
    = 1
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent
COMMAND_TIMEOUT_S = 90.0


class Step(msgspec.Struct, frozen=True):
    """One command and what became of it."""

    command: str
    output: str
    errors: str
    code: int

    @property
    def text(self) -> str:
        lines = [f"$ {self.command}", *self.output.splitlines()]
        lines += [f"! {line}" for line in self.errors.splitlines()]
        if self.code:
            lines.append(f"= {self.code}")
        return "\n".join(lines) + "\n"


def commands() -> list[str]:
    lines = (FOLDER / "commands.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def record(binary: Path, kubeconfig: Path, scratch: Path) -> list[Step]:
    """Run every command with this kubectl on the API that a kubeconfig names."""
    scratch.mkdir(parents=True, exist_ok=True)
    own = scratch / "kubeconfig"  # commands change its namespace
    shutil.copyfile(kubeconfig, own)
    own.chmod(0o600)
    environment = {
        "KUBECONFIG": str(own),
        "HOME": str(scratch),
        "PATH": os.environ.get("PATH", ""),
    }
    _run(binary, "config set-context --current --namespace=box", environment)
    return [_run(binary, command, environment) for command in commands()]


def _run(binary: Path, command: str, environment: dict[str, str]) -> Step:
    words = _words(command)
    given = dict(environment)
    while re.fullmatch(r"[A-Z_]+=.*", words[0], re.DOTALL):
        name, _, value = words.pop(0).partition("=")
        given[name] = value
    done = subprocess.run(
        [str(binary), *words],
        cwd=FOLDER / "manifests",
        env=given,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    return Step(command, normalised(done.stdout), normalised(done.stderr), done.returncode)


def _words(command: str) -> list[str]:
    """Words between spaces; quotes hold one together, and are part of it where it is JSON or a template."""
    found = re.findall(r'(?:[^\s"]|"[^"]*")+', command)
    return [word if "{" in word else word.replace('"', "") for word in found]


# ---- made comparable -----------------------------------------------------------------------------

_RULES: tuple[tuple[str, str], ...] = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
    (r"https://127\.0\.0\.1:\d+", "https://SERVER"),
    (r"\b10\.\d+\.\d+\.\d+\b", "ADDRESS"),
    (r"(resourceVersion: )\"\d+\"", r'\1"VERSION"'),
    (r"(\"resourceVersion\":\s*)\"\d+\"", r'\1"VERSION"'),
    # A ReplicaSet's name ends with a hash of its template, a pod's with letters by chance.
    (r"\b(web|d1|work|made|j1|j2|agent)-([bcdf-hj-np-tv-z2456789]{8,10})-[bcdfghj-np-tv-xz2456789]{5}\b", r"\1-HASH-CHANCE"),
    (r"\b(web|d1)-([bcdf-hj-np-tv-z2456789]{6,10})\b", r"\1-HASH"),
    (r"\b(web|d1|work|made|j1|j2|agent)(-\d)?-[bcdf-hj-np-tv-xz2456789]{5}\b", r"\1\2-CHANCE"),
    (r"(pod-template-hash[=:] ?)[bcdf-hj-np-tv-z2456789]{6,10}", r"\1HASH"),
    (r"(controller-revision-hash[=:\"]+ ?)[\w-]+", r"\1HASH"),
    (r"/tmp/(LIVE|MERGED)-\d+", r"/tmp/\1"),
    # A whole object in one string: who wrote in the same second stands in the order of names, else in that of time.
    (r"(Invalid value: \")\{\\\".*\}(\": json: )", r"\1OBJECT\2"),
    (r"^((?:---|\+\+\+) \S+)\t.*", r"\1"),
    (r"(kube-api-access-)\w{5}", r"\1CHANCE"),
    (r"(Resource Version: +)\d+", r"\1VERSION"),
    (r"(?<=\s)(\d+[smhd])+(?=\s|$)", "AGE"),
    (r"(?<=\()x\d+ over AGE", "AGE"),
    (r"\bnode[Pp]ort(: +| +)\d{5}\b", r"nodePort\1PORT"),
    (r"(?<=[:/])3[0-2]\d{3}(?=/TCP)", "PORT"),
)  # fmt: skip
_COMPILED = [(re.compile(pattern, re.MULTILINE), word) for pattern, word in _RULES]
# Columns are as wide as their widest cell, which may be an age or a made-up name.
_GAP = re.compile(r"(?<=\S) {2,}")


def normalised(text: str) -> str:
    for pattern, word in _COMPILED:
        text = pattern.sub(word, text)
    lines = [_GAP.sub("  ", line).rstrip() for line in text.splitlines()]
    # How often kubectl looks while it waits, and in which order fields were found wrong, is chance.
    kept = [line for line in lines if not line.startswith("Waiting for ")]
    wrong = iter(sorted(line for line in kept if line.startswith("* ")))
    return "\n".join(next(wrong) if line.startswith("* ") else line for line in kept)


# ---- on disk -------------------------------------------------------------------------------------


def text_of(steps: list[Step]) -> str:
    return "\n".join(step.text for step in steps)


def read(transcript: str) -> dict[str, list[str]]:
    """What was said to each command, in order: some are asked more than once."""
    found: dict[str, list[str]] = {}
    for command, text in _parts(transcript):
        found.setdefault(command, []).append(text)
    return found


def _parts(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^(?=\$ )", text, flags=re.MULTILINE):
        if part:
            yield part.splitlines()[0][2:], part.rstrip("\n") + "\n"
