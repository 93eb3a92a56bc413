"""Probes: is a container up, alive, ready? By a command, a TCP connection or an HTTP request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import msgspec

from makeway.client.resource import Object


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a command inside a container sees."""

    env: Mapping[str, str]
    cwd: str
    uid: int | None = None
    gid: int | None = None


class Outcome(msgspec.Struct, frozen=True):
    ok: bool
    said: str = ""


async def probe_once(probe: Object, container: Object, host: str, around: Surroundings) -> Outcome:
    timeout = float(probe.get("timeoutSeconds") or 1)
    try:
        async with asyncio.timeout(timeout):
            if "exec" in probe:
                return await run_command(probe["exec"]["command"], around)
            if "tcpSocket" in probe:
                return await _connect(probe["tcpSocket"], container, host)
            if "httpGet" in probe:
                return await _get(probe["httpGet"], container, host)
    except TimeoutError:
        return Outcome(False, f"no answer within {timeout:g} s")
    return Outcome(False, "probes of this kind are not made on one machine")


async def run_command(command: list[str], around: Surroundings) -> Outcome:
    who: dict[str, Any] = {}
    if around.uid is not None:
        who = {"user": around.uid, "group": around.gid, "extra_groups": []}
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=dict(around.env),
            cwd=around.cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            **who,
        )
    except OSError as error:
        return Outcome(False, f"{command[0]}: {error.strerror}")
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        raise
    said = output.decode(errors="replace").strip()[-200:]
    return Outcome(process.returncode == 0, said or f"exit code {process.returncode}")


def port_number(port: Any, container: Object) -> int:
    """A number, or the name of one of the container's ports."""
    if isinstance(port, int) or str(port).isdigit():
        return int(port)
    for entry in container.get("ports") or []:
        if entry.get("name") == port:
            return int(entry["containerPort"])
    return 0


async def _connect(target: Object, container: Object, host: str) -> Outcome:
    port = port_number(target["port"], container)
    try:
        _, writer = await asyncio.open_connection(target.get("host") or host, port)
    except OSError as error:
        return Outcome(False, f"port {port}: {error.strerror or error}")
    writer.close()
    return Outcome(True)


async def _get(target: Object, container: Object, host: str) -> Outcome:
    port = port_number(target["port"], container)
    scheme = str(target.get("scheme") or "HTTP").lower()
    path = "/" + str(target.get("path") or "").lstrip("/")
    url = f"{scheme}://{target.get('host') or host}:{port}{path}"
    headers = {each["name"]: each["value"] for each in target.get("httpHeaders") or []}
    try:
        # Probes do not check certificates: the server names itself as it likes.
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers, ssl=False, allow_redirects=False) as answer,
        ):
            ok = 200 <= answer.status < 400
            return Outcome(ok, f"HTTP probe failed with statuscode: {answer.status}")
    except (aiohttp.ClientError, OSError) as error:
        return Outcome(False, f"{url}: {error}")


async def follow(
    probe: Object,
    ask: Callable[[], Any],
    change: Callable[[bool, str], None],
    *,
    at_first: bool,
) -> None:
    """Ask again and again; `change` is called when the answer turns, by the probe's thresholds."""
    await asyncio.sleep(float(probe.get("initialDelaySeconds") or 0))
    period = max(0.05, float(probe.get("periodSeconds") or 10))
    needed = {
        True: int(probe.get("successThreshold") or 1),
        False: int(probe.get("failureThreshold") or 3),
    }
    state, streak, last = at_first, 0, at_first
    while True:
        outcome: Outcome = await ask()
        streak = streak + 1 if outcome.ok == last else 1
        last = outcome.ok
        if outcome.ok != state and streak >= needed[outcome.ok]:
            state = outcome.ok
            change(state, outcome.said)
        await asyncio.sleep(period)
