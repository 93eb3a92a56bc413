"""The unit tests on every Python that makeway supports: `make pythons`, a part of `make long`.

Each Python gets an environment of its own below `build/pythons`, from the same lock file. One that the machine does not have is looked for
by uv (on PATH, by download where the network allows) and in pyenv's folder; where none is found the line says so, and the rest goes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
ROOT = Path(__file__).parent.parent
UV = ROOT / ".tools/bin/uv"
# What needs kubectl, a cluster or a whole machine shows nothing more on another Python.
TESTS = ("client", "control", "engine", "kinds", "embedded/test_store.py", "embedded/controllers", "embedded/api")  # fmt: skip


def find(version: str) -> str | None:
    environment = os.environ | {"UV_PYTHON_DOWNLOADS": "automatic"}
    environment.pop("UV_PYTHON", None)
    for command in (["python", "install", version], ["python", "find", version]):
        done = subprocess.run(
            [str(UV), *command], env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode == 0 and done.stdout.strip():
        return done.stdout.strip()
    own = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = sorted(own.glob(f"{version}*/bin/python"))
    return str(found[-1]) if found else None


def test_on(version: str, python: str) -> int:
    place = ROOT / "build/pythons" / version
    environment = os.environ | {"UV_PROJECT_ENVIRONMENT": str(place), "UV_PYTHON": python}
    made = subprocess.run(
        [str(UV), "sync", "--frozen", "--quiet"], cwd=ROOT, env=environment, check=False
    )
    if made.returncode:
        return made.returncode
    tests = [f"tests/{name}" for name in TESTS]
    command = [
        str(place / "bin/python"),
        "-m",
        "pytest",
        "-n",
        "2",
        "-m",
        "not slow and not kubectl",
    ]
    return subprocess.run([*command, *tests], cwd=ROOT, check=False).returncode


def main() -> int:
    worst = 0
    for version in sys.argv[1:] or VERSIONS:
        python = find(version)
        if python is None:
            print(f"Python {version}: skipped, there is none on this machine and none to download")
            continue
        print(f"Python {version}: {python}", flush=True)
        worst = max(worst, test_on(version, python))
    return worst


if __name__ == "__main__":
    sys.exit(main())
