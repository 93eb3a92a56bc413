"""Give worlds to both schedulers, wait until both have decided, and tell what differs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec
from tools.control_plane import ControlPlane

from makeway.client import ApiError, Client, Resource, from_kubeconfig
from makeway.client.resource import NAMESPACES, NODES, PODS, PRIORITY_CLASSES
from makeway.control.clock import SystemClock, timestamp
from makeway.control.config import Configuration, Makeway
from makeway.kube.adapter import run_scheduler
from tests.differential.worlds import (
    ASKING,
    Object,
    World,
    namespace,
    node_name,
    node_objects,
    pod_object,
    priority_classes,
    world_of,
)

ACCOUNTS: Final = Resource("", "v1", "serviceaccounts")
AT_ONCE: Final = 32
DECIDED_WITHIN_S: Final = 120.0
# A pod that waits may still be about to preempt: nothing may have changed for this long.
QUIET_S: Final = 3.0
SIDES: Final = ("kube", "makeway")


class Outcome(msgspec.Struct, frozen=True):
    """`bound`, `preempts` or `waits`; where; and who has to go."""

    what: str
    node: str = ""
    victims: tuple[str, ...] = ()


class Report(msgspec.Struct):
    worlds: int = 0
    bound: int = 0
    preempting: int = 0
    waiting: int = 0
    ties: int = 0
    differences: list[str] = []

    def summary(self) -> str:
        return (
            f"{self.worlds} worlds: {self.bound} bound, {self.preempting} preempting"
            f" ({self.ties} with other victims of the same rank), {self.waiting} waiting,"
            f" {len(self.differences)} different"
        )


async def compare(plane: ControlPlane, seeds: Iterable[int]) -> Report:
    worlds = [world_of(seed) for seed in seeds]
    async with Client(from_kubeconfig(plane.kubeconfig), user_agent="differential") as client:
        await _prepare(client, worlds)
        async with _makeway(client):
            outcomes = await _decide(client, worlds)
        feasible = await _probe(client, worlds, outcomes)
        report = _judge(worlds, outcomes, feasible)
        await _clean(client, worlds)
    return report


# ---- making worlds ---------------------------------------------------------------------------------


async def _prepare(client: Client, worlds: list[World]) -> None:
    for one in priority_classes():
        with contextlib.suppress(ApiError):
            await client.create(PRIORITY_CLASSES, one)
    sides = [(world, side) for world in worlds for side in (*SIDES, "probe")]
    await _all(_make_namespace(client, namespace(world, side)) for world, side in sides)
    await _all(
        client.create(NODES, node) for world, side in sides for node in node_objects(world, side)
    )
    await _until(lambda: _untainted(client), "nodes are ready")
    await _all(_make_pod(client, world, side, pod) for world, side in sides for pod in world.pods)


async def _make_namespace(client: Client, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await client.create(NAMESPACES, body)
    account = {"metadata": {"name": "default", "namespace": name}}
    with contextlib.suppress(ApiError):  # the controller was faster
        await client.create(ACCOUNTS, account)


async def _untainted(client: Client) -> bool:
    return not any(
        taint["key"] == "node.kubernetes.io/not-ready"
        for node in await client.list(NODES)
        for taint in node["spec"].get("taints") or []
    )


async def _make_pod(client: Client, world: World, side: str, pod: Object) -> None:
    body = pod_object(world, side, pod)
    await client.create(PODS, body)
    started = timestamp(1_700_000_000 + pod["started"])
    status = {"status": {"phase": "Running", "startTime": started}}
    await client.patch(PODS, pod["name"], status, namespace(world, side), subresource="status")


async def _clean(client: Client, worlds: list[World]) -> None:
    places = [namespace(world, side) for world in worlds for side in (*SIDES, "probe")]
    pods = [pod for pod in await client.list(PODS) if pod["metadata"]["namespace"] in places]
    await _all(
        _gone(client.delete(PODS, p["metadata"]["name"], p["metadata"]["namespace"], grace_s=0))
        for p in pods
    )
    await _all(
        _gone(client.delete(NODES, node_name(world, side, node["name"])))
        for world in worlds
        for side in (*SIDES, "probe")
        for node in world.nodes
    )


async def _gone(work: Awaitable[Any]) -> None:
    with contextlib.suppress(ApiError):
        await work


async def _all(work: Iterable[Awaitable[Any]]) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(item: Awaitable[Any]) -> None:
        async with slots:
            await item

    await asyncio.gather(*(one(item) for item in work))


# ---- deciding --------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _makeway(client: Client) -> AsyncIterator[None]:
    config = Configuration(makeway=Makeway(victims="kube", scheduler_names=("makeway",)))
    ready = asyncio.Event()
    task = asyncio.create_task(run_scheduler(client, config, SystemClock(), ready))
    try:
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({waiting, task}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _decide(client: Client, worlds: list[World]) -> dict[str, Outcome]:
    await _all(
        client.create(PODS, pod_object(world, side, world.asks))
        for world in worlds
        for side in SIDES
    )
    return await _outcomes(client, [namespace(w, side) for w in worlds for side in SIDES])


async def _probe(
    client: Client, worlds: list[World], outcomes: dict[str, Outcome]
) -> dict[int, bool]:
    """Whether kube-scheduler would take the node that we took."""
    asked = {}
    for world in worlds:
        ours = outcomes[namespace(world, "makeway")]
        if ours.what == "bound":
            asked[world.seed] = world
            pin = ours.node.replace(namespace(world, "makeway"), namespace(world, "probe"))
            await client.create(PODS, pod_object(world, "probe", world.asks, pin=pin))
    found = await _outcomes(client, [namespace(world, "probe") for world in asked.values()])
    return {seed: found[namespace(w, "probe")].what == "bound" for seed, w in asked.items()}


async def _outcomes(client: Client, places: list[str]) -> dict[str, Outcome]:
    """Once everybody was decided on and nothing changed for a while."""
    last: dict[str, Outcome | None] = {}
    quiet_since = asyncio.get_running_loop().time()
    async with asyncio.timeout(DECIDED_WITHIN_S):
        while True:
            now = asyncio.get_running_loop().time()
            found = await _look(client, places)
            if found != last:
                last, quiet_since = found, now
            if all(found.values()) and now - quiet_since >= QUIET_S:
                return {place: outcome for place, outcome in found.items() if outcome}
            await asyncio.sleep(0.5)


async def _look(client: Client, places: list[str]) -> dict[str, Outcome | None]:
    by_place: dict[str, list[Object]] = {place: [] for place in places}
    for pod in await client.list(PODS):
        if pod["metadata"]["namespace"] in by_place:
            by_place[pod["metadata"]["namespace"]].append(pod)
    return {place: _outcome(pods) for place, pods in by_place.items()}


def _outcome(pods: list[Object]) -> Outcome | None:
    (asks,) = [pod for pod in pods if pod["metadata"]["name"] == ASKING] or [{}]
    if not asks:
        return None
    victims = tuple(
        sorted(p["metadata"]["name"] for p in pods if "deletionTimestamp" in p["metadata"])
    )
    where = asks["spec"].get("nodeName") or asks["status"].get("nominatedNodeName", "")
    if victims:
        # It may be bound already: who leaves no longer counts where pods are to be spread.
        return Outcome("preempts", where, victims)
    if asks["spec"].get("nodeName"):
        return Outcome("bound", where)
    told = any(c["type"] == "PodScheduled" for c in asks["status"].get("conditions") or [])
    return Outcome("waits") if told else None


# ---- judging ---------------------------------------------------------------------------------------


def _judge(worlds: list[World], outcomes: dict[str, Outcome], feasible: dict[int, bool]) -> Report:
    report = Report(worlds=len(worlds), differences=[])
    for world in worlds:
        theirs, ours = (outcomes[namespace(world, side)] for side in SIDES)
        report.bound += theirs.what == "bound"
        report.preempting += theirs.what == "preempts"
        report.waiting += theirs.what == "waits"
        said = f"world {world.seed}: kube-scheduler {_shown(theirs)}, makeway {_shown(ours)}"
        if theirs.what != ours.what:
            report.differences.append(said)
        elif theirs.victims != ours.victims:
            if _rank(world, theirs) == _rank(world, ours):
                report.ties += 1
            else:
                report.differences.append(said)
        elif not feasible.get(world.seed, True):
            report.differences.append(f"{said}: its node is not feasible to kube-scheduler")
    return report


def _rank(world: World, outcome: Outcome) -> tuple[int, int, int, int]:
    """What kube-scheduler compares nodes by: equal ranks are ties, and then any node is right."""
    victims = [pod for pod in world.pods if pod["name"] in outcome.victims]
    highest = max(pod["priority"] for pod in victims)
    earliest = min(pod["started"] for pod in victims if pod["priority"] == highest)
    total = sum(pod["priority"] + 2**31 for pod in victims)
    return highest, total, len(victims), -earliest


def _shown(outcome: Outcome) -> str:
    where = outcome.node.rpartition("-")[2]
    match outcome.what:
        case "bound":
            return f"binds to {where}"
        case "preempts":
            return f"evicts {', '.join(outcome.victims)} for {where or 'a node'}"
        case _:
            return "waits"


async def _until(question: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(DECIDED_WITHIN_S):
            while not await question():
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"never happened: {what}") from None
