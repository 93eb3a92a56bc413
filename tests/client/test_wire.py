"""Calls over a Unix socket: reused connections, cut ones, late answers."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from makeway.client.wire import NotConnectedError, TcpDoor, UnixDoor, Wire

HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nretry-after: 7\r\n\r\nhello"


class Server:
    """Answers every request of a connection with the same bytes; None closes it instead."""

    def __init__(self, path: Path, answer: bytes | None = HELLO) -> None:
        self.path = path
        self.answer = answer
        self.connections = 0
        self.requests: list[bytes] = []
        self._serving: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.append(task)
        while head := await _request(reader):
            self.requests.append(head)
            if self.answer is None:
                break
            writer.write(self.answer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _request(reader: asyncio.StreamReader) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
    return head + (await reader.readexactly(int(length)) if length else b"")


async def _get(wire: Wire, timeout_s: float = 5.0) -> bytes:
    answer = await wire.call("GET", "/api", None, {}, None, timeout_s)
    return answer.content


async def test_one_connection_serves_calls_that_follow_each_other(tmp_path: Path) -> None:
    wire = Wire(UnixDoor(str(tmp_path / "s")))
    async with Server(tmp_path / "s") as server:
        for _ in range(3):
            assert await _get(wire) == b"hello"
        wire.close()
    assert server.connections == 1


async def test_calls_side_by_side_have_connections_of_their_own(tmp_path: Path) -> None:
    wire = Wire(UnixDoor(str(tmp_path / "s")))
    async with Server(tmp_path / "s") as server:
        assert await asyncio.gather(*(_get(wire) for _ in range(4))) == [b"hello"] * 4
        wire.close()
    assert server.connections == 4


async def test_says_what_to_do_with_which_body(tmp_path: Path) -> None:
    wire = Wire(UnixDoor(str(tmp_path / "s")))
    async with Server(tmp_path / "s") as server:
        answer = await wire.call("POST", "/pods", {"a": "b c"}, {"X-Y": "z"}, b"{}", 5.0)
        wire.close()
    assert server.requests == [
        b"POST /pods?a=b+c HTTP/1.1\r\nHost: localhost\r\nX-Y: z\r\nContent-Length: 2\r\n\r\n{}"
    ]
    assert (answer.status, answer.headers["Retry-After"]) == (200, "7")


async def test_reads_chunked_answers(tmp_path: Path) -> None:
    chunked = b"HTTP/1.1 409 Conflict\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    wire = Wire(UnixDoor(str(tmp_path / "s")))
    async with Server(tmp_path / "s", chunked):
        answer = await wire.call("GET", "/", None, {}, None, 5.0)
        wire.close()
    assert (answer.status, answer.content) == (409, b"hello")


async def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(NotConnectedError):
        await _get(Wire(UnixDoor(str(tmp_path / "s"))))


async def test_a_cut_connection_fails_the_call_and_not_the_next(tmp_path: Path) -> None:
    wire = Wire(UnixDoor(str(tmp_path / "s")))
    async with Server(tmp_path / "s", None) as server:
        with pytest.raises(ConnectionError):
            await _get(wire)
        server.answer = HELLO
        assert await _get(wire) == b"hello"
        wire.close()


async def test_a_late_answer_is_not_taken_for_the_next_call(tmp_path: Path) -> None:
    wire = Wire(UnixDoor(str(tmp_path / "s")))
    async with Server(tmp_path / "s", b"") as server:
        with pytest.raises(TimeoutError):
            await _get(wire, timeout_s=0.01)
        server.answer = HELLO
        assert await _get(wire) == b"hello"
        wire.close()
    assert server.connections == 2


async def test_what_is_no_http_is_an_error(tmp_path: Path) -> None:
    wire = Wire(UnixDoor(str(tmp_path / "s")))
    async with Server(tmp_path / "s", b"SSH-2.0\r\n\r\n"):
        with pytest.raises(ConnectionError):
            await _get(wire)


async def test_over_tcp_it_says_the_servers_name_and_the_path_before_all_paths() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await _request(reader))
        writer.write(HELLO)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    wire = Wire(TcpDoor("127.0.0.1", port, host="api.example:6443", prefix="/k8s/clusters/c1"))
    async with server:
        assert await _get(wire) == b"hello"
        wire.close()
    assert seen == [b"GET /k8s/clusters/c1/api HTTP/1.1\r\nHost: api.example:6443\r\n\r\n"]
