from __future__ import annotations

import base64
import json
import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from makeway.client import from_kubeconfig, in_cluster
from makeway.errors import UserError


class HandClock:
    def __init__(self) -> None:
        self.seconds = 1_000_000_000.0

    def now(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def write(path: Path, *, cluster: dict[str, Any], user: dict[str, Any], name: str = "c") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": name,
                "contexts": [
                    {"name": name, "context": {"cluster": name, "user": name, "namespace": "n"}}
                ],
                "clusters": [{"name": name, "cluster": cluster}],
                "users": [{"name": name, "user": user}],
            }
        )
    )
    return path


def plugin(folder: Path, body: str, version: str = "v1") -> dict[str, Any]:
    """An exec plugin that counts its runs and prints `body` with COUNT replaced."""
    script = folder / "plugin.py"
    script.write_text(
        "import os, pathlib\n"
        "runs = pathlib.Path(__file__).with_name('runs')\n"
        "runs.write_text(runs.read_text() + '.' if runs.exists() else '.')\n"
        "pathlib.Path(__file__).with_name('info').write_text(os.environ['KUBERNETES_EXEC_INFO'])\n"
        f"print({body!r}.replace('COUNT', str(len(runs.read_text()))))\n"
    )
    return {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "command": sys.executable,
        "args": [str(script)],
        "env": [{"name": "EXTRA", "value": "1"}],
        "provideClusterInfo": True,
    }


def certificate() -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return (
        cert.public_bytes(pem).decode(),
        key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )


async def test_token_and_places(tmp_path: Path) -> None:
    file = write(
        tmp_path / "config",
        cluster={
            "server": "http://one/",
            "tls-server-name": "other",
            "proxy-url": "http://proxy:3128",
        },
        user={"token": "t"},
    )
    found = from_kubeconfig(file)
    assert (found.server, found.url, found.unix_path) == ("http://one", "http://one", "")
    assert (found.server_name, found.proxy) == ("other", "http://proxy:3128")
    assert found.namespace == "n"
    assert (await found.credentials.identity()).token == "t"


async def test_unix_server(tmp_path: Path) -> None:
    file = write(tmp_path / "config", cluster={"server": "unix:///tmp/x.sock"}, user={"token": "t"})
    found = from_kubeconfig(file)
    assert (found.unix_path, found.url) == ("/tmp/x.sock", "http://localhost")


async def test_the_first_file_of_the_list_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = write(tmp_path / "1", cluster={"server": "http://one"}, user={}, name="x")
    two = write(tmp_path / "2", cluster={"server": "http://two"}, user={}, name="x")
    three = write(tmp_path / "3", cluster={"server": "http://three"}, user={}, name="y")
    absent = tmp_path / "absent"
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, [absent, one, two, three])))
    assert from_kubeconfig().server == "http://one"
    assert from_kubeconfig(context="y").server == "http://three"


def test_unknown_names_are_answered_with_the_known_ones(tmp_path: Path) -> None:
    file = write(tmp_path / "config", cluster={"server": "http://one"}, user={}, name="prod")
    with pytest.raises(UserError, match=r'no context called "prd"\. It has: prod\.'):
        from_kubeconfig(file, context="prd")
    with pytest.raises(UserError, match="no such kubeconfig"):
        from_kubeconfig(tmp_path / "absent")
    file.write_text("- a list")
    with pytest.raises(UserError, match="expected a mapping"):
        from_kubeconfig(file)


async def test_token_file_is_stripped_and_read_again(tmp_path: Path, clock: HandClock) -> None:
    token = tmp_path / "secrets" / "token"
    token.parent.mkdir()
    token.write_text("first\n")
    file = write(tmp_path / "config", cluster={}, user={"tokenFile": "secrets/token"})
    credentials = from_kubeconfig(file, clock=clock).credentials
    assert (await credentials.identity()).token == "first"
    token.write_text("second\n")
    assert (await credentials.identity()).token == "first"
    assert (await credentials.identity(renew=True)).token == "second"
    token.write_text("third\n")
    clock.seconds += 61
    assert (await credentials.identity()).token == "third"


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_exec_plugin_runs_when_needed(tmp_path: Path, clock: HandClock, version: str) -> None:
    printed = {"status": {"token": "tCOUNT", "expirationTimestamp": "2001-09-09T02:46:40Z"}}
    spec = plugin(tmp_path, json.dumps(printed), version)
    file = write(tmp_path / "config", cluster={"server": "https://one"}, user={"exec": spec})
    credentials = from_kubeconfig(file, clock=clock).credentials
    assert (await credentials.identity()).token == "t1"
    assert (await credentials.identity()).token == "t1"
    assert (await credentials.identity(renew=True)).token == "t2"
    clock.seconds += 3595  # within the margin of its expiry
    assert (await credentials.identity()).token == "t3"
    info = json.loads((tmp_path / "info").read_text())
    assert info["apiVersion"] == f"client.authentication.k8s.io/{version}"
    assert info["spec"] == {"interactive": False, "cluster": {"server": "https://one"}}


async def test_exec_plugin_troubles_are_told(tmp_path: Path) -> None:
    missing = {"command": "no-such-plugin", "installHint": "Install it from example.org."}
    file = write(tmp_path / "config", cluster={}, user={"exec": missing})
    with pytest.raises(UserError, match=r"no-such-plugin cannot be started.*Install it from"):
        await from_kubeconfig(file).credentials.identity()
    failing = {"command": "sh", "args": ["-c", "echo expired session >&2; exit 3"]}
    file = write(tmp_path / "config", cluster={}, user={"exec": failing})
    with pytest.raises(UserError, match="exit code 3: expired session"):
        await from_kubeconfig(file).credentials.identity()
    file = write(tmp_path / "config", cluster={}, user={"exec": {"command": "true"}})
    with pytest.raises(UserError, match="did not print an ExecCredential"):
        await from_kubeconfig(file).credentials.identity()


async def test_certificates_from_files_and_data(tmp_path: Path) -> None:
    pem, key = certificate()
    (tmp_path / "ca.crt").write_text(pem)
    (tmp_path / "client.crt").write_text(pem)
    encoded = base64.b64encode(key.encode()).decode()
    file = write(
        tmp_path / "config",
        cluster={"server": "https://one", "certificate-authority": "ca.crt"},
        user={"client-certificate": "client.crt", "client-key-data": encoded},
    )
    connection = from_kubeconfig(file)
    identity = await connection.credentials.identity()
    assert (identity.certificate, identity.key) == (pem, key)
    context = connection.tls(identity)
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1
    assert connection.tls(identity) is context


async def test_skipping_verification_is_explicit(tmp_path: Path) -> None:
    cluster = {"server": "https://one", "insecure-skip-tls-verify": True}
    connection = from_kubeconfig(write(tmp_path / "config", cluster=cluster, user={}))
    context = connection.tls(await connection.credentials.identity())
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


async def test_in_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "token").write_text("sa\n")
    (tmp_path / "ca.crt").write_text(certificate()[0])
    (tmp_path / "namespace").write_text("system")
    found = in_cluster(folder=tmp_path)
    assert (found.server, found.namespace) == ("https://[fd00::1]:6443", "system")
    assert (await found.credentials.identity()).token == "sa"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(UserError, match="not running in a cluster"):
        in_cluster(folder=tmp_path)
