"""The real Kueue beside a control plane of ours, for recordings of what it does: built once into the cache, its webhooks on loopback.

    with ControlPlane.start(scheduler=True) as plane, running(plane, "featureGates: {...}"):
        ...

It runs as it was released, with its defaults, but for what a single process on loopback has no use for: leader election, metrics and
the visibility server are off, and its certificates are ours.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tools.control_plane import ControlPlane, NotReadyError, free_port
from tools.kube_binaries import environment, run
from tools.kubectl import cache_folder, find_go, kubectl

VERSION = "0.19.1"
MODULE = "sigs.k8s.io/kueue"
READY_WITHIN_S = 60.0
FRAMEWORKS = ("batch/job", "pod", "deployment", "statefulset")
# Where it looks for certificates, and cannot be told otherwise.
SERVING_CERTIFICATES = Path("/tmp/k8s-webhook-server/serving-certs")
METRICS_CERTIFICATES = Path("/etc/kueue/metrics/certs")


def binary() -> Path:
    """The manager; building it takes some ten minutes on two cores."""
    target = cache_folder() / f"kueue-{VERSION}"
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix="makeway-kueue-") as scratch:
            fresh = Path(scratch) / "kueue"
            flags = f"-X {MODULE}/pkg/version.GitVersion=v{VERSION}"
            command = ["build", "-ldflags", flags, "-o", str(fresh), f"{MODULE}/cmd/kueue"]
            run([find_go(Path(scratch)), *command], _module(Path(scratch)))
            target.write_bytes(fresh.read_bytes())
            target.chmod(0o755)
    return target


def _module(scratch: Path) -> Path:
    folder = scratch / "module"
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text(
        f"module makeway.dev/kueue\n\ngo 1.26\n\nrequire {MODULE} v{VERSION}\n"
    )
    return folder


def _manifests() -> list[dict[str, Any]]:
    """What it is installed with."""
    with tempfile.TemporaryDirectory(prefix="makeway-kueue-") as scratch:
        go = find_go(Path(scratch))
        told = run([go, "mod", "download", "-json", f"{MODULE}@v{VERSION}"], _module(Path(scratch)))
    source = Path(json.loads(told)["Dir"]) / "config" / "default"
    printed = subprocess.run(
        [str(kubectl()), "kustomize", str(source)], check=True, capture_output=True, text=True
    ).stdout
    return list(yaml.safe_load_all(printed))


@contextlib.contextmanager
def running(plane: ControlPlane, config: str = "") -> Iterator[None]:
    """`config`: what its configuration says beyond the defaults, as YAML."""
    port, health = free_port(), free_port()
    definitions, hooks = _pointed_at(port, _certificates())
    _create(plane, definitions)
    _kubectl(plane, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    file = plane.folder / "kueue.yaml"
    file.write_text(json.dumps(_configuration(port, health, config)))
    with (plane.folder / "kueue.log").open("wb") as log:
        process = subprocess.Popen(
            [str(binary()), f"--config={file}"],
            env=environment() | {"KUBECONFIG": str(plane.kubeconfig)},
            stdout=log,
            stderr=log,
        )
    try:
        _await(plane, process, port, health)
        _create(plane, hooks)
        yield
    finally:
        process.kill()
        process.wait()


def _configuration(port: int, health: int, config: str) -> dict[str, Any]:
    said = yaml.safe_load(config) or {}
    gates = {"VisibilityOnDemand": False} | said.pop("featureGates", {})
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": port},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 300, "burst": 500},
        "integrations": {"frameworks": list(FRAMEWORKS)},
        "featureGates": gates,
        **said,
    }


def _certificates() -> str:
    """One for all, self-signed; returned as the bundle that the API server is to trust."""
    for folder in (SERVING_CERTIFICATES, METRICS_CERTIFICATES):
        folder.mkdir(parents=True, exist_ok=True)
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "tls.key", "-out", "tls.crt"]
    subprocess.run(
        [*command.split(), *more], cwd=SERVING_CERTIFICATES, check=True, capture_output=True
    )
    for name in ("tls.key", "tls.crt"):
        (METRICS_CERTIFICATES / name).write_bytes((SERVING_CERTIFICATES / name).read_bytes())
    return base64.b64encode((SERVING_CERTIFICATES / "tls.crt").read_bytes()).decode()


def _pointed_at(port: int, bundle: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Its definitions and its webhooks, called on loopback instead of through a Service."""
    definitions, hooks = [], []
    for obj in _manifests():
        if obj["kind"] == "CustomResourceDefinition":
            conversion = obj["spec"].get("conversion") or {}
            if conversion.get("strategy") == "Webhook":
                there = {"url": f"https://127.0.0.1:{port}/convert", "caBundle": bundle}
                conversion["webhook"]["clientConfig"] = there
            definitions.append(obj)
        elif obj["kind"] == "Namespace":
            definitions.append(obj)
        elif obj["kind"].endswith("WebhookConfiguration"):
            for hook in obj["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                url = f"https://127.0.0.1:{port}{path}"
                hook["clientConfig"] = {"url": url, "caBundle": bundle}
            hooks.append(obj)
    return definitions, hooks


def _await(plane: ControlPlane, process: subprocess.Popen[bytes], port: int, health: int) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{health}/readyz", timeout=2)
            with socket.create_connection(("127.0.0.1", port), 2):
                return
        time.sleep(0.1)
    last = "\n".join(plane.log_of("kueue").splitlines()[-8:])
    raise NotReadyError(f"kueue is not ready\n{last}")


def _create(plane: ControlPlane, objects: list[dict[str, Any]]) -> None:
    _kubectl(plane, "create", "-f", "-", given="\n---\n".join(map(json.dumps, objects)))


def _kubectl(plane: ControlPlane, *args: str, given: str = "") -> None:
    subprocess.run(
        [str(kubectl()), *args],
        env=os.environ | {"KUBECONFIG": str(plane.kubeconfig)},
        input=given,
        check=True,
        capture_output=True,
        text=True,
    )


if __name__ == "__main__":
    print(binary())
