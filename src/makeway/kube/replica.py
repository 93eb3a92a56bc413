"""One replica on a cluster: waits for the lease, decides while it holds it, and gives it back when it is told to stop.

Everything it knows is in the API, so a replica that takes over starts from what it reads, in the middle of anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from makeway.client import Client, Connection
from makeway.control.config import Configuration
from makeway.control.metrics import Metrics
from makeway.control.ports import Clock
from makeway.kube.adapter import run_scheduler
from makeway.kube.endpoints import Health
from makeway.kube.leader import Election, FencedClient, LeadershipLost, Timing
from makeway.kube.manifests import LEASE, NAMESPACE
from makeway.kube.neighbours import NeighboursChanged, ask_for_kueue, watch_kueue
from makeway.kube.observing import Observer

log = logging.getLogger(__name__)

USER_AGENT: Final = "makeway"
BESIDE_KUEUE: Final = "Kueue runs on this cluster (its lease is fresh): it admits and evicts what is queued, makeway only places pods on nodes."
ALONE: Final = "no Kueue runs on this cluster: quota and nodes are decided here"

# What else a leader does, with the client whose writes are fenced.
Duty = Callable[[Client], Awaitable[None]]


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    connection: Connection
    config: Configuration
    clock: Clock
    identity: str
    namespace: str = NAMESPACE
    timing: Timing = Timing()
    duties: tuple[Duty, ...] = ()


async def run_replica(
    replica: Replica, health: Health, metrics: Metrics, leads: asyncio.Event | None = None
) -> None:
    """Until cancelled. `leads` is set while this replica has seen everything and decides."""
    async with Client(replica.connection, user_agent=USER_AGENT) as client:
        election = Election(
            client,
            replica.clock,
            namespace=replica.namespace,
            name=LEASE,
            identity=replica.identity,
            timing=replica.timing,
        )
        await client.request("GET", "/version")
        health.connected.set()
        try:
            while True:
                await election.acquire()
                await _lead(replica, election, metrics, leads or asyncio.Event())
        finally:
            await asyncio.shield(election.release())


async def _lead(
    replica: Replica, election: Election, metrics: Metrics, leads: asyncio.Event
) -> None:
    """Decide until the lease is lost; then everything is forgotten, and the next time starts from the API."""
    metrics.leads = True
    fenced = FencedClient(replica.connection, election.fence, LEASE, user_agent=USER_AGENT)
    try:
        async with fenced, asyncio.TaskGroup() as group:
            group.create_task(election.keep(), name="lease")
            kueue = await ask_for_kueue(fenced, replica.clock)
            metrics.kueue_runs = kueue
            log.log(logging.WARNING if kueue else logging.INFO, BESIDE_KUEUE if kueue else ALONE)
            group.create_task(watch_kueue(fenced, replica.clock, runs=kueue), name="neighbours")
            for duty in replica.duties:
                group.create_task(_do(duty, fenced), name="duty")
            group.create_task(
                run_scheduler(
                    fenced,
                    replica.config,
                    replica.clock,
                    leads,
                    queues_are_ours=not kueue,
                    on_cycle=metrics.note,
                    on_change=Observer(metrics).note,
                ),
                name="scheduler",
            )
    except* NeighboursChanged:
        log.warning("%s: Kueue has come or gone; starting anew from the API", replica.identity)
    except* LeadershipLost as lost:
        log.warning("%s: %s", replica.identity, lost.exceptions[0])
    finally:
        metrics.leads = False
        leads.clear()


async def _do(duty: Duty, client: Client) -> None:
    await duty(client)
