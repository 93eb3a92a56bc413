"""The home: one folder that holds everything of one embedded makeway (database, keys, logs, pods, kubeconfig)."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from makeway.errors import UserError

DEFAULT_HOME = "~/.makeway"


class Home:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.kubeconfig = path / "kubeconfig"
        self.log = path / "makeway.log"
        self.socket = path / "api.sock"
        self.options = path / "options.json"
        self._pid = path / "pid"
        self._lock = path / "lock"

    @classmethod
    def chosen(cls, option: Path | None) -> Home:
        """What the command line names, else MAKEWAY_HOME, else the default."""
        text = str(option) if option is not None else os.environ.get("MAKEWAY_HOME") or DEFAULT_HOME
        return cls(Path(text).expanduser().absolute())

    def prepare(self) -> None:
        """Exists, and nobody else can look inside."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise UserError(
                f"cannot use {self.path} as home: {error.strerror}.",
                hint="Name another folder with --home or MAKEWAY_HOME.",
            ) from error
        # A Unix socket's path is limited to about 100 bytes by the kernel.
        if len(os.fsencode(self.socket)) > 100:
            raise UserError(
                f"the path of the home is too long for a Unix socket ({self.path}).",
                hint="Use a home with a path of less than 90 characters.",
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Held while makeway runs, so that there is one at a time; the kernel lets go of it whatever happens."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(f"makeway already runs in {self.path}.") from error
            self._pid.write_text(f"{os.getpid()}\n")
            yield
            self._pid.unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def running_pid(self) -> int | None:
        """The process that holds the lock; None when makeway is stopped."""
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with contextlib.suppress(OSError, ValueError):
                return int(self._pid.read_text())
            return 0  # starting: locked, and its number not written yet
        finally:
            os.close(descriptor)
        return None
