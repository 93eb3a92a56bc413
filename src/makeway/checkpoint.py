"""`makeway.checkpointed()`: one line in a training script that says "I have just saved".

makeway prices an eviction by the work since the last save; a program that says when it saved is therefore not taken for one
that would lose everything. The runner names a file in `MAKEWAY_CHECKPOINT_FILE`; touching it is the whole protocol, so a shell
script or another language needs no library: `touch "$MAKEWAY_CHECKPOINT_FILE"`.
"""

from __future__ import annotations

import os
from pathlib import Path

FILE_VARIABLE = "MAKEWAY_CHECKPOINT_FILE"


def checkpointed(saved_at: float | None = None) -> bool:
    """Say that everything up to now (or up to `saved_at`, in seconds since 1970) is saved.

    Call it after the checkpoint is complete on disk. False means that nobody listens: the program does not run under makeway,
    or the file cannot be written. It never raises, since a training run must not end over this.
    """
    named = os.environ.get(FILE_VARIABLE)
    if not named:
        return False
    try:
        file = Path(named)
        file.touch()
        if saved_at is not None:
            os.utime(file, (saved_at, saved_at))
    except OSError:
        return False
    return True
