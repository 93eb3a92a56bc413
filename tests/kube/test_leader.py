"""Leader election on the embedded API's leases, with leases of a moment."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import pytest

from makeway.client import ApiError, Client
from makeway.client.resource import CONFIG_MAPS, LEASES
from makeway.control.clock import SystemClock
from makeway.kube.leader import Election, Fence, FencedClient, LeadershipLost, Timing
from tests.e2e.backends import Embedded, embedded_backend

QUICK = Timing(lease_s=1.0, renew_within_s=0.6, retry_every_s=0.1)


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
async def world() -> AsyncIterator[Embedded]:
    async with embedded_backend() as made:
        yield made


@contextlib.asynccontextmanager
async def client(world: Embedded) -> AsyncIterator[Client]:
    async with Client(world.scheduler(), attempts=1) as made:
        yield made


def election(
    client: Client, identity: str, hands: Hands | None = None, timing: Timing = QUICK
) -> Election:
    return Election(
        client,
        SystemClock(),
        namespace="default",
        name="lead",
        identity=identity,
        timing=timing,
        monotonic=hands,
    )


async def test_the_first_gets_the_lease_and_the_second_does_not(world: Embedded) -> None:
    async with client(world) as api:
        first, second = election(api, "a"), election(api, "b")
        await first.acquire()
        assert first.fence.open
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.acquire(), 0.3)
        assert not second.fence.open
        lease = await api.get(LEASES, "lead", "default")
        assert lease["spec"]["holderIdentity"] == "a"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", lease["spec"]["renewTime"])


async def test_a_lease_that_is_not_renewed_is_taken_when_its_time_is_over(world: Embedded) -> None:
    async with client(world) as api:
        hands = Hands()
        await election(api, "a", hands).acquire()
        second = election(api, "b", hands)
        assert not await second._try()
        hands.at += 0.9
        assert not await second._try()
        hands.at += 0.2
        assert await second._try()
        lease = await api.get(LEASES, "lead", "default")
        assert lease["spec"]["holderIdentity"] == "b"
        assert lease["spec"]["leaseTransitions"] == 1


async def test_the_waiting_one_counts_from_what_it_saw_not_from_what_is_written(
    world: Embedded,
) -> None:
    """The holder's clock may be hours off."""
    async with client(world) as api:
        hands = Hands()
        holder = election(api, "a", hands)
        await holder.acquire()
        lease = await api.get(LEASES, "lead", "default")
        lease["spec"]["renewTime"] = "2001-01-01T00:00:00.000000Z"
        await api.update(LEASES, lease)
        assert not await election(api, "b", hands)._try()


async def test_what_is_given_back_is_taken_at_once(world: Embedded) -> None:
    async with client(world) as api:
        first, second = election(api, "a"), election(api, "b")
        await first.acquire()
        await first.release()
        assert not first.fence.open
        assert await second._try()


async def test_of_two_who_try_at_once_one_wins(world: Embedded) -> None:
    async with client(world) as api:
        hands = Hands()
        # With the usual times: who is slow to get an answer has not lost.
        rivals = [election(api, f"r{n}", hands, Timing()) for n in range(8)]
        won = await asyncio.gather(*(rival._try() for rival in rivals))
        assert sum(won) == 1


async def test_a_holder_that_cannot_renew_says_so_before_anybody_else_may_begin(
    world: Embedded,
) -> None:
    async with client(world) as api:
        holder = election(api, "a")
        await holder.acquire()
        began = asyncio.get_running_loop().time()
        # Somebody else wrote himself into it: what an operator would do by hand.
        lease = await api.get(LEASES, "lead", "default")
        lease["spec"]["holderIdentity"] = "somebody"
        await api.update(LEASES, lease)
        with pytest.raises(LeadershipLost):
            await holder.keep()
        assert asyncio.get_running_loop().time() - began < QUICK.lease_s


async def test_without_a_fresh_lease_nothing_is_written_and_everything_can_be_read(
    world: Embedded,
) -> None:
    hands = Hands()
    fence = Fence(10.0, hands)
    note = {"metadata": {"name": "note", "namespace": "default"}, "data": {"a": "b"}}
    async with FencedClient(world.scheduler(), fence, "lead") as api:
        with pytest.raises(LeadershipLost):
            await api.create(CONFIG_MAPS, note)
        fence.renewed(hands.at)
        await api.create(CONFIG_MAPS, note)
        hands.at += 10.0
        with pytest.raises(LeadershipLost):
            await api.delete(CONFIG_MAPS, "note", "default")
        assert (await api.get(CONFIG_MAPS, "note", "default"))["data"] == {"a": "b"}


async def test_a_call_that_is_repeated_asks_the_fence_each_time(world: Embedded) -> None:
    """A replica that slept between two attempts must not go on with the second."""
    hands = Hands()
    fence = Fence(10.0, hands)
    fence.renewed(hands.at)
    attempts = 0

    class Stumbling(FencedClient):
        async def _once(self, *args: object, **more: object) -> bytes:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                hands.at += 60
                raise ApiError(500, "", "the store fails over")
            return await super()._once(*args, **more)  # type: ignore[arg-type]

    async with Stumbling(world.scheduler(), fence, "lead") as api:
        with pytest.raises(LeadershipLost):
            await api.patch(CONFIG_MAPS, "note", {"data": {"a": "c"}}, "default")
    assert attempts == 2
