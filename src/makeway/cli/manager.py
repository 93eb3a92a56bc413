"""The second process of `makeway up`: controllers, nodes and the scheduler, against the API next door.

Started by `cli/serving.py` only. It says "ready" on its output when the scheduler has seen everything, and ends when its input
closes: that is how it learns that the API's process is gone, whatever became of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from makeway.cli.eventloop import run
from makeway.cli.logs import set_up_logs
from makeway.cli.up import Options, read_options
from makeway.client import Client, embedded
from makeway.control.clock import SystemClock
from makeway.control.config import Configuration, load
from makeway.embedded.controllers import run_controllers
from makeway.embedded.node import LocalNode, NodeOptions, run_pretended
from makeway.kube.adapter import run_scheduler

log = logging.getLogger(__name__)


def main() -> None:
    home = Path(sys.argv[1])
    options = read_options(os.environ["MAKEWAY_OPTIONS"])
    set_up_logs(options.log_format, verbose=options.verbose)
    run(_manage(home, options))


async def _manage(home: Path, options: Options) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    config = load(options.config) if options.config is not None else Configuration()
    parent = asyncio.create_task(_orphaned(), name="parent")
    token = await _token_unless(stop, parent, home)
    if token is None:
        return
    async with Client(embedded(home / "api.sock", token)) as client:
        node = None
        if options.local_node:
            node = LocalNode(
                client, home, NodeOptions(capacity=options.capacity, labels=options.labels)
            )
        ready = asyncio.Event()
        clock = SystemClock()
        tasks = [
            asyncio.create_task(run_controllers(client), name="controllers"),
            asyncio.create_task(run_pretended(client), name="pretended nodes"),
            asyncio.create_task(run_scheduler(client, config, clock, ready), name="scheduler"),
            parent,
        ]
        if node is not None:
            tasks.append(asyncio.create_task(node.run(), name="node"))
        await _until(stop, ready, tasks)
        parent_lives = not parent.done()
        if stop.is_set() and parent_lives and node is not None:
            await node.stop_pods()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _token_unless(stop: asyncio.Event, parent: asyncio.Task[None], home: Path) -> str | None:
    """None when we are told to stop, or the API's process gave up before it wrote one."""
    token = asyncio.create_task(_token_of(home))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({token, stopping, parent}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if token.done():
        return token.result()
    token.cancel()
    return None


async def _token_of(home: Path) -> str:
    """The API's process writes it at its first start; we may be faster."""
    while not (token := _token(home)):
        await asyncio.sleep(0.01)
    return token


def _token(home: Path) -> str:
    path = home / "token"
    ready = path.exists() and (home / "api.sock").exists()
    return path.read_text().strip() if ready else ""


async def _orphaned() -> None:
    """Ends when our input closes: the process that started us is gone."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def _until(
    stop: asyncio.Event, ready: asyncio.Event, tasks: list[asyncio.Task[None]]
) -> None:
    """Until we are told to stop, or one of the tasks ends, which none should."""
    stopping = asyncio.create_task(stop.wait())
    told = asyncio.create_task(_tell_ready(ready))
    await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    stopping.cancel()
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)
            sys.exit(1)


async def _tell_ready(ready: asyncio.Event) -> None:
    await ready.wait()
    sys.stdout.write("ready\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
