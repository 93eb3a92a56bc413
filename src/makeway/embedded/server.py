"""The embedded API as a running thing: a home folder, a port with TLS, a Unix socket, a kubeconfig.

    async with serving(home, port) as server:
        ...                       # answers on https://127.0.0.1:<server.port> and on
        <home>/api.sock

The home holds everything: `store.db` (objects), `ca.crt`, `server.crt`, `server.key`, `token`,
`kubeconfig`, `api.sock`. It is readable by its owner alone. Both ways in ask for the same token;
the socket saves our own components the cost of TLS. Signals are the caller's business.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import gc
import os
import secrets
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from makeway.control.clock import SystemClock
from makeway.embedded.api.certificates import Certificates, ensure_certificates, write_private
from makeway.errors import UserError

if TYPE_CHECKING:
    import uvicorn

    from makeway.embedded.api.app import App

HOST = "127.0.0.1"
_GRACE_S = 2  # how long open requests may take to end


@dataclass(slots=True)
class ApiServer:
    """A running API. `stop()` ends watches at once and returns when everything is on disk."""

    home: Path
    port: int
    token: str
    app: App
    _servers: list[uvicorn.Server]
    _tasks: list[asyncio.Task[None]]
    _lock: IO[str]

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        return self.home / "kubeconfig"

    @property
    def socket_path(self) -> Path:
        return self.home / "api.sock"

    async def stop(self) -> None:
        self.app.close()
        for server in self._servers:
            server.should_exit = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self.app.store.stop)
        self.socket_path.unlink(missing_ok=True)
        self._lock.close()


async def serve(home: Path, port: int = 0) -> ApiServer:
    """Start, and return when requests are answered.

    Port 0 takes the home's port, or a free one, which the home then keeps.
    """
    _private_folder(home)
    with contextlib.ExitStack() as undo:
        lock = undo.enter_context(_lock(home))
        listener = undo.enter_context(_listen(home, port))
        server = await _serve(home, listener, lock)
        undo.pop_all()
    return server


async def _serve(home: Path, listener: socket.socket, lock: IO[str]) -> ApiServer:
    from makeway.embedded.api.app import App
    from makeway.embedded.api.bootstrap import ensure_first_objects
    from makeway.embedded.store import Store
    from makeway.kinds.serving import registry

    clock = SystemClock()
    port = listener.getsockname()[1]
    certificates = ensure_certificates(home, clock.now())
    token = _token(home)
    store = Store(home / "store.db")
    store.start()
    app = App(store, registry.build(), token, clock.now, home)
    ensure_first_objects(app.objects, clock.now())
    await store.committed(store.version)
    _tune_garbage_collector()
    write_private(home / "kubeconfig", _kubeconfig(home, port, token, certificates))
    servers, tasks = await _start(app, home, listener, certificates)
    return ApiServer(home, port, token, app, servers, tasks, lock)


@contextlib.asynccontextmanager
async def serving(home: Path, port: int = 0) -> AsyncIterator[ApiServer]:
    server = await serve(home, port)
    try:
        yield server
    finally:
        await server.stop()


def _private_folder(home: Path) -> None:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.chmod(0o700)


def _lock(home: Path) -> IO[str]:
    """Objects are kept in memory, so one home has one server; a second one would not see its writes."""
    path = home / "store.lock"
    path.touch(mode=0o600)
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise UserError(
            f"The home {home} is already in use by another makeway.",
            hint="Stop it with makeway down, or name another home with --home.",
        ) from error
    return lock


def _listen(home: Path, port: int) -> socket.socket:
    """On the port that is asked for; else on the home's own, or a free one where that is taken."""
    kept = home / "port"
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if port or not _bound(listener, _kept_port(kept)):
            listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise UserError(
            f"Port {port} cannot be used: {error.strerror}.",
            hint="Name another one with --port, or stop what uses it.",
        ) from error
    write_private(kept, str(listener.getsockname()[1]).encode())
    return listener


def _kept_port(path: Path) -> int:
    text = path.read_text().strip() if path.exists() else ""
    return int(text) if text.isdigit() else 0


def _bound(listener: socket.socket, port: int) -> bool:
    try:
        listener.bind((HOST, port))
    except OSError:
        return False
    return True


def _token(home: Path) -> str:
    path = home / "token"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32).encode())
    return path.read_text().strip()


def _kubeconfig(home: Path, port: int, token: str, certificates: Certificates) -> bytes:
    """Written by hand: a YAML library takes longer to import than the server takes to start."""
    authority = base64.b64encode(certificates.authority.read_bytes()).decode()
    return f"""\
apiVersion: v1
kind: Config
current-context: makeway
clusters:
- name: makeway
  cluster:
    server: https://{HOST}:{port}
    certificate-authority-data: {authority}
contexts:
- name: makeway
  context:
    cluster: makeway
    user: makeway
    namespace: default
users:
- name: makeway
  user:
    token: {token}
""".encode()


def _tune_garbage_collector() -> None:
    """Cached objects are bytes in structs without cycles: full collections find nothing and take
    long.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def _start(
    app: App, home: Path, listener: socket.socket, certificates: Certificates
) -> tuple[list[uvicorn.Server], list[asyncio.Task[None]]]:
    local = _local_listener(home / "api.sock")
    secured = {"ssl_certfile": str(certificates.certificate), "ssl_keyfile": str(certificates.key)}
    servers = [_server(app, secured), _server(app, {})]
    tasks = [
        asyncio.create_task(server.serve(sockets=[sock]), name=f"api-{index}")
        for index, (server, sock) in enumerate(zip(servers, (listener, local), strict=True))
    ]
    for server, task in zip(servers, tasks, strict=True):
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the API server ended while starting")
            await asyncio.sleep(0.001)
    return servers, tasks


def _local_listener(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        local.bind(str(path))
    except OSError as error:
        local.close()
        raise UserError(
            f"The socket {path} cannot be made: {error}.",
            hint="Name a home with a shorter path with --home.",
        ) from error
    finally:
        os.umask(before)
    return local


def _server(app: App, more: dict[str, Any]) -> uvicorn.Server:
    import uvicorn

    from makeway.embedded.api.upgrade import Http

    class QuietServer(uvicorn.Server):
        """Leaves signals to whoever runs us."""

        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            yield

    config = uvicorn.Config(
        app,
        http=Http,  # httptools, and SPDY for older kubectls
        ws="websockets-sansio",  # exec, attach and port-forward
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nothing stands before us
        timeout_graceful_shutdown=_GRACE_S,
        timeout_keep_alive=75,
        backlog=2048,
        **more,
    )
    return QuietServer(config)
