"""When a pod's program last saved: it touches a file, and the pod's annotation says when that was."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from makeway.client import ApiError
from makeway.client.resource import PODS, Object
from makeway.control.clock import timestamp
from makeway.embedded.node.host import Host
from makeway.embedded.node.launch import checkpoint_file
from makeway.embedded.objects import name_of, namespace_of
from makeway.errors import UserError
from makeway.kinds.promises import LAST_CHECKPOINT, last_checkpoint

log = logging.getLogger(__name__)

CHECKPOINT_POLL_S = 0.5


async def watch_checkpoints(host: Host, pod: Object, folder: Path) -> None:
    """Until cancelled."""
    seen = last_checkpoint(pod)
    while True:
        await asyncio.sleep(CHECKPOINT_POLL_S)
        try:
            saved = checkpoint_file(folder).stat().st_mtime
        except FileNotFoundError:
            continue
        if int(saved) > int(seen):
            seen = saved
            await _announce(host, pod, saved)


async def _announce(host: Host, pod: Object, saved: float) -> None:
    body = {"metadata": {"annotations": {LAST_CHECKPOINT: timestamp(saved)}}}
    try:
        await host.client.patch(PODS, name_of(pod), body, namespace_of(pod))
    except (ApiError, UserError) as error:
        log.warning("%s: checkpoint not announced: %s", name_of(pod), error)
