"""`kubectl exec`, `cp` and `attach`: numbered channels to the client, and a process beside the container's own.

Pods of this machine are plain processes, so a command runs with the variables, the directory and the user that the container's
process has, as `pods/<uid>/containers/<name>/<run>/spec.json` in the home remembers them. Attaching shows what is logged from now on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import pty
import shutil
import signal
import struct
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from makeway.embedded.api.channels import (
    CLOSE,
    RESIZE,
    STDERR,
    STDIN,
    STDOUT,
    Asked,
    Channels,
    open_channels,
    read_question,
)
from makeway.embedded.api.http import Receive, Scope, Send, encode
from makeway.embedded.api.logs import chosen_container, log_path, read_more, text_of
from makeway.kinds.serving.columns import at
from makeway.kinds.serving.refusal import Obj, Refusal, bad_request

CHUNK: Final = 32 * 1024
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
_PARENT_DEATH_SIGNAL: Final = 1  # of prctl(2)
POLL_S: Final = 0.1


class TerminalSize(msgspec.Struct, frozen=True):
    rows: int = msgspec.field(name="Height")
    columns: int = msgspec.field(name="Width")


class Where(msgspec.Struct, frozen=True):
    """What the container's own process was started with; other fields are not asked for."""

    env: dict[str, str]
    cwd: str
    uid: int | None = None
    gid: int | None = None


def where_it_runs(home: Path, pod: Obj, container: str) -> Where:
    """Of the newest run of a container that is alive."""
    name = pod["metadata"]["name"]
    for status in at(pod, "status", "containerStatuses") or []:
        if status.get("name") == container and not at(status, "state", "running"):
            raise bad_request(f'container "{container}" in pod "{name}" is not running')
    runs = home / "pods" / pod["metadata"]["uid"] / "containers" / container
    numbers = [int(run.name) for run in runs.glob("*") if run.name.isdigit()]
    if not numbers:
        raise _nothing_runs(f'container "{container}" of pod "{name}"', pod)
    spec = runs / str(max(numbers)) / "spec.json"
    return msgspec.json.decode(spec.read_bytes(), type=Where)


def check_runs_here(home: Path, pod: Obj) -> None:
    if not (home / "pods" / pod["metadata"]["uid"]).exists():
        raise _nothing_runs(f'pod "{pod["metadata"]["name"]}"', pod)


def _nothing_runs(what: str, pod: Obj) -> Refusal:
    node = at(pod, "spec", "nodeName") or "no node"
    return bad_request(
        f"{what} has no process on this machine ({node}): pods of pretended nodes run nothing"
    )


def outcome_of(code: int) -> Obj:
    """How it ended, so that kubectl ends with the same exit code."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    shown = code if code > 0 else 128 - code  # killed by a signal
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {shown}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(shown)}]},
    }


async def execute(scope: Scope, receive: Receive, send: Send, home: Path, pod: Obj) -> None:
    asked = read_question(scope)
    if not asked.command:
        raise bad_request("you must specify at least one command for the container")
    container = chosen_container(pod, asked.container)
    where = where_it_runs(home, pod, container)
    channels = await open_channels(scope, receive, send, asked)
    process = await _Command.start(asked, where)
    if process is None:
        await channels.end(_cannot_run(asked.command[0]))
        return
    await process.talk(channels, asked)


def _cannot_run(program: str) -> Obj:
    message = f'exec failed: unable to start container process: "{program}": executable file not found in $PATH'
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {message}",
        "reason": "InternalError",
        "details": {"causes": [{"message": message}]},
        "code": 500,
    }


class _Command:
    """A running command and the ends of its pipes or its terminal."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: int | None) -> None:
        self._process = process
        self._terminal = terminal

    @classmethod
    async def start(cls, asked: Asked, where: Where) -> _Command | None:
        program = shutil.which(asked.command[0], path=where.env.get("PATH"))
        if program is None and "/" in asked.command[0]:
            program = str(Path(where.cwd, asked.command[0]))
        if program is None:
            return None
        ours, theirs = pty.openpty() if asked.tty else (None, None)
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *asked.command[1:],
                stdin=theirs
                if theirs is not None
                else pipe
                if asked.stdin
                else asyncio.subprocess.DEVNULL,
                stdout=theirs if theirs is not None else pipe,
                stderr=theirs if theirs is not None else pipe,
                cwd=where.cwd,
                env={**where.env, **({"TERM": "xterm"} if asked.tty else {})},
                preexec_fn=_become(where, theirs),
            )
        except (OSError, ValueError):
            if ours is not None:
                os.close(ours)
            return None
        finally:
            if theirs is not None:
                os.close(theirs)
        return cls(process, ours)

    async def talk(self, channels: Channels, asked: Asked) -> None:
        """Until the command ends, or the client goes and takes the command with it."""
        listening = asyncio.create_task(self._listen(channels))
        speaking = asyncio.create_task(self._speak(channels, asked))
        try:
            await asyncio.wait({listening, speaking}, return_when=asyncio.FIRST_COMPLETED)
            if speaking.done():
                speaking.result()
                code = await self._process.wait()
                listening.cancel()  # the goodbye listens to the client itself
                await asyncio.gather(listening, return_exceptions=True)
                await channels.end(outcome_of(code))
        finally:
            for task in (listening, speaking):
                task.cancel()
            await asyncio.gather(listening, speaking, return_exceptions=True)
            await self._stop()

    async def _speak(self, channels: Channels, asked: Asked) -> None:
        if self._terminal is not None:
            await self._copy_terminal(channels, self._terminal)
            return
        outputs = [(STDOUT, self._process.stdout), (STDERR, self._process.stderr)]
        wanted = {STDOUT: asked.stdout, STDERR: asked.stderr}
        await asyncio.gather(
            *(_copy(stream, channels, number, wanted[number]) for number, stream in outputs)
        )

    async def _copy_terminal(self, channels: Channels, terminal: int) -> None:
        while True:
            try:
                content = await asyncio.to_thread(os.read, terminal, CHUNK)
            except OSError:  # the other end is closed: that is how a terminal ends
                return
            if not content:
                return
            await channels.write(STDOUT, content)

    async def _listen(self, channels: Channels) -> None:
        """Returns when the client has gone; closing its input alone does not end the command."""
        while (heard := await channels.read()) is not None:
            channel, content = heard
            if channel == STDIN:
                await self._feed(content)
            elif channel == RESIZE:
                self._resize(content)
            elif channel == CLOSE and content[:1] == b"\x00" and self._process.stdin is not None:
                self._process.stdin.close()

    async def _feed(self, content: bytes) -> None:
        if self._terminal is not None:
            await asyncio.to_thread(os.write, self._terminal, content)
        elif self._process.stdin is not None and not self._process.stdin.is_closing():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._process.stdin.write(content)
                await self._process.stdin.drain()

    def _resize(self, content: bytes) -> None:
        if self._terminal is None:
            return
        with contextlib.suppress(msgspec.MsgspecError, OSError, struct.error):
            size = msgspec.json.decode(content, type=TerminalSize)
            packed = struct.pack("HHHH", size.rows, size.columns, 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, packed)

    async def _stop(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._terminal is not None:
            os.close(self._terminal)


async def _copy(
    stream: asyncio.StreamReader | None, channels: Channels, channel: int, wanted: bool
) -> None:
    while stream is not None and (content := await stream.read(CHUNK)):
        if wanted:
            await channels.write(channel, content)


def _become(where: Where, terminal: int | None) -> Callable[[], None]:
    """In the new process: a session of its own, its terminal, and the container's user."""

    def become() -> None:
        os.setsid()
        _end_with_parent()
        if terminal is not None:
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        if where.uid is not None and os.geteuid() == 0:
            gid = where.uid if where.gid is None else where.gid
            os.setgroups([gid])
            os.setgid(gid)
            os.setuid(where.uid)

    return become


def _end_with_parent() -> None:
    """A server that is killed takes the command along: nobody else would. Where the system has no way to say so it stays."""
    if _LIBC is not None:
        _LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


async def attach(
    scope: Scope,
    receive: Receive,
    send: Send,
    home: Path,
    pod: Obj,
    more_to_come: Callable[[str], bool],
) -> None:
    """What a container writes from now on, until it ends; nobody can write to it."""
    asked = read_question(scope)
    container = chosen_container(pod, asked.container)
    path = log_path(home, pod["metadata"]["uid"], container)
    offset = path.stat().st_size if path.exists() else 0
    channels = await open_channels(scope, receive, send, asked)
    gone = asyncio.create_task(_until_gone(channels))
    try:
        while not gone.done():
            ended = not more_to_come(container)
            content, offset = read_more(path, offset)
            if content:
                await channels.write(STDOUT, text_of(content))
            elif ended:
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)
                await channels.end(outcome_of(0))
                return
            else:
                await asyncio.wait([gone], timeout=POLL_S)
    finally:
        gone.cancel()


async def _until_gone(channels: Channels) -> None:
    while await channels.read() is not None:
        pass


async def refuse(send: Send, receive: Receive, refusal: Refusal) -> None:
    """As an answer to the request that would have become a WebSocket."""
    body = encode(refusal.status())
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send(
        {"type": "websocket.http.response.start", "status": refusal.code, "headers": headers}
    )
    await send({"type": "websocket.http.response.body", "body": body})
