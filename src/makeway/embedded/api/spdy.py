"""SPDY/3.1, as far as kubectl speaks it: many streams over one connection. Bytes in, events out; nothing here does I/O.

A frame is eight bytes and a body. Data frames name a stream; control frames open, answer and reset streams, ping, and say goodbye.
Headers are compressed over the whole life of the connection, beginning with a dictionary that both sides know. Kubernetes' own library
(spdystream) sends no window updates and heeds none, so there is no flow control but that of the connection below.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

VERSION: Final = 3
FIN: Final = 0x01
REFUSED: Final = 3

MAX_CONTROL: Final = 64 * 1024  # kubectl's are below a hundred bytes
MAX_HEADERS: Final = 64 * 1024
_HEAD: Final = 8

# The protocol's dictionary (version 3): words with their lengths before them, then the rest as one text.
_WORDS: Final = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow authorization"
    " cache-control connection content-base content-encoding content-language content-length content-location content-md5 content-range"
    " content-type date etag expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since last-modified"
    " location max-forwards pragma proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding"
    " upgrade user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive"
    " origin"
)
_REST: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative Information"
    "204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error"
    "501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat,"
    " Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,public"
    "privatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _text(content: str) -> bytes:
    encoded = content.encode("latin-1")
    return struct.pack(">I", len(encoded)) + encoded


DICTIONARY: Final = (
    b"".join(_text(word.replace("_", " ")) for word in _WORDS.split()) + _REST.encode()
)


class Control(IntEnum):
    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    PING = 6
    GOAWAY = 7
    HEADERS = 8


class BrokenFrameError(Exception):
    """What came is not SPDY, or more than anybody needs."""


class Opened(NamedTuple):
    stream: int
    headers: dict[str, str]
    last: bool


class Received(NamedTuple):
    """A part of what a stream carries; `last` says that the other side writes no more to it."""

    stream: int
    content: bytes
    last: bool


class Dropped(NamedTuple):
    stream: int


class Pinged(NamedTuple):
    number: int


class Leaving(NamedTuple):
    """The other side opens no more streams."""


Event = Opened | Received | Dropped | Pinged | Leaving


class Framing:
    """One connection: `feed` reads frames, the others write them."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._data: tuple[int, int, bool] | None = None  # stream, bytes still to come, last frame
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def feed(self, content: bytes) -> Iterator[Event]:
        self._waiting += content
        while True:
            event = self._continue_data() if self._data else self._next_frame()
            if event is None:
                return
            if not isinstance(event, _Nothing):
                yield event

    def _continue_data(self) -> Event | None:
        """Large data frames are handed on as they arrive."""
        assert self._data is not None
        stream, missing, last = self._data
        part = bytes(self._waiting[:missing])
        if missing and not part:
            return None
        del self._waiting[: len(part)]
        missing -= len(part)
        self._data = (stream, missing, last) if missing else None
        return Received(stream, part, last and not missing)

    def _next_frame(self) -> Event | _Nothing | None:
        if len(self._waiting) < _HEAD:
            return None
        first, second = struct.unpack_from(">II", self._waiting)
        flags, size = second >> 24, second & 0xFFFFFF
        if not first & 0x80000000:
            del self._waiting[:_HEAD]
            self._data = (first, size, bool(flags & FIN))
            return self._continue_data()
        if first >> 16 & 0x7FFF != VERSION or size > MAX_CONTROL:
            raise BrokenFrameError("not a frame of SPDY/3.1")
        if len(self._waiting) < _HEAD + size:
            return None
        body = bytes(self._waiting[_HEAD : _HEAD + size])
        del self._waiting[: _HEAD + size]
        try:
            return self._control(first & 0xFFFF, flags, body)
        except (struct.error, zlib.error) as error:
            raise BrokenFrameError(f"a broken frame: {error}") from error

    def _control(self, kind: int, flags: int, body: bytes) -> Event | _Nothing:
        match kind:
            case Control.SYN_STREAM:  # stream, associated stream, priority and slot, headers
                (stream,) = struct.unpack_from(">I", body)
                return Opened(stream & 0x7FFFFFFF, self._headers(body[10:]), bool(flags & FIN))
            case Control.RST_STREAM:
                return Dropped(struct.unpack_from(">I", body)[0] & 0x7FFFFFFF)
            case Control.PING:
                return Pinged(struct.unpack_from(">I", body)[0])
            case Control.GOAWAY:
                return Leaving()
            case Control.SYN_REPLY | Control.HEADERS:
                # Nobody asks for these; reading them keeps the compression in step.
                self._headers(body[4:])
        return _NOTHING  # settings, window updates

    def _headers(self, compressed: bytes) -> dict[str, str]:
        content = self._inflate.decompress(compressed, MAX_HEADERS)
        if self._inflate.unconsumed_tail:
            raise BrokenFrameError("too many headers")
        (count,), offset = struct.unpack_from(">I", content), 4
        headers: dict[str, str] = {}
        for _ in range(count):
            name, offset = _read_text(content, offset)
            value, offset = _read_text(content, offset)
            headers[name.lower()] = value
        return headers

    def reply(self, stream: int) -> bytes:
        """Agree to a stream, with no headers."""
        empty = self._deflate.compress(struct.pack(">I", 0))
        empty += self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _frame(Control.SYN_REPLY, struct.pack(">I", stream) + empty)


def data(stream: int, content: bytes, *, last: bool = False) -> bytes:
    return struct.pack(">II", stream, (FIN if last else 0) << 24 | len(content)) + content


def reset(stream: int, why: int) -> bytes:
    return _frame(Control.RST_STREAM, struct.pack(">II", stream, why))


def pong(number: int) -> bytes:
    return _frame(Control.PING, struct.pack(">I", number))


def goaway(last_stream: int) -> bytes:
    return _frame(Control.GOAWAY, struct.pack(">II", last_stream, 0))


class _Nothing:
    """A frame that means nothing to us."""


_NOTHING: Final = _Nothing()


def _frame(kind: Control, body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">II", 0x80000000 | VERSION << 16 | kind, flags << 24 | len(body)) + body


def _read_text(content: bytes, offset: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">I", content, offset)
    end = offset + 4 + size
    if end > len(content):
        raise BrokenFrameError("a header is cut off")
    return content[offset + 4 : end].decode("latin-1"), end
