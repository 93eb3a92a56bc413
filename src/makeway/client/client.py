"""Single calls to the Kubernetes API.

Objects are plain dicts. An answer that is no success becomes an `ApiError`, which carries the
server's `Status`; no answer at all becomes `UnreachableError`. Calls that may safely be repeated
are, with growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from yarl import URL

from makeway.client.kubeconfig import Connection, Identity
from makeway.client.resource import Object, Resource
from makeway.client.wire import NotConnectedError, TcpDoor, UnixDoor, Wire
from makeway.errors import UserError

log = logging.getLogger(__name__)

JSON = "application/json"
# The object's metadata alone. Of a deletion the server computes half as long when it need not write out the rest.
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}
# 500 is said while the store fails over; the others by what stands in front of the server.
PASSING_TROUBLES = frozenset({500, 502, 503, 504})
IDEMPOTENT = frozenset({"GET", "PUT", "PATCH", "DELETE"})
ATTEMPTS = 6
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 8.0
CALL_TIMEOUT_S = 60.0
CALL_TIMEOUT = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)


class ApiError(Exception):
    """The server refused; `reason` and `details` are those of its `Status`."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details: Object = details or {}
        self.hint = ""  # what the server's Warning header adds

    @property
    def not_found(self) -> bool:
        return self.code == 404

    @property
    def already_exists(self) -> bool:
        return self.code == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """Somebody else wrote first, or the precondition does not hold."""
        return self.code == 409 and self.reason != "AlreadyExists"

    @property
    def gone(self) -> bool:
        """The version asked for is too old: list again."""
        return self.code == 410

    @property
    def invalid(self) -> bool:
        return self.code == 422

    @property
    def retry_after(self) -> float | None:
        """How many seconds the server asked to wait, if it did."""
        seconds = self.details.get("retryAfterSeconds")
        return float(seconds) if seconds else None


class UnreachableError(UserError):
    """Nobody answered."""

    def __init__(self, server: str, why: str) -> None:
        super().__init__(
            f"the API server does not answer: {why}.",
            where=server,
            hint="Is it running? On one machine: makeway status",
        )


class Client:
    """`async with Client(from_kubeconfig()) as client: await client.get(PODS, "web", "a")`."""

    def __init__(
        self,
        connection: Connection,
        *,
        concurrency: int = 0,
        attempts: int = ATTEMPTS,
        user_agent: str = "makeway",
    ) -> None:
        """`concurrency` 0 sets no limit to the calls under way together."""
        self.connection = connection
        self._concurrency = concurrency
        self._attempts = attempts
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None
        self.under_way = 0  # calls that wait for their answer; watches do not count
        self._direct = not concurrency and reached_directly(connection)
        self._wire: Wire | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    # One object

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        return await self.request("GET", resource.path(namespace, name))

    async def create(
        self, resource: Resource, obj: Object, namespace: str = "", *, subresource: str = ""
    ) -> Object:
        """With a subresource (`binding`, `eviction`) the object is posted under its own name."""
        metadata = obj.get("metadata") or {}
        place = namespace or str(metadata.get("namespace") or "")
        name = str(metadata["name"]) if subresource else ""
        return await self.request("POST", resource.path(place, name, subresource), body=obj)

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        metadata = obj["metadata"]
        path = resource.path(str(metadata.get("namespace") or ""), metadata["name"], subresource)
        return await self.request("PUT", path, body=obj)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Object | list[Object],
        namespace: str = "",
        *,
        kind: str = "merge",
        subresource: str = "",
        field_manager: str = "",
        force: bool = False,
    ) -> Object:
        """`kind` is merge, json, strategic or apply; apply names its `field_manager`."""
        params: dict[str, str] = {}
        if field_manager or kind == "apply":
            params["fieldManager"] = field_manager or self._user_agent
        if force:
            params["force"] = "true"
        return await self.request(
            "PATCH",
            resource.path(namespace, name, subresource),
            body=body,
            params=params,
            content_type=PATCH_TYPES[kind],
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_s: int | None = None,
        propagation: str = "",
        whole_answer: bool = True,
    ) -> Object:
        """`uid` makes sure that what is deleted is what was seen, not a successor of that name.

        Without a whole answer it holds the metadata of what goes, and need not hold more.
        """
        options: Object = {}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if propagation:
            options["propagationPolicy"] = propagation
        if options:
            options = {"apiVersion": "v1", "kind": "DeleteOptions"} | options
        return await self.request(
            "DELETE",
            resource.path(namespace, name),
            body=options or None,
            accept=JSON if whole_answer else METADATA,
        )

    # Many objects

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
    ) -> list[Object]:
        """All items, however many pages they take."""
        params = selectors(label_selector, field_selector)
        items: list[Object] = []
        async for page in self.pages(resource.path(namespace), params, limit):
            items += msgspec.json.decode(page)["items"] or []
        return items

    async def pages(self, path: str, params: Mapping[str, str], limit: int) -> AsyncIterator[bytes]:
        """The raw pages of a list."""
        token = ""
        while True:
            more = {"continue": token} if token else {}
            page = await self.raw("GET", path, params={**params, "limit": str(limit), **more})
            yield page
            token = _continue(page)
            if not token:
                return

    # Any request

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Object:
        answer = await self.raw(
            method, path, body=body, params=params, content_type=content_type, accept=accept
        )
        decoded: Object = msgspec.json.decode(answer) if answer else {}
        return decoded

    async def raw(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> bytes:
        """The answer's bytes; the body may be bytes already."""
        self.under_way += 1
        try:
            return await self._raw(method, path, body, params, content_type, accept)
        finally:
            self.under_way -= 1

    async def _raw(
        self,
        method: str,
        path: str,
        body: Any,
        params: Mapping[str, str] | None,
        content_type: str,
        accept: str,
    ) -> bytes:
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {"Accept": accept}
        if data is not None:
            headers["Content-Type"] = content_type
        renew = False
        for attempt in range(1, self._attempts + 1):
            last = attempt == self._attempts
            try:
                return await self._once(method, path, data, params, headers, renew=renew)
            except ApiError as error:
                # Credentials may have been rotated a moment ago: show new ones, once.
                if error.code == 401 and not renew:
                    renew = True
                    continue
                if last or not _may_repeat(method, path, error):
                    raise
                await asyncio.sleep(max(error.retry_after or 0.0, pause_s(attempt)))
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if last or not _may_resend(method, error):
                    raise UnreachableError(self.connection.server, _why(error)) from error
                await asyncio.sleep(pause_s(attempt))
        raise AssertionError("the last attempt returns or raises")

    async def _once(
        self,
        method: str,
        path: str,
        data: bytes | None,
        params: Mapping[str, str] | None,
        headers: dict[str, str],
        *,
        renew: bool,
    ) -> bytes:
        if self._direct:
            identity = await self.connection.credentials.identity(renew=renew)
            return await self._once_by_wire(identity, method, path, data, params, headers)
        async with await self._send(method, path, data, params, headers, renew=renew) as answer:
            content = await answer.read()
            if answer.status >= 400:
                raise error_from(answer.status, content, answer.headers)
            return content

    async def _once_by_wire(
        self,
        identity: Identity,
        method: str,
        path: str,
        data: bytes | None,
        params: Mapping[str, str] | None,
        headers: dict[str, str],
    ) -> bytes:
        headers = {**headers, "User-Agent": self._user_agent}
        if identity.token:
            headers["Authorization"] = f"Bearer {identity.token}"
        wire = self._wire_of(identity)
        answer = await wire.call(method, path, params, headers, data, CALL_TIMEOUT_S)
        if answer.status >= 400:
            raise error_from(answer.status, answer.content, answer.headers)
        return answer.content

    def _wire_of(self, identity: Identity) -> Wire:
        """Connections belong to the certificate they were opened with."""
        tls = self.connection.tls(identity)
        if self._wire is None or self._wire.door.tls is not tls:
            if self._wire is not None:
                self._wire.close()
            self._wire = Wire(door_of(self.connection, tls))
        return self._wire

    async def stream(
        self, path: str, params: Mapping[str, str], read_timeout_s: float
    ) -> AsyncIterator[bytes]:
        """The lines of a watch, of any length, until the server ends it."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=read_timeout_s)
        for renew in (False, True):
            opened = await self._send(
                "GET", path, None, params, {"Accept": JSON}, renew=renew, timeout=timeout
            )
            async with opened as answer:
                if answer.status == 401 and not renew:
                    continue
                if answer.status >= 400:
                    raise error_from(answer.status, await answer.read(), answer.headers)
                # Not `readline()`: it refuses lines above 512 KiB.
                async for line in _lines(answer.content):
                    yield line
                return

    async def _send(
        self,
        method: str,
        path: str,
        data: bytes | None,
        params: Mapping[str, str] | None,
        headers: dict[str, str],
        *,
        renew: bool,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        identity = await self.connection.credentials.identity(renew=renew)
        if identity.token:
            headers = {**headers, "Authorization": f"Bearer {identity.token}"}
        return await self._open_session().request(
            method,
            URL(self.connection.url + path, encoded=True),
            data=data,
            params=params,
            headers=headers,
            ssl=self._tls(identity),
            server_hostname=self.connection.server_name or None,
            proxy=self.connection.proxy or None,
            timeout=timeout or CALL_TIMEOUT,
        )

    def _tls(self, identity: Identity) -> ssl.SSLContext | bool:
        return self.connection.tls(identity) or True

    def _open_session(self) -> aiohttp.ClientSession:
        # Made at the first call: a session belongs to the event loop that runs it.
        if self._session is None:
            connector: aiohttp.BaseConnector
            if self.connection.unix_path:
                connector = aiohttp.UnixConnector(
                    self.connection.unix_path, limit=self._concurrency
                )
            else:
                connector = aiohttp.TCPConnector(limit=self._concurrency)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers={"User-Agent": self._user_agent},
                # Where the environment names a proxy for this server; looking for one costs on every call.
                trust_env=not reached_directly(self.connection),
                # An API server sets no cookies; looking for some costs on every call.
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def reached_directly(connection: Connection) -> bool:
    """Nothing stands between: no proxy of the kubeconfig, and none of the environment."""
    if connection.unix_path:
        return True
    address = urlsplit(connection.server)
    return not connection.proxy and (
        address.scheme not in getproxies() or bool(proxy_bypass(address.hostname or ""))
    )


def door_of(connection: Connection, tls: ssl.SSLContext | None) -> UnixDoor | TcpDoor:
    if connection.unix_path:
        return UnixDoor(connection.unix_path)
    address = urlsplit(connection.server)
    secure = address.scheme == "https"
    return TcpDoor(
        address=address.hostname or "",
        port=address.port or (443 if secure else 80),
        host=address.netloc.rpartition("@")[2],
        prefix=address.path,
        tls=tls,
        server_name=connection.server_name,
    )


def selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    given = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in given.items() if value}


def pause_s(attempt: int) -> float:
    """Doubling, with jitter so that many clients do not come back together."""
    longest: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt - 1, 10))
    return longest * random.uniform(0.5, 1.0)


class _Status(msgspec.Struct):
    reason: str = ""
    message: str = ""
    details: Object | None = None
    code: int = 0


def error_from(code: int, content: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
    """A Status becomes itself; another body (a proxy's page) its first 500 characters."""
    try:
        status = msgspec.json.decode(content, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = _Status()
    message = status.message or content[:500].decode(errors="replace").strip()
    details = dict(status.details or {})
    asked = (headers or {}).get("Retry-After", "")
    if asked.isdigit() and "retryAfterSeconds" not in details:
        details["retryAfterSeconds"] = int(asked)
    error = ApiError(code, status.reason, message or f"the server answered {code}", details)
    error.hint = _warning((headers or {}).get("Warning", ""))
    return error


def _warning(header: str) -> str:
    """`299 - "text"` → text."""
    found = re.match(r'299 \S+ "(.*)"$', header)
    return found.group(1).replace('\\"', '"') if found else ""


def _may_repeat(method: str, path: str, error: ApiError) -> bool:
    if error.code == 429:
        # To an eviction, 429 is the answer itself: a disruption budget says no.
        return not path.endswith("/eviction")
    return error.code in PASSING_TROUBLES and method in IDEMPOTENT


def _may_resend(method: str, error: Exception) -> bool:
    """A create that was never sent can be sent again; one that may have arrived cannot."""
    if isinstance(error, ssl.SSLCertVerificationError | aiohttp.InvalidURL):
        return False
    unsent = isinstance(error, aiohttp.ClientConnectorError | NotConnectedError)
    return unsent or method in IDEMPOTENT


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CALL_TIMEOUT_S:.0f} s"
    return str(error) or type(error).__name__


class _ListMeta(msgspec.Struct, rename="camel"):
    continue_: str = msgspec.field(name="continue", default="")
    resource_version: str = ""


class _ListHead(msgspec.Struct):
    metadata: _ListMeta


def _continue(page: bytes) -> str:
    return msgspec.json.decode(page, type=_ListHead).metadata.continue_


def list_version(page: bytes) -> str:
    return msgspec.json.decode(page, type=_ListHead).metadata.resource_version


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest: list[bytes] = []
    async for chunk in content.iter_any():
        *whole, tail = chunk.split(b"\n")
        for line in whole:
            yield b"".join([*rest, line])
            rest = []
        if tail:
            rest.append(tail)
    if rest:
        yield b"".join(rest)
