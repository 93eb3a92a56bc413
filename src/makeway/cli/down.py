"""`makeway down`: stop what `makeway up` started; pods get their grace."""

from __future__ import annotations

import os
import signal
import time

from makeway.cli.home import Home
from makeway.cli.output import out
from makeway.errors import UserError

_LONGEST_S = 3_700.0  # longer than any notice a pod may have


def down(home: Home) -> None:
    pid = home.running_pid()
    if pid is None:
        out.result(
            {"home": str(home.path), "stopped": False}, f"makeway does not run in {home.path}."
        )
        return
    if pid == 0:
        raise UserError(f"makeway is just starting in {home.path}.", hint="Try again in a second.")
    os.kill(pid, signal.SIGTERM)
    with out.progress("stopping makeway; pods get their grace…"):
        _wait_until_stopped(home)
    out.result(
        {"home": str(home.path), "stopped": True},
        f"makeway stopped. Everything is kept in {home.path}.",
    )


def _wait_until_stopped(home: Home) -> None:
    deadline = time.monotonic() + _LONGEST_S
    while home.running_pid() is not None:
        if time.monotonic() > deadline:
            raise UserError(
                f"makeway did not stop within {_LONGEST_S:.0f} s.", hint=f"The log is {home.log}"
            )
        time.sleep(0.02)
