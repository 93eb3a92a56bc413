"""SPDY by the byte: frames however they are cut, garbage, and who may not come in."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import zlib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.embedded.api.spdy import (
    DICTIONARY,
    BrokenFrameError,
    Dropped,
    Event,
    Framing,
    Leaving,
    Opened,
    Pinged,
    Received,
)
from makeway.embedded.server import ApiServer, serving


class Client:
    """The other side's compression."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def open(self, stream: int, *, last: bool = False, **headers: str) -> bytes:
        pairs = [part for pair in headers.items() for part in pair]
        block = struct.pack(">I", len(headers))
        block += b"".join(struct.pack(">I", len(part)) + part.encode() for part in pairs)
        packed = self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return frame(1, struct.pack(">IIH", stream, 0, 0) + packed, flags=int(last))


def frame(kind: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">II", 0x80030000 | kind, flags << 24 | len(body)) + body


def data(stream: int, content: bytes, *, last: bool = False) -> bytes:
    return struct.pack(">II", stream, int(last) << 24 | len(content)) + content


def conversation() -> bytes:
    client = Client()
    return b"".join(
        [
            client.open(1, streamtype="error", port="80", requestid="0"),
            client.open(3, streamtype="data", port="80", requestid="0"),
            frame(4, struct.pack(">I", 0)),  # settings
            data(3, b"hello"),
            frame(6, struct.pack(">I", 7)),
            data(3, b"", last=True),
            client.open(5, last=True, streamtype="stdin"),
            frame(3, struct.pack(">II", 5, 5)),
            frame(7, struct.pack(">II", 5, 0)),
        ]
    )


def joined(events: list[Event]) -> list[Event]:
    """Parts of the same stream as one."""
    whole: list[Event] = []
    for event in events:
        before = whole[-1] if whole else None
        if isinstance(event, Received) and isinstance(before, Received) and not before.last:
            whole[-1] = Received(event.stream, before.content + event.content, event.last)
        else:
            whole.append(event)
    return whole


@given(cuts=st.lists(st.integers(1, len(conversation())), max_size=30))
def test_frames_mean_the_same_however_they_are_cut(cuts: list[int]) -> None:
    whole, framing = conversation(), Framing()
    ends = [0, *sorted(cuts), len(whole)]
    parts = [whole[begin:end] for begin, end in pairwise(ends)]
    events = [event for part in parts for event in framing.feed(part)]
    assert joined(events) == [
        Opened(1, {"streamtype": "error", "port": "80", "requestid": "0"}, False),
        Opened(3, {"streamtype": "data", "port": "80", "requestid": "0"}, False),
        Received(3, b"hello", False),
        Pinged(7),
        Received(3, b"", True),
        Opened(5, {"streamtype": "stdin"}, True),
        Dropped(5),
        Leaving(),
    ]


@given(before=st.booleans(), garbage=st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else_happens(before: bool, garbage: bytes) -> None:
    framing = Framing()
    with contextlib.suppress(BrokenFrameError):
        list(framing.feed((conversation() if before else b"") + garbage))


def test_headers_that_unpack_to_much_are_refused() -> None:
    deflate = zlib.compressobj(zdict=DICTIONARY)
    bomb = deflate.compress(bytes(5_000_000)) + deflate.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(BrokenFrameError):
        list(Framing().feed(frame(1, struct.pack(">IIH", 1, 0, 0) + bomb)))


async def ask(server: ApiServer, path: str, headers: str, after: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_unix_connection(server.socket_path)
    upgrade = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{upgrade}{headers}\r\n".encode())
    writer.write(after)
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), 5)
    return b""


EXEC = "/api/v1/namespaces/default/pods/nobody/exec?command=true"


async def test_nobody_comes_in_without_a_token(home: Path) -> None:
    async with serving(home) as server:
        assert (await ask(server, EXEC, "")).startswith(b"HTTP/1.1 401 ")
        asked = "Authorization: Bearer nonsense\r\n"
        assert (await ask(server, EXEC, asked)).startswith(b"HTTP/1.1 401 ")


async def test_what_cannot_be_talked_to_is_an_ordinary_answer(home: Path) -> None:
    async with serving(home) as server:
        token = f"Authorization: Bearer {server.token}\r\n"
        for path in (EXEC, "/api/v1/namespaces/default/services/x", "/nowhere", "/"):
            answer = await ask(server, path, token, after=b"garbage")
            assert answer.startswith(b"HTTP/1.1 404 "), answer
            assert b'"kind":"Status"' in answer
