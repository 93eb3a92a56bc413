"""Who decides: one replica at a time, by a Lease.

The holder renews its lease every two seconds; who does not hold it waits until it has not been renewed for its whole
duration, measured on its own clock from when it saw the last change, since the clocks of two machines differ. The holder
stops writing when its last renewal is older than the renew deadline, well before anybody else may begin: `Fence` is asked
before every single write, so a replica that slept through its lease writes nothing when it wakes up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from makeway.client import ApiError, Client, Connection, UnreachableError
from makeway.client.resource import LEASES, Object
from makeway.control.clock import micro_timestamp
from makeway.control.ports import Clock
from makeway.errors import UserError

log = logging.getLogger(__name__)

READING: Final = frozenset({"GET", "HEAD"})


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Each is shorter than the one before, so that a holder knows that it lost before anybody else may win."""

    lease_s: float = 15.0
    renew_within_s: float = 10.0
    retry_every_s: float = 2.0


class LeadershipLost(UnreachableError):
    """Our lease is no longer fresh; another replica may decide by now. To whoever writes it is as if nobody answered."""

    def __init__(self, name: str) -> None:
        UserError.__init__(
            self,
            "this replica's lease is no longer fresh: it writes nothing, another one goes on.",
            where=f"Lease {name}",
        )


class Monotonic(Protocol):
    """A clock that nobody sets back."""

    def __call__(self) -> float: ...


class Fence:
    """Whether we may write now: True within the renew deadline of the last successful renewal."""

    def __init__(self, renew_within_s: float, monotonic: Monotonic) -> None:
        self._renew_within_s = renew_within_s
        self._monotonic = monotonic
        self._renewed_at = float("-inf")

    def renewed(self, at: float) -> None:
        self._renewed_at = at

    def drop(self) -> None:
        self._renewed_at = float("-inf")

    @property
    def open(self) -> bool:
        return self._monotonic() - self._renewed_at < self._renew_within_s


class FencedClient(Client):
    """A client that refuses to write without a fresh lease. Reading is free to all."""

    def __init__(self, connection: Connection, fence: Fence, name: str, **more: Any) -> None:
        super().__init__(connection, **more)
        self._fence = fence
        self._name = name

    async def _once(self, method: str, *rest: Any, **more: Any) -> bytes:
        # Here, and not at the start of a call: a call that is repeated asks anew each time.
        if method not in READING and not self._fence.open:
            raise LeadershipLost(self._name)
        return await super()._once(method, *rest, **more)


class Election:
    """One replica's part in it. `acquire` returns when it leads; `keep` until it does no longer."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing | None = None,
        monotonic: Monotonic | None = None,
    ) -> None:
        self.timing = timing or Timing()
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._monotonic: Monotonic = monotonic or asyncio.get_running_loop().time
        self.fence = Fence(self.timing.renew_within_s, self._monotonic)
        self._seen: tuple[str, float] = (
            "",
            0.0,
        )  # the lease's last version, and when we saw it first

    async def acquire(self) -> None:
        while not await self._try():
            await asyncio.sleep(self.timing.retry_every_s)
        log.info("%s leads", self._identity)

    async def keep(self) -> None:
        """Renew until the deadline is missed or somebody else holds it."""
        while self.fence.open:
            await asyncio.sleep(self.timing.retry_every_s)
            await self._try()
        raise LeadershipLost(self._name)

    async def release(self) -> None:
        """Give it back, so that the next replica need not wait. Nothing may be written after."""
        held = self.fence.open
        self.fence.drop()
        if not held:
            return
        try:
            lease = await self._get()
            if lease is not None and _holder(lease) == self._identity:
                spec = lease["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.update(LEASES, lease | {"spec": spec})
        except (ApiError, UnreachableError) as error:
            log.warning("the lease was not given back: %s", error)

    async def _try(self) -> bool:
        """One attempt to take or renew the lease; False when it is another's or the API did not agree."""
        asked_at = self._monotonic()
        try:
            async with asyncio.timeout(self.timing.renew_within_s):
                won = await self._take()
        except (ApiError, UnreachableError, TimeoutError) as error:
            if not isinstance(error, ApiError) or not (error.conflict or error.already_exists):
                log.warning("lease %s: %s", self._name, error or "no answer")
            return False
        if won:
            # From before the request: the lease counts from when the server got it, which is later.
            self.fence.renewed(asked_at)
        else:
            self.fence.drop()
        return won

    async def _take(self) -> bool:
        lease = await self._get()
        if lease is None:
            await self._client.create(LEASES, self._new())
            return True
        holder = _holder(lease)
        if holder not in ("", self._identity) and not self._expired(lease):
            return False
        await self._client.update(LEASES, self._renewed(lease))
        return True

    async def _get(self) -> Object | None:
        try:
            return await self._client.get(LEASES, self._name, self._namespace)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    def _expired(self, lease: Object) -> bool:
        version = str(lease["metadata"].get("resourceVersion"))
        now = self._monotonic()
        if version != self._seen[0]:
            self._seen = (version, now)
        lasts = float((lease.get("spec") or {}).get("leaseDurationSeconds") or self.timing.lease_s)
        return now - self._seen[1] >= lasts

    def _new(self) -> Object:
        now = micro_timestamp(self._clock.now())
        return {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": self._spec(now) | {"acquireTime": now, "leaseTransitions": 0},
        }

    def _renewed(self, lease: Object) -> Object:
        old = lease.get("spec") or {}
        now = micro_timestamp(self._clock.now())
        spec = old | self._spec(now)
        if old.get("holderIdentity") != self._identity:
            spec |= {
                "acquireTime": now,
                "leaseTransitions": int(old.get("leaseTransitions") or 0) + 1,
            }
        # With the version that was read: of two who try at once, one gets a conflict.
        return lease | {"spec": spec}

    def _spec(self, now: str) -> Object:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self.timing.lease_s)),
            "renewTime": now,
        }


def _holder(lease: Mapping[str, Any]) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")
