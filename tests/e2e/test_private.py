"""Nobody but its owner: without the token no path answers, and a second user of the machine reads nothing of the home."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPSConnection

import pytest
import yaml

from tests.e2e.cli import Makeway, machine_of_its_own

NOBODY = 65534
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
POD = """
apiVersion: v1
kind: Pod
metadata: {name: secretive}
spec:
  restartPolicy: Never
  containers: [{name: c, image: x, command: [sh, -c, "echo my password; sleep 100"]}]
"""
# Tries to open everything, and prints what it could.
READER = """
import os, socket, sys
os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
for path in {paths!r}:
    try:
        if path.endswith(".sock"):
            with socket.socket(socket.AF_UNIX) as door:
                door.connect(path)
        else:
            os.listdir(path) if os.path.isdir(path) else open(path, "rb").close()
    except OSError as error:
        if not isinstance(error, (PermissionError, FileNotFoundError, ConnectionRefusedError)):
            print(path, error)
        continue
    print(path)
"""


@pytest.fixture(scope="module")
def makeway() -> Iterator[Makeway]:
    with machine_of_its_own() as found:
        (found.home / "pod.yaml").write_text(POD)
        found("apply", "-f", str(found.home / "pod.yaml"))
        found.until(
            "it runs", lambda: [p for p in found.home.glob("logs/*/*.log") if p.stat().st_size]
        )
        yield found


def test_the_home_is_closed_to_others(makeway: Makeway) -> None:
    assert stat.S_IMODE(makeway.home.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a second user")
def test_a_second_user_can_read_nothing_in_the_home(makeway: Makeway) -> None:
    inside = [str(path) for path in sorted(makeway.home.rglob("*"))]
    assert any(path.endswith("token") for path in inside)
    assert any("/logs/" in path for path in inside)
    program = READER.format(nobody=NOBODY, paths=[str(makeway.home), *inside])

    seen = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/"
    )

    assert seen.stdout == ""


def test_every_path_and_method_answers_401_without_the_token(makeway: Makeway) -> None:
    server = yaml.safe_load((makeway.home / "kubeconfig").read_text())["clusters"][0]["cluster"]
    host, port = server["server"].removeprefix("https://").split(":")
    trust = ssl.create_default_context(cafile=None)
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    connection = HTTPSConnection(host, int(port), context=trust, timeout=20)
    answered: dict[int, set[str]] = {}
    for path in _paths(makeway):
        for method in METHODS:
            connection.request(method, path, body=b"{}" if method in ("POST", "PUT") else None)
            answer = connection.getresponse()
            answer.read()
            answered.setdefault(answer.status, set()).add(f"{method} {path}")
    connection.close()
    assert set(answered) == {401}, {code: sorted(on)[:5] for code, on in answered.items()}


def _paths(makeway: Makeway) -> list[str]:
    """All kinds that are served, their lists and one object each, and what else there is or is not."""
    found = [
        "/",
        "/version",
        "/healthz",
        "/readyz",
        "/api",
        "/apis",
        "/openapi/v3",
        "/metrics",
        "/no",
    ]
    found += ["/apis/kueue.x-k8s.io", "/api/v1/namespaces/default/pods/secretive/log"]
    for kind in ("pods", "secrets", "nodes", "configmaps", "namespaces", "events"):
        found += [
            f"/api/v1/{kind}",
            f"/api/v1/namespaces/default/{kind}/x",
            f"/api/v1/watch/{kind}",
        ]
    for group in (
        "batch/v1/jobs",
        "kueue.x-k8s.io/v1beta2/workloads",
        "makeway.dev/v1alpha1/preemptions",
    ):
        found += [f"/apis/{group}", f"/apis/{group}?watch=true"]
    return found


def test_only_this_machine_is_listened_to(makeway: Makeway) -> None:
    server = yaml.safe_load((makeway.home / "kubeconfig").read_text())["clusters"][0]["cluster"]
    host, port = server["server"].removeprefix("https://").split(":")
    assert host in ("127.0.0.1", "localhost")
    others = {
        str(found[4][0])
        for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        if not str(found[4][0]).startswith("127.")
    }
    for address in others:
        with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
            socket.create_connection((address, int(port)), timeout=2).close()
