"""`makeway run`: what the Deployment starts; outside a cluster it uses the kubeconfig."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import uuid
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from makeway.cli.eventloop import run as run_for_long
from makeway.cli.logs import set_up_logs
from makeway.cli.output import out
from makeway.client import ApiError, Client, from_kubeconfig
from makeway.control.clock import SystemClock
from makeway.control.config import Configuration, Makeway, load
from makeway.control.metrics import Metrics
from makeway.embedded.controllers import run_models
from makeway.kube.checkpoints import Checkpoints
from makeway.kube.endpoints import Health, serve_endpoints
from makeway.kube.install import DEFINITIONS, is_ours
from makeway.kube.replica import USER_AGENT, Replica, run_replica
from makeway.kube.webhook import Webhook, serve_webhook

MODELS = "models.kubeai.org"


class Hook(NamedTuple):
    """Where admission reviews are answered, and with which certificate; on servers with admission policies nowhere."""

    listen: str
    certificates: Path


def run(
    config: Path | None,
    kubeconfig: str,
    listen: str,
    namespace: str,
    log_format: str,
    hook: Hook | None = None,
) -> None:
    set_up_logs(log_format, verbose=out.verbose)
    # On a cluster others schedule too: unlike on one machine, only who asks for makeway gets it.
    default = Configuration(makeway=Makeway(scheduler_names=("makeway",)))
    replica = Replica(
        connection=from_kubeconfig(kubeconfig),
        config=load(config) if config is not None else default,
        clock=SystemClock(),
        identity=_identity(),
        namespace=namespace,
        duties=(_serve_models,),
    )
    run_for_long(_run(replica, listen, hook))


async def _run(replica: Replica, listen: str, hook: Hook | None) -> None:
    health, metrics = Health(), Metrics(replica.clock)
    async with (
        Client(replica.connection, user_agent=USER_AGENT) as client,
        serve_endpoints(listen, health, metrics, Checkpoints(client, replica.clock)),
        _reviews(hook, Webhook(client, replica.clock)),
    ):
        work = asyncio.create_task(run_replica(replica, health, metrics))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            if not work.cancelled():
                raise


def _reviews(hook: Hook | None, webhook: Webhook) -> AbstractAsyncContextManager[object]:
    if hook is None:
        return nullcontext()
    return serve_webhook(hook.listen, hook.certificates, webhook)


async def _serve_models(client: Client) -> None:
    """Where the definition of Models is ours, no KubeAI is there to make pods of them."""
    try:
        definition = await client.get(DEFINITIONS, MODELS)
    except ApiError as error:
        if error.not_found or error.code == 403:
            return
        raise
    if is_ours(definition):
        await run_models(client)


def _identity() -> str:
    """Two processes of one name would both believe that they lead."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:12]}"
