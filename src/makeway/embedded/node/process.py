"""One run of one container: started through the shim, found again after a restart, stopped.

Everything that must survive the server is in the run's folder (see `shim`). A run is over when its
shim is: on Linux a pidfd tells so at once, elsewhere it is looked at now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

SHIM = Path(__file__).with_name("shim.py")
POLL_S = 0.1
TOLD_WITHIN_S = 5.0
LOST_EXIT_CODE = 137


class Spec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the shim is to run."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    log: str
    uid: int | None = None
    gid: int | None = None
    cgroup: str = ""
    log_limit_bytes: int = 10 << 20


class Started(msgspec.Struct, frozen=True):
    pid: int
    pid_born: str
    shim: int
    shim_born: str
    boot: str
    started_at: float


class Exit(msgspec.Struct, frozen=True):
    exit_code: int
    finished_at: float
    message: str = ""
    # The shim died before it could tell.
    lost: bool = False


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._starting: asyncio.Future[None] | None = None

    @property
    def started(self) -> Started | None:
        content = _read(self.folder / "started.json")
        return None if content is None else msgspec.json.decode(content, type=Started)

    @property
    def exit(self) -> Exit | None:
        content = _read(self.folder / "exit.json")
        return None if content is None else msgspec.json.decode(content, type=Exit)

    async def start(self, spec: Spec) -> None:
        """Returns when the process runs, or when it is known that it cannot.

        Whoever is cancelled meanwhile leaves a start that goes on; `settled()` waits for it.
        """
        self._starting = asyncio.ensure_future(self._start(spec))
        await asyncio.shield(self._starting)

    async def settled(self) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})

    @property
    def untouched(self) -> bool:
        """Asked for, but neither started nor ended: the server went down in between."""
        return self.started is None and self.exit is None

    @property
    def _claim(self) -> Path | None:
        """The file that whoever decides about this start makes first: its shim, or a server that gives it up.

        It stands beside the runs, under a name that no later start has.
        """
        name = _read(self.folder / "claim")
        return None if name is None else self.folder.parent / ".claims" / name.decode()

    def give_up(self) -> bool:
        """Whether a start that the server did not see the end of never happens, so that it may be done anew.

        Where its shim was first, this waits the moment until the shim has told.
        """
        claim = self._claim
        if claim is None:
            return True
        try:
            claim.touch(exist_ok=False)
        except FileExistsError:
            deadline = time.monotonic() + TOLD_WITHIN_S
            while self.untouched and time.monotonic() < deadline:
                time.sleep(0.005)
            if self.untouched:
                self._note_exit(Exit(LOST_EXIT_CODE, 0.0, "its start was lost", lost=True))
            return False
        return True

    async def _start(self, spec: Spec) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "spec.json").write_bytes(msgspec.json.encode(spec))
        (self.folder.parent / ".claims").mkdir(exist_ok=True)
        (self.folder / "claim").write_text(f"claim-{uuid.uuid4().hex}")
        # A file, not a pipe: a pipe would stay open as long as anything holds its other end.
        with (self.folder / "shim.err").open("wb") as complaints:
            # -I -S: no user's environment, no site packages; that is what makes it quick.
            launcher = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(SHIM),
                str(self.folder),
                str(self._claim),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=complaints,
            )
            await launcher.wait()
        if launcher.returncode or self.untouched:
            said = (self.folder / "shim.err").read_text(errors="replace").strip()
            why = said.rpartition("\n")[2] or f"exit code {launcher.returncode}"
            self._note_exit(Exit(128, 0.0, f"the process could not be started: {why}"))

    @property
    def alive(self) -> bool:
        """Whether the shim of this very run is there, not another process of its number."""
        started = self.started
        return started is not None and self.exit is None and _same(started)

    async def wait(self) -> Exit:
        """The end, however it comes."""
        while self.alive:
            started = self.started
            assert started is not None
            await _process_end(started.shim)
        ended = self.exit
        if ended is None:
            ended = self._lost()
        return ended

    def ask_to_stop(self) -> None:
        """SIGTERM to the main process; the shim tells the rest of its group when that has ended."""
        (self.folder / "stopping").touch()
        self._signal(os.kill, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the whole process group."""
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "stopping").unlink()
        self._signal(os.killpg, signal.SIGKILL)

    def _signal(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        started = self.started
        # A number may have passed on to somebody else: only this run's process is meant.
        if started is None or not (_same(started) or _born(started.pid) == started.pid_born):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(started.pid, number)

    def _lost(self) -> Exit:
        """The shim was killed: its process has nobody to write to and is ended too."""
        self._signal(os.killpg, signal.SIGKILL)
        ended = Exit(
            LOST_EXIT_CODE,
            _modified(self.folder / "started.json"),
            "The process that watched over this container was lost, and its exit code with it",
            lost=True,
        )
        self._note_exit(ended)
        return ended

    def _note_exit(self, ended: Exit) -> None:
        new = self.folder / "exit.json.new"
        new.write_bytes(msgspec.json.encode(ended))
        new.replace(self.folder / "exit.json")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _same(started: Started) -> bool:
    if started.boot and started.boot != _boot():
        return False
    if not started.shim_born:
        # No /proc: the number is all there is to go by.
        with contextlib.suppress(OSError):
            os.kill(started.shim, 0)
            return True
        return False
    return _born(started.shim) == started.shim_born


def _born(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # A zombie has ended, whatever its parent does.
    return "" if fields[0] == "Z" else fields[19]


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


async def _process_end(pid: int) -> None:
    if not hasattr(os, "pidfd_open"):
        await asyncio.sleep(POLL_S)
        return
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    try:
        loop.add_reader(descriptor, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
