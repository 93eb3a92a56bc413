"""`makeway.checkpointed()`: one line in a training script that says "I have just saved".

makeway prices an eviction by the work since the last save; a program that says when it saved is therefore not taken for one
that would lose everything. On one machine the runner names a file in `MAKEWAY_CHECKPOINT_FILE`; touching it is the whole
protocol, so a shell script or another language needs no library: `touch "$MAKEWAY_CHECKPOINT_FILE"`. On a cluster the pod posts
to makeway's Service with its own token, which says who it is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

FILE_VARIABLE = "MAKEWAY_CHECKPOINT_FILE"
URL_VARIABLE = "MAKEWAY_URL"
TOKEN_VARIABLE = "MAKEWAY_TOKEN_FILE"
SERVICE = "http://makeway.makeway-system.svc:8080"
# Every pod has this one, unless it wants none.
POD_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
PATIENCE_S = 2.0


def checkpointed(saved_at: float | None = None) -> bool:
    """Say that everything up to now (or up to `saved_at`, in seconds since 1970) is saved.

    Call it after the checkpoint is complete on disk. False means that nobody listens: the program does not run under makeway,
    or it cannot be told. It never raises, since a training run must not end over this.
    """
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return _touch(Path(named), saved_at)
    if os.environ.get(URL_VARIABLE) or "KUBERNETES_SERVICE_HOST" in os.environ:
        return _post(saved_at)
    return False


def _touch(file: Path, saved_at: float | None) -> bool:
    try:
        file.touch()
        if saved_at is not None:
            os.utime(file, (saved_at, saved_at))
    except OSError:
        return False
    return True


def _post(saved_at: float | None) -> bool:
    # Loaded here, so that whoever runs elsewhere does not pay for it.
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    url = os.environ.get(URL_VARIABLE) or SERVICE
    try:
        token = Path(os.environ.get(TOKEN_VARIABLE) or POD_TOKEN).read_text().strip()
        request = Request(
            f"{url.rstrip('/')}/checkpointed",
            data=json.dumps({"savedAt": saved_at}).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        with urlopen(request, timeout=PATIENCE_S) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, HTTPException):
        return False
