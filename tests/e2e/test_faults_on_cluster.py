"""It goes on by itself: a real API server that is far away, busy, restarted, or has forgotten what was.

pytest tests/e2e --backend kube
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable

import pytest

from makeway.client import Connection
from tests.e2e.backends import control_plane, kube_available
from tests.e2e.faulty import Way, faulty
from tests.e2e.harness import Machine, chosen_backend, machine
from tests.e2e.test_cluster import (
    NODE,
    PREEMPTIONS,
    PRIORITIES,
    QUEUE,
    count_running,
    job,
    prioritized,
    runs,
)

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(
        chosen_backend() != "kube" or not kube_available(),
        reason="needs a real API server: pytest --backend kube",
    ),
]
OWN_SERVER = pytest.mark.skipif(
    os.environ.get("MAKEWAY_CLUSTER") == "existing", reason="restarts the server"
)


def bad(
    ways: list[Way],
) -> Callable[[Connection], contextlib.AbstractAsyncContextManager[Connection]]:
    @contextlib.asynccontextmanager
    async def through(to: Connection) -> AsyncIterator[Connection]:
        async with faulty(to) as way:
            ways.append(way)
            yield Connection(way.url, credentials=to.credentials)

    return through


async def all_of(box: Machine, count: int, what: str) -> None:
    async def there() -> bool:
        return await count_running(box.client, count)

    await box.until(there, timeout_s=60, what=what)


async def one_runs(box: Machine) -> None:
    await box.apply(NODE + "---" + QUEUE)
    await box.apply(job("before"))
    await all_of(box, 1, "the first runs")


async def test_it_goes_on_when_all_watches_are_cut() -> None:
    ways: list[Way] = []
    async with machine(through=bad(ways)) as box:
        await one_runs(box)
        ways[0].cut_watches()
        await box.apply(job("after"))
        await all_of(box, 2, "both run")
        assert ways[0].happened["cut"] > 5


async def test_it_lists_anew_when_the_server_has_forgotten_what_it_knew() -> None:
    ways: list[Way] = []
    async with machine(through=bad(ways)) as box:
        await one_runs(box)
        ways[0].forget_versions(watches=40)
        ways[0].cut_watches()
        await box.kubectl("delete", "job", "before")
        await box.apply(job("after", cpu=4))
        await all_of(box, 1, "the second has the room of the first")
        assert ways[0].happened["410"] > 5
        assert {key for key, _ in box.scheduler.projection.faults.items()} == set()


@pytest.mark.parametrize("code", [429, 500])
async def test_a_preemption_is_finished_although_the_server_refuses(code: int) -> None:
    ways: list[Way] = []
    async with machine(through=bad(ways)) as box:
        await box.apply(NODE + "---" + QUEUE + "---" + PRIORITIES)
        await box.apply(prioritized("low", "low"))
        await all_of(box, 1, "the low one runs")
        ways[0].refuse(code, times=15)
        await box.apply(prioritized("high", "high"))

        async def only_high() -> bool:
            return await runs(box.client, {"high"})

        await box.until(only_high, timeout_s=60, what="only the high one runs")
        assert ways[0].happened[str(code)] == 15
        assert len(await box.client.list(PREEMPTIONS)) == 1


@OWN_SERVER
@pytest.mark.parametrize("compacted", [False, True])
async def test_it_goes_on_when_the_api_server_restarts(compacted: bool) -> None:
    """Where etcd was compacted meanwhile, nothing that any watch could go on from is left."""
    async with machine() as box:
        await one_runs(box)
        plane = control_plane()
        await asyncio.to_thread(plane.stop_one, "kube-apiserver", kill=True)
        if compacted:
            await asyncio.to_thread(plane.compact)
        await asyncio.to_thread(plane.start_server)
        await box.apply(job("after"))
        await all_of(box, 2, "both run")
