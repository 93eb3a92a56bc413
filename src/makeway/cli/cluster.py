"""Which API the commands talk to: the makeway of the home when it runs, else the cluster that KUBECONFIG names.

`--home` says that this machine's makeway is meant, so it is never answered by some cluster.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from makeway.cli.home import Home
from makeway.client import Client, Connection, embedded, from_kubeconfig
from makeway.client.client import ApiError
from makeway.errors import UserError

T = TypeVar("T")
# People wait for an answer at the prompt: two attempts, not the patience of a control loop.
_ATTEMPTS = 2


def connection(home: Home, *, home_named: bool) -> Connection:
    if home.running_pid() is not None:
        return _embedded(home)
    if not home_named and os.environ.get("KUBECONFIG"):
        return from_kubeconfig()
    raise UserError(
        f"makeway does not run in {home.path}.", hint=f"Start it: makeway up --detach{_home(home)}"
    )


def _embedded(home: Home) -> Connection:
    try:
        return embedded(home.socket, (home.path / "token").read_text().strip())
    except FileNotFoundError as error:
        raise UserError(
            f"makeway is just starting in {home.path}.", hint="Try again in a second."
        ) from error


def _home(home: Home) -> str:
    return "" if home.path == Home.chosen(None).path else f" --home {home.path}"


def with_client(home: Path | None, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run one command's work with a client; a refusal of the server becomes a sentence."""
    chosen = Home.chosen(home)
    found = connection(chosen, home_named=home is not None)

    async def run() -> T:
        async with Client(found, attempts=_ATTEMPTS, user_agent="makeway-cli") as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except ApiError as error:
        raise UserError(refusal(error), hint=error.hint) from error


def refusal(error: ApiError) -> str:
    """The server's own words, with its reason in front as kubectl prints it."""
    return f"from the server ({error.reason or error.code}): {error.message}"
