"""`makeway up`: the API server in this process, and a second one beside it that runs controllers, nodes and the scheduler.

Two processes because the machine has more than one core and the API must answer while a plan is made. The second one dies with
the first whatever happens to it (the kernel sees to that on Linux); pods run under shims that outlive both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from makeway.cli.home import Home
from makeway.cli.output import out
from makeway.errors import UserError
from makeway.model.resources import amount_of

_READY_WITHIN_S = 60.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How it runs; written to the home so that the second process reads the same."""

    config: Path | None = None
    capacity: dict[str, str] = {}
    labels: dict[str, str] = {}
    local_node: bool = True
    log_format: str = "text"
    verbose: bool = False
    record: Path | None = None


def parse_capacity(text: str | None) -> dict[str, str]:
    """`cpu=16,memory=64Gi` as a mapping; every amount is checked here, where the mistake can be named."""
    pairs = _pairs(
        text.split(",") if text else [], "--capacity", "cpu=16,memory=64Gi,nvidia.com/gpu=4"
    )
    for name, amount in pairs.items():
        try:
            negative = amount_of(name, amount) < 0
        except UserError as error:
            raise UserError(str(error), where=f"--capacity {name}={amount}") from error
        if negative:
            raise UserError("an amount cannot be negative.", where=f"--capacity {name}={amount}")
    return pairs


def parse_labels(texts: list[str]) -> dict[str, str]:
    return _pairs(texts, "--label", "zone=a")


def _pairs(texts: list[str], option: str, example: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UserError(
                f'expected NAME=VALUE, got "{text}".',
                where=option,
                hint=f"Write for example {option} {example}.",
            )
        pairs[key.strip()] = value.strip()
    return pairs


def up(home: Home, port: int | None, options: Options, *, detach: bool) -> None:
    if options.config is not None:
        _check_config(options.config)
    home.prepare()
    running = home.running_pid()
    if running is not None:
        out.result(
            _facts(home, running),
            f"makeway already runs in {home.path} (process {running}). {_how_to_use(home)}",
        )
        return
    if detach:
        start_detached(home, port, options)
    else:
        run_here(home, port, options)


def _check_config(path: Path) -> None:
    """A mistake in the file is told before anything starts."""
    from makeway.control.config import load

    load(path)


def _keep(home: Home, options: Options) -> None:
    """So that `makeway config` can tell later what this one runs with."""
    chosen = options.config.absolute() if options.config is not None else None
    kept = msgspec.structs.replace(options, config=chosen)
    home.options.write_bytes(msgspec.json.encode(kept, enc_hook=str))


def options_of(home: Home) -> Options:
    """What the makeway of this home was started with."""
    try:
        return read_options(home.options.read_bytes())
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return Options()


def read_options(text: bytes | str) -> Options:
    return msgspec.json.decode(text, type=Options, dec_hook=_path)


def _path(kind: type, value: str) -> Path:
    assert issubclass(kind, Path)
    return Path(value)


def _facts(home: Home, pid: int) -> dict[str, object]:
    return {"home": str(home.path), "kubeconfig": str(home.kubeconfig), "pid": pid}


def _how_to_use(home: Home) -> str:
    return f"Use it: export KUBECONFIG={home.kubeconfig}"


# --- in the background ---


def start_detached(home: Home, port: int | None, options: Options) -> None:
    """Start `makeway up` in a session of its own, and wait until it says that it is ready."""
    started = time.monotonic()
    read_end, write_end = os.pipe()
    chosen = options.config.absolute() if options.config is not None else None
    record = options.record.absolute() if options.record is not None else None
    said = msgspec.structs.replace(options, config=chosen, record=record)
    with home.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "makeway.cli.background", str(home.path), str(port or 0)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(write_end,),
            env={
                **os.environ,
                "MAKEWAY_READY_FD": str(write_end),
                "MAKEWAY_OPTIONS": msgspec.json.encode(said, enc_hook=str).decode(),
            },
        )
    home.log.chmod(0o600)
    os.close(write_end)
    try:
        with out.progress("starting makeway…"), os.fdopen(read_end, "rb") as ready:
            heard = _read_within(ready.fileno(), _READY_WITHIN_S)
    except BaseException:  # Ctrl-C: who stops waiting for it does not want it either
        process.terminate()
        process.wait()
        raise
    if heard != b"ready\n":
        process.terminate()  # one that was too slow must not come up behind our back
        raise UserError(
            f"makeway did not start{_last_words(home)}",
            hint=f"The log is {home.log}",
        )
    took = time.monotonic() - started
    out.result(
        {**_facts(home, process.pid), "seconds": round(took, 2)},
        f"makeway is ready ({took:.1f} s). {_how_to_use(home)}",
    )


def _read_within(descriptor: int, seconds: float) -> bytes:
    """One line, or what came before the other side closed or the time was up."""
    import select

    deadline = time.monotonic() + seconds
    said = b""
    while not said.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            break
        part = os.read(descriptor, 64)
        if not part:
            break
        said += part
    return said


def _last_words(home: Home) -> str:
    lines = home.log.read_text(errors="replace").strip().splitlines()
    return f": {lines[-1].removeprefix('Error: ')}" if lines else "."


# --- in the foreground ---


def run_here(home: Home, port: int | None, options: Options) -> None:
    from makeway.cli.logs import set_up_logs
    from makeway.cli.serving import serve_until_stopped

    set_up_logs(options.log_format, verbose=options.verbose)
    with home.locked():
        _keep(home, options)
        serve_until_stopped(home, port or 0, options, announce=_announce(home))


def _announce(home: Home) -> list[str]:
    """What to print when it is ready, in the foreground; a detached parent is told through its pipe instead."""
    if "MAKEWAY_READY_FD" in os.environ:
        return []
    return [f"makeway is ready. {_how_to_use(home)}", "Stop it with Ctrl-C."]
