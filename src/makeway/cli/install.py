"""`makeway install`, `upgrade` and `uninstall`: makeway on a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import yaml

from makeway.cli.cluster import refusal
from makeway.cli.output import out
from makeway.client import ApiError, Client, from_kubeconfig
from makeway.control.clock import SystemClock
from makeway.control.config import load
from makeway.errors import UserError
from makeway.kube import install as cluster
from makeway.kube.manifests import Options, manifests

Work = Callable[[Client], Awaitable[object]]


def options_from(
    namespace: str, image: str | None, replicas: int | None, config: Path | None
) -> Options:
    text = ""
    if config is not None:
        load(config)  # a mistake is better told here than in the log of a pod
        text = config.read_text()
    return Options(namespace=namespace, replicas=replicas, config=text, image=image or "")


def install(kubeconfig: str, options: Options, *, dry_run: bool, webhook: bool | None) -> None:
    clock = SystemClock()
    if dry_run:
        made = cluster.new_certificates(options, clock) if webhook else None
        print(as_yaml(msgspec.structs.replace(options, webhook=made)), end="")
        return

    async def work(client: Client) -> None:
        await cluster.install(client, options, clock, out.say, webhook=webhook)

    _with(kubeconfig, work)


def uninstall(kubeconfig: str, options: Options, *, definitions: bool) -> None:
    _with(
        kubeconfig,
        lambda client: cluster.uninstall(client, options, out.say, definitions=definitions),
    )


def as_yaml(options: Options) -> str:
    """All manifests, as `kubectl apply -f -` takes them."""
    return yaml.safe_dump_all(manifests(options), sort_keys=False, width=120)


def _with(kubeconfig: str, work: Work) -> None:
    async def run() -> None:
        async with Client(from_kubeconfig(kubeconfig), user_agent="makeway-install") as client:
            await work(client)

    try:
        asyncio.run(run())
    except ApiError as error:
        raise UserError(refusal(error)) from error
