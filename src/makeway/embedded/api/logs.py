"""`kubectl logs`: the files that the node writes, with follow, tail, since and timestamps.

A container's log is `logs/<pod uid>/<container>.log` in the home, the run before it
`<container>.previous.log`. Each line is stored as `<RFC 3339 time with nanoseconds>
<stdout|stderr> F <text>` (a container runtime's form), so that time and stream survive; lines of
any other form are shown as they are.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from makeway.control.clock import parse_timestamp
from makeway.embedded.api.http import Answer, Request, Send, plain
from makeway.kinds.serving.columns import at
from makeway.kinds.serving.refusal import Obj, bad_request

_LINE = re.compile(rb"^(\d{4}-\d\d-\d\dT\S+) (?:stdout|stderr) ([FP]) ?(.*)$", re.DOTALL)
_POLL_S = 0.1


def log_path(home: Path, uid: str, container: str, *, previous: bool = False) -> Path:
    return home / "logs" / uid / f"{container}{'.previous' if previous else ''}.log"


def chosen_container(pod: Obj, asked: str) -> str:
    name = pod["metadata"]["name"]
    containers = [c["name"] for c in at(pod, "spec", "containers") or []]
    others = [c["name"] for c in at(pod, "spec", "initContainers") or []]
    if asked:
        if asked not in containers + others:
            raise bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    if len(containers) == 1:
        return str(containers[0])
    default = (pod["metadata"].get("annotations") or {}).get(
        "kubectl.kubernetes.io/default-container"
    )
    if default in containers:
        return str(default)
    raise bad_request(
        f"a container name must be specified for pod {name}, choose one of:"
        f" [{' '.join(containers)}]"
    )


async def serve_log(
    request: Request,
    send: Send,
    home: Path,
    pod: Obj,
    now: float,
    more_to_come: Callable[[str], bool],
) -> Answer | None:
    """`more_to_come` says whether a container may still write."""
    container = chosen_container(pod, request.query.get("container", ""))
    previous = request.flag("previous")
    path = log_path(home, pod["metadata"]["uid"], container, previous=previous)
    name = pod["metadata"]["name"]
    if not path.exists():
        _explain_missing(pod, name, container, previous=previous)
    view = _View(request, now)
    if not request.flag("follow"):
        return plain(view.text(path).decode("utf-8", "replace"))
    await _follow(request, send, path, view, lambda: more_to_come(container))
    return None


def _explain_missing(pod: Obj, name: str, container: str, *, previous: bool) -> None:
    if previous:
        raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
    if not at(pod, "spec", "nodeName"):
        # A real server answers with nothing for a pod that no node runs yet.
        return
    for status in at(pod, "status", "containerStatuses") or []:
        waiting = at(status, "state", "waiting")
        if status.get("name") == container and waiting:
            why = waiting.get("reason", "ContainerCreating")
            raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: {why}')


class _View:
    """Which lines a request wants, and how they look."""

    def __init__(self, request: Request, now: float) -> None:
        self._timestamps = request.flag("timestamps")
        self._tail = request.number("tailLines")
        self._limit = request.number("limitBytes")
        since = request.number("sinceSeconds")
        self._since = now - since if since else 0.0
        if request.query.get("sinceTime"):
            self._since = parse_timestamp(request.query["sinceTime"])

    def text(self, path: Path) -> bytes:
        lines = list(self.lines(path.read_bytes())) if path.exists() else []
        if self._tail is not None:
            lines = lines[len(lines) - min(self._tail, len(lines)) :]
        text = b"".join(lines)
        return text if self._limit is None else text[: self._limit]

    def beginning(self, path: Path) -> tuple[bytes, int]:
        """What a follower sees first, and where the rest will begin."""
        size = path.stat().st_size if path.exists() else 0
        return self.text(path), size

    def lines(self, content: bytes) -> Iterator[bytes]:
        return _lines(content, self._since, timestamps=self._timestamps)


def _lines(content: bytes, since: float, *, timestamps: bool) -> Iterator[bytes]:
    for raw in content.splitlines(keepends=True):
        found = _LINE.match(raw.rstrip(b"\n"))
        if not found:
            yield raw
            continue
        time, part, text = found.groups()
        if since and parse_timestamp(_microseconds(time.decode())) < since:
            continue
        shown = time + b" " + text if timestamps else text
        yield shown if part == b"P" else shown + b"\n"


def text_of(content: bytes) -> bytes:
    """Stored lines as their program wrote them."""
    return b"".join(_lines(content, 0.0, timestamps=False))


def _microseconds(text: str) -> str:
    """Nanoseconds are more than Python's parser takes."""
    return re.sub(r"(\.\d{6})\d+", r"\1", text)


async def _follow(
    request: Request, send: Send, path: Path, view: _View, more_to_come: Callable[[], bool]
) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    gone = asyncio.ensure_future(request.disconnected())
    try:
        first, offset = view.beginning(path)
        if first:
            await send({"type": "http.response.body", "body": first, "more_body": True})
        while not gone.done():
            # Asked before reading, so that what was written just before the end is still sent.
            ended = not more_to_come()
            content, offset = read_more(path, offset)
            if content:
                await send(
                    {
                        "type": "http.response.body",
                        "body": b"".join(view.lines(content)),
                        "more_body": True,
                    }
                )
            elif ended:
                break
            else:
                await asyncio.wait([gone], timeout=_POLL_S)
        await send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()


def read_more(path: Path, offset: int) -> tuple[bytes, int]:
    """Whole lines after an offset."""
    if not path.exists():
        return b"", 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < offset:
            offset = 0  # a new run of the container began the file anew
        file.seek(offset)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    return whole, offset + len(whole)
