"""Who we are and where the API server is.

A `Connection` holds everything a request needs: the server, how to trust it, and `Credentials`
that answer "what do I show now?" whenever they are asked, because tokens rotate: a token file is
read again each minute, an exec plugin runs again when what it gave expires, and both at once after
a 401.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import tempfile
from pathlib import Path
from typing import Any, Protocol

import msgspec
import yaml

from makeway.control.clock import SystemClock, parse_timestamp
from makeway.errors import UserError

TOKEN_FILE_IS_FRESH_S = 60.0
# A credential that ends within this time is renewed now: the request has to travel.
EXPIRY_MARGIN_S = 10.0
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Clock(Protocol):
    def now(self) -> float: ...


class Identity(msgspec.Struct, frozen=True):
    """What a request shows: a bearer token, a client certificate (PEM), both or neither."""

    token: str = ""
    certificate: str = ""
    key: str = ""


class Credentials(Protocol):
    async def identity(self, *, renew: bool = False) -> Identity:
        """What to show now; `renew` after the server refused what was shown."""


class Fixed:
    """A token or certificate that was written down and does not change."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    async def identity(self, *, renew: bool = False) -> Identity:
        return self._identity


class TokenFile:
    """A token that somebody else rotates in a file."""

    def __init__(self, path: Path, base: Identity, clock: Clock) -> None:
        self._path = path
        self._base = base
        self._clock = clock
        self._read_at = float("-inf")
        self._current = base

    async def identity(self, *, renew: bool = False) -> Identity:
        now = self._clock.now()
        if renew or now - self._read_at >= TOKEN_FILE_IS_FRESH_S:
            # Files written by people end with a newline, which no HTTP header may hold.
            token = _read(self._path, "the token file").strip()
            self._current = msgspec.structs.replace(self._base, token=token)
            self._read_at = now
        return self._current


class ExecPlugin:
    """A program that prints an ExecCredential (`aws eks get-token` and its like)."""

    def __init__(
        self, spec: dict[str, Any], cluster: dict[str, Any], folder: Path, clock: Clock
    ) -> None:
        self._spec = spec
        self._cluster = cluster
        self._folder = folder
        self._clock = clock
        self._current: Identity | None = None
        self._expires = float("inf")
        self._lock = asyncio.Lock()

    async def identity(self, *, renew: bool = False) -> Identity:
        refused = self._current if renew else None
        async with self._lock:
            # Many requests may get a 401 together: the first one renews for all of them.
            stale = self._clock.now() >= self._expires - EXPIRY_MARGIN_S
            if self._current is None or stale or self._current is refused:
                self._current = await self._run()
            return self._current

    async def _run(self) -> Identity:
        api_version = self._spec.get("apiVersion", "client.authentication.k8s.io/v1")
        info: dict[str, Any] = {
            "apiVersion": api_version,
            "kind": "ExecCredential",
            "spec": {"interactive": False},
        }
        if self._spec.get("provideClusterInfo"):
            info["spec"]["cluster"] = self._cluster
        extra = {entry["name"]: entry["value"] for entry in self._spec.get("env") or []}
        environment = (
            os.environ | extra | {"KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
        )
        printed = await self._call(environment)
        try:
            status = msgspec.json.decode(printed)["status"]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise UserError(
                f"the credential plugin {self._command} did not print an ExecCredential",
                hint="Run it by hand to see what it prints.",
            ) from error
        expires = status.get("expirationTimestamp")
        self._expires = parse_timestamp(expires) if expires else float("inf")
        return Identity(
            token=status.get("token", ""),
            certificate=status.get("clientCertificateData", ""),
            key=status.get("clientKeyData", ""),
        )

    @property
    def _command(self) -> str:
        command = str(self._spec.get("command", ""))
        # As kubectl does: a path is relative to the kubeconfig, a bare name is looked up in PATH.
        return str(self._folder / command) if "/" in command else command

    async def _call(self, environment: dict[str, str]) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                self._command,
                *(self._spec.get("args") or []),
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise UserError(
                f"the credential plugin {self._command} cannot be started: {error.strerror}.",
                where="kubeconfig",
                hint=str(self._spec.get("installHint") or ""),
            ) from error
        printed, complaint = await process.communicate()
        if process.returncode:
            said = complaint.decode(errors="replace").strip()[-500:]
            raise UserError(
                f"the credential plugin {self._command} ended with exit code"
                f" {process.returncode}: {said}",
                where="kubeconfig",
            )
        return printed


class Connection:
    """One API server as one user sees it."""

    def __init__(
        self,
        server: str,
        *,
        credentials: Credentials | None = None,
        ca: str = "",
        verify: bool = True,
        server_name: str = "",
        proxy: str = "",
        namespace: str = "default",
    ) -> None:
        self.server = server.rstrip("/")
        self.credentials: Credentials = credentials or Fixed(Identity())
        self.server_name = server_name
        self.proxy = proxy
        self.namespace = namespace
        self._ca = ca
        self._verify = verify
        self._contexts: dict[tuple[str, str], ssl.SSLContext] = {}

    @property
    def unix_path(self) -> str:
        """The socket's path for `unix://PATH`, else empty."""
        return self.server.removeprefix("unix://") if self.server.startswith("unix://") else ""

    @property
    def url(self) -> str:
        return "http://localhost" if self.unix_path else self.server

    def tls(self, identity: Identity) -> ssl.SSLContext | None:
        """The context to talk with, kept per certificate so that connections are shared."""
        if not self.server.startswith("https://"):
            return None
        who = (identity.certificate, identity.key)
        if who not in self._contexts:
            # A rotated certificate replaces the old one: nobody asks for the old context again.
            self._contexts = {who: self._context(identity)}
        return self._contexts[who]

    def _context(self, identity: Identity) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self._ca or None)
        if not self._verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if identity.certificate:
            _load_certificate(context, identity)
        return context


def _load_certificate(context: ssl.SSLContext, identity: Identity) -> None:
    # The ssl module reads certificates from files only.
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        certificate.write_text(identity.certificate)
        key.touch(mode=0o600)
        key.write_text(identity.key)
        context.load_cert_chain(certificate, key)


def embedded(socket: Path | str, token: str = "") -> Connection:
    """The embedded API by its Unix socket."""
    return Connection(f"unix://{socket}", credentials=Fixed(Identity(token=token)))


def in_cluster(clock: Clock | None = None, folder: Path = SERVICE_ACCOUNT) -> Connection:
    """The API server as a pod's service account sees it."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = folder / "token"
    if not host or not token.exists():
        raise UserError(
            "not running in a cluster: there is no service account here.",
            hint="Name a kubeconfig with KUBECONFIG.",
        )
    namespace = folder / "namespace"
    return Connection(
        f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        credentials=TokenFile(token, Identity(), clock or SystemClock()),
        ca=_read(folder / "ca.crt", "the cluster's certificate"),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )


def from_kubeconfig(
    path: Path | str = "", *, context: str = "", clock: Clock | None = None
) -> Connection:
    """The connection that kubectl would use.

    PATH, else $KUBECONFIG, else ~/.kube/config, else the cluster we run in.
    """
    files = _files(path)
    if not files:
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            return in_cluster(clock)
        raise UserError(
            "no kubeconfig found.",
            where=str(path) or os.environ.get("KUBECONFIG") or "~/.kube/config",
            hint="Name one with KUBECONFIG, or start an API on this machine: makeway up",
        )
    config = _merge(files)
    name = context or str(config.get("current-context") or "")
    chosen = _named(config, "contexts", "context", name)
    cluster = _named(config, "clusters", "cluster", str(chosen.get("cluster") or ""))
    user = _named(config, "users", "user", str(chosen["user"])) if chosen.get("user") else {}
    return Connection(
        str(cluster.get("server") or "http://localhost:8080"),
        credentials=_credentials(user, cluster, clock or SystemClock()),
        ca=_data_or_file(cluster, "certificate-authority"),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        server_name=str(cluster.get("tls-server-name") or ""),
        proxy=str(cluster.get("proxy-url") or ""),
        namespace=str(chosen.get("namespace") or "default"),
    )


def _files(path: Path | str) -> list[Path]:
    if path:
        named = Path(path).expanduser()
        if not named.exists():
            raise UserError("no such kubeconfig.", where=str(path))
        return [named]
    listed = os.environ.get("KUBECONFIG", "")
    candidates = [Path(part) for part in listed.split(os.pathsep) if part]
    if not listed:
        candidates = [Path("~/.kube/config").expanduser()]
    return [file for file in candidates if file.exists()]


def _merge(files: list[Path]) -> dict[str, Any]:
    """The first file that names a thing wins, as in kubectl."""
    merged: dict[str, Any] = {"contexts": {}, "clusters": {}, "users": {}}
    for file in files:
        loaded = _parse(file)
        if loaded.get("current-context"):
            merged.setdefault("current-context", loaded["current-context"])
        for section, key in (("contexts", "context"), ("clusters", "cluster"), ("users", "user")):
            for entry in loaded.get(section) or []:
                body = dict(entry.get(key) or {}, __folder__=file.resolve().parent)
                merged[section].setdefault(entry["name"], body)
    return merged


def _parse(file: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(file.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"cannot be read: {error}", where=str(file)) from error
    if not isinstance(loaded, dict):
        raise UserError("is not a kubeconfig: expected a mapping.", where=str(file))
    return loaded


def _named(config: dict[str, Any], section: str, kind: str, name: str) -> dict[str, Any]:
    found = config[section].get(name)
    if found is None:
        known = ", ".join(sorted(config[section])) or "none"
        raise UserError(f'no {kind} called "{name}".', where="kubeconfig", hint=f"It has: {known}.")
    return dict(found)


def _credentials(user: dict[str, Any], cluster: dict[str, Any], clock: Clock) -> Credentials:
    base = Identity(
        token=str(user.get("token") or ""),
        certificate=_data_or_file(user, "client-certificate"),
        key=_data_or_file(user, "client-key"),
    )
    if user.get("exec"):
        return ExecPlugin(user["exec"], _cluster_info(cluster), user["__folder__"], clock)
    if user.get("tokenFile") and not base.token:
        return TokenFile(user["__folder__"] / str(user["tokenFile"]), base, clock)
    return Fixed(base)


def _cluster_info(cluster: dict[str, Any]) -> dict[str, Any]:
    info = {key: value for key, value in cluster.items() if key in _CLUSTER_INFO}
    ca = _data_or_file(cluster, "certificate-authority")
    if ca:
        info["certificate-authority-data"] = base64.b64encode(ca.encode()).decode()
    return info


_CLUSTER_INFO = {"server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url"}


def _data_or_file(section: dict[str, Any], key: str) -> str:
    """`KEY-data` in base64, or the file named by `KEY`, relative to its kubeconfig."""
    data = section.get(f"{key}-data")
    if data:
        return base64.b64decode(data).decode()
    named = section.get(key)
    return _read(section["__folder__"] / str(named), key) if named else ""


def _read(file: Path, what: str) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise UserError(f"{what} cannot be read: {error.strerror}.", where=str(file)) from error
