"""The two processes of `makeway up`: the API here, and the manager (controllers, nodes, scheduler) beside it.

The manager is started first, so that both load their code at the same time. If it dies by itself it is started again: all it
knows is in the API. When this process ends, the manager ends too, and pods that run go on under their shims.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence

import msgspec

from makeway.cli.eventloop import run
from makeway.cli.home import Home
from makeway.cli.logfile import keep_short
from makeway.cli.up import Options
from makeway.embedded.server import ApiServer, serving

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


def serve_until_stopped(home: Home, port: int, options: Options, announce: Sequence[str]) -> None:
    run(_serve(home, port, options, announce))


async def _serve(home: Home, port: int, options: Options, announce: Sequence[str]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    _keep_to_ourselves("MAKEWAY_READY_FD")
    manager = await _start_manager(home, options)
    log = asyncio.create_task(keep_short(home.log))
    try:
        async with serving(home.path, port) as server:
            await _keep_manager(home, options, manager, stop, announce, server)
    finally:
        log.cancel()
        await _stop_manager(manager)  # the API may not have come up: a taken port, a damaged file


def _keep_to_ourselves(variable: str) -> None:
    """Who waits on the other end learns of our end only when no child of ours holds the pipe too."""
    descriptor = os.environ.get(variable)
    if descriptor is not None:
        os.set_inheritable(int(descriptor), False)


async def _start_manager(home: Home, options: Options) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "makeway.cli.manager",
        str(home.path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "MAKEWAY_OPTIONS": msgspec.json.encode(options, enc_hook=str).decode()},
        # Ctrl-C in a terminal goes to the whole group: the manager must hear of it from us, in order.
        start_new_session=True,
    )


async def _keep_manager(
    home: Home,
    options: Options,
    manager: Process,
    stop: asyncio.Event,
    announce: Sequence[str],
    server: ApiServer,
) -> None:
    pause = _FIRST_PAUSE_S
    stopping = asyncio.create_task(stop.wait())
    try:
        while True:
            ready = asyncio.create_task(_say_when_ready(manager, announce))
            ended = asyncio.create_task(manager.wait())
            await asyncio.wait({stopping, ended}, return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if stopping.done():
                break
            print(
                f"the manager ended with code {manager.returncode}; starting it again",
                file=sys.stderr,
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(stopping), pause)
                return
            pause = min(pause * 2, _LONGEST_PAUSE_S)
            manager = await _start_manager(home, options)
    finally:
        stopping.cancel()
        await _stop_manager(manager)


async def _say_when_ready(manager: Process, announce: Sequence[str]) -> None:
    assert manager.stdout is not None
    if await manager.stdout.readline() != b"ready\n":
        return
    descriptor = os.environ.pop("MAKEWAY_READY_FD", None)
    if descriptor is not None:
        os.write(int(descriptor), b"ready\n")
        os.close(int(descriptor))
    for line in announce:
        print(line, flush=True)
    await manager.stdout.read()  # whatever it prints later must not fill the pipe


async def _stop_manager(manager: Process) -> None:
    """It stops pods with their grace first, so this may take as long as the longest of them."""
    if manager.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            manager.send_signal(signal.SIGTERM)
        await manager.wait()
