"""Who else decides on this cluster. While Kueue runs, queued work is Kueue's and only nodes are ours; when it is gone, makeway takes
over what it admitted, from what the Workloads say.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from makeway.client import ApiError, Client, UnreachableError
from makeway.client.resource import LEASES
from makeway.control.clock import parse_timestamp
from makeway.control.ports import Clock

log = logging.getLogger(__name__)

# Kueue's own leader election, as its manifests set it up.
KUEUE_NAMESPACE: Final = "kueue-system"
KUEUE_LEASE: Final = "c1f6bfd2.kueue.x-k8s.io"
USUAL_LEASE_S: Final = 15.0
LOOK_EVERY_S: Final = 3.0


class NeighboursChanged(Exception):
    """Kueue has come or gone: what is ours has to be found anew."""


async def kueue_runs(client: Client, clock: Clock) -> bool:
    """Whether Kueue's leader renewed its lease lately."""
    try:
        spec = (await client.get(LEASES, KUEUE_LEASE, KUEUE_NAMESPACE)).get("spec") or {}
    except ApiError as error:
        if error.not_found or error.code == 403:
            return False
        raise
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return False
    age = clock.now() - parse_timestamp(spec["renewTime"])
    return age < float(spec.get("leaseDurationSeconds") or USUAL_LEASE_S)


async def ask_for_kueue(client: Client, clock: Clock) -> bool:
    """`kueue_runs`, once the API server answers."""
    while True:
        try:
            return await kueue_runs(client, clock)
        except (ApiError, UnreachableError) as error:
            log.warning("the API does not say whether Kueue runs: %s; trying again", error)
            await asyncio.sleep(LOOK_EVERY_S)


async def watch_kueue(client: Client, clock: Clock, *, runs: bool) -> None:
    """Return never; raise when it is no longer as it was."""
    while await ask_for_kueue(client, clock) is runs:
        await asyncio.sleep(LOOK_EVERY_S)
    raise NeighboursChanged
