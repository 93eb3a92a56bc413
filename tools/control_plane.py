"""A real control plane on loopback: etcd and kube-apiserver, with kube-controller-manager, and with
kube-scheduler where it is to be compared with.

Everything lives in one temporary folder: data, certificates, logs, a kubeconfig per identity, the
audit log. It is ready some five seconds after its start and leaves nothing behind. There is no
kubelet: nodes are pretended by makeway's own runner, which by hand runs as long as the rest.

    with ControlPlane.start() as plane:
        subprocess.run(["kubectl", "get", "nodes"], env={"KUBECONFIG": str(plane.kubeconfig)})

    python -m tools.control_plane            # until Ctrl-C; prints the kubeconfig to use
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from tools.kube_binaries import BinariesMissingError, binaries, tell_on_terminal

from makeway.client import Client, Resource, from_kubeconfig
from makeway.embedded.node.pretend import run_pretended

READY_WITHIN_S = 60.0
STOP_WITHIN_S = 10.0
ADMIN = "admin"
# One process stands in for all kubelets; it has what the role system:node gives, for every node.
KUBELETS = "pretended-nodes"

# Who did what, without bodies: the suite compares it with the shipped ClusterRole.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


# Ends with the folder, which is gone when all was stopped in order.
WATCH = """
while kill -0 "$1" 2>/dev/null && [ -d "$2" ]; do sleep 1; done
[ -d "$2" ] || exit 0
for pid in "$2"/*.pid; do kill -9 "$(cat "$pid")" 2>/dev/null; done
rm -rf "$2"
"""


class NotReadyError(Exception):
    """A part of the control plane did not start; the text ends with its log's last lines."""


class ControlPlane:
    """The running processes and where to reach them. `start` is the way to make one."""

    def __init__(
        self,
        folder: Path,
        programs: Path,
        without_admission: str = "",
        audit_log: Path | None = None,
    ) -> None:
        self.folder = folder
        self._without_admission = without_admission
        self.audit_log = audit_log or folder / "audit.log"
        self.port = free_port()
        self._etcd_ports = (free_port(), free_port())
        self._programs = programs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._watcher: subprocess.Popen[bytes] | None = None
        self._tokens = {ADMIN: secrets.token_hex(16), KUBELETS: secrets.token_hex(16)}
        self._ca = _write_certificates(folder)
        self._write_files()

    @classmethod
    @contextlib.contextmanager
    def start(
        cls,
        *,
        controllers: bool = True,
        scheduler: bool = False,
        folder: Path | None = None,
        without_admission: str = "",
        audit_log: Path | None = None,
    ) -> Iterator[ControlPlane]:
        """`without_admission` names admission plugins, with commas between them, that the API server is to leave out;
        an `audit_log` of one's own stays.
        """
        scratch = folder or Path(tempfile.mkdtemp(prefix="makeway-cluster-"))
        plane = cls(scratch, binaries(tell_on_terminal), without_admission, audit_log)
        plane._watch_over()
        try:
            plane.start_api()
            if controllers:
                plane.start_controllers()
            if scheduler:
                plane.start_scheduler()
            yield plane
        finally:
            plane.stop()
            if folder is None:
                shutil.rmtree(scratch, ignore_errors=True)

    # Where and as whom

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        return self.kubeconfig_of(ADMIN)

    def kubeconfig_of(self, user: str) -> Path:
        """The kubeconfig of an identity of the token file."""
        return self.kubeconfig_with(user, self._tokens[user])

    def kubeconfig_with(self, user: str, token: str) -> Path:
        """A kubeconfig for any token, for example that of a ServiceAccount."""
        path = self.folder / f"{user}.kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "local",
                    "cluster": {
                        "server": self.server,
                        "certificate-authority": str(self.folder / "ca.crt"),
                    },
                }
            ],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
            "current-context": "local",
        }
        path.write_text(json.dumps(config))
        return path

    # Starting and stopping

    def start_api(self) -> None:
        self.start_etcd()
        self.start_server()

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._etcd_ports)
        self._launch(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # a test's data need not survive a power cut
            "--log-level=warn",
        )
        self._await("etcd", f"{client}/health")

    def compact(self) -> None:
        """Let etcd forget everything but what is so now: whoever asks for an older version is told that it is gone."""
        url = f"http://127.0.0.1:{self._etcd_ports[0]}/v3"
        revision = self._ask_etcd(f"{url}/maintenance/status", {})["header"]["revision"]
        self._ask_etcd(f"{url}/kv/compaction", {"revision": revision, "physical": True})

    def _ask_etcd(self, url: str, body: dict[str, object]) -> dict[str, Any]:
        request = urllib.request.Request(url, data=json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def start_server(self) -> None:
        keys = self.folder / "service-accounts"
        self._launch(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_ports[0]}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={self.folder / 'server.crt'}",
            f"--tls-private-key-file={self.folder / 'server.key'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={keys}.pub",
            f"--service-account-signing-key-file={keys}.key",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none",
            f"--audit-policy-file={self.folder / 'audit-policy.json'}",
            f"--audit-log-path={self.audit_log}",
            "--allow-privileged=true",
            f"--disable-admission-plugins={self._without_admission}",
        )
        self._await("kube-apiserver", f"{self.server}/readyz")

    def start_controllers(self) -> None:
        self._launch(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            f"--service-account-private-key-file={self.folder / 'service-accounts.key'}",
            f"--root-ca-file={self.folder / 'ca.crt'}",
            # Pretended nodes send no heartbeat; whether they are ready is what their object says.
            "--node-monitor-grace-period=87600h",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
        )

    def start_scheduler(self) -> None:
        config = self.folder / "scheduler.json"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "leaderElection": {"leaderElect": False},
                    "clientConnection": {
                        "kubeconfig": str(self.kubeconfig),
                        "qps": 10_000,
                        "burst": 10_000,
                    },
                }
            )
        )
        self._launch(
            "kube-scheduler",
            f"--config={config}",
            f"--authentication-kubeconfig={self.kubeconfig}",
            f"--authorization-kubeconfig={self.kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
        )

    def stop_one(self, name: str, *, kill: bool = False) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        (self.folder / f"{name}.pid").unlink(missing_ok=True)
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop(self) -> None:
        # All of it is thrown away: nobody has to finish anything.
        for name in reversed(list(self._processes)):
            self.stop_one(name, kill=True)
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()

    def cpu_seconds(self, name: str) -> float:
        return cpu_seconds_of(self._processes[name].pid)

    def log_of(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _launch(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self._programs / name), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        self._processes[name] = process
        (self.folder / f"{name}.pid").write_text(str(process.pid))

    def _watch_over(self) -> None:
        """If we are killed, somebody still has to stop what we started."""
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", WATCH, "watch", str(os.getpid()), str(self.folder)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _await(self, name: str, url: str) -> None:
        """Until the address answers with 200; what it says otherwise is in the error."""
        deadline = time.monotonic() + READY_WITHIN_S
        said = "nothing"
        context = ssl.create_default_context(cadata=self._ca)
        request = urllib.request.Request(
            url, headers={"Authorization": f"Bearer {self._tokens[ADMIN]}"}
        )
        while time.monotonic() < deadline and self._processes[name].poll() is None:
            try:
                secure = context if url.startswith("https") else None
                with urllib.request.urlopen(request, timeout=5, context=secure):
                    return
            except urllib.error.HTTPError as error:
                said = str(error)
            except OSError as error:
                said = str(error)
            time.sleep(0.05)
        last = "\n".join(self.log_of(name).splitlines()[-8:])
        raise NotReadyError(f"{name} is not ready: {said}\n{last}")

    def _write_files(self) -> None:
        rows = [
            f'{self._tokens[ADMIN]},{ADMIN},{ADMIN},"system:masters"',
            f"{self._tokens[KUBELETS]},{KUBELETS},{KUBELETS}",
        ]
        (self.folder / "tokens.csv").write_text("\n".join(rows) + "\n")
        (self.folder / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))


def cpu_seconds_of(pid: int) -> float:
    """How much CPU time a process has used so far."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def kubelet_rights() -> dict[str, object]:
    """The binding that lets one identity pretend for every node."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": KUBELETS},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:node",
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": KUBELETS}],
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ---- certificates --------------------------------------------------------------------------------


def _write_certificates(folder: Path) -> str:
    """A CA, the server's certificate and the key that signs ServiceAccount tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, ca = _certificate("makeway test CA", None, None)
    key, server = _certificate("kube-apiserver", ca_key, ca)
    authority = ca.public_bytes(serialization.Encoding.PEM)
    (folder / "ca.crt").write_bytes(authority)
    (folder / "server.crt").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(_private(key))
    signing = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "service-accounts.key").write_bytes(_private(signing))
    (folder / "service-accounts.pub").write_bytes(
        signing.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return authority.decode()


def _private(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _certificate(
    name: str, ca_key: ec.EllipticCurvePrivateKey | None, ca: x509.Certificate | None
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A certificate for loopback, signed by the CA; without one it is a CA itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start = datetime.datetime.fromtimestamp(time.time(), datetime.UTC)  # noqa: TID251
    start -= datetime.timedelta(hours=1)
    signer = ca_key or key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.subject if ca else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=ca is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if ca is None:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    else:
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return key, builder.sign(signer, hashes.SHA256())


# ---- by hand -------------------------------------------------------------------------------------


async def _pretend_until_told(plane: ControlPlane) -> None:
    """Nodes with KWOK's annotation look as if they ran their pods, until Ctrl-C."""
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    async with Client(from_kubeconfig(plane.kubeconfig)) as admin:
        roles = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", False)
        await admin.create(roles, kubelet_rights())
    async with Client(from_kubeconfig(plane.kubeconfig_of(KUBELETS)), user_agent=KUBELETS) as nodes:
        pretending = asyncio.create_task(run_pretended(nodes))
        await told.wait()
        pretending.cancel()
        await asyncio.gather(pretending, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--scheduler", action="store_true", help="also start kube-scheduler")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        with ControlPlane.start(scheduler=options.scheduler) as plane:
            print(f"ready after {time.monotonic() - began:.1f} s", file=sys.stderr)
            print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
            asyncio.run(_pretend_until_told(plane))
    except (BinariesMissingError, NotReadyError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
