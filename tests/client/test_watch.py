from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from makeway.client import Client, Reflector
from makeway.client.resource import PODS, Object
from tests.client.fake_api import FakeApi, pod, status


class Metadata(msgspec.Struct):
    name: str
    labels: dict[str, str]


class Pod(msgspec.Struct):
    metadata: Metadata


class Heard:
    """The events of a reflector, and a way to wait for some."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def __call__(self, kind: str, obj: Object) -> None:
        self.events.append((kind, obj["metadata"]["name"]))


@asynccontextmanager
async def following(reflector: Reflector[Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(reflector.run())
    try:
        await asyncio.wait_for(reflector.synced.wait(), 5)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.002)


async def watching(api: FakeApi) -> None:
    await until(lambda: api.watchers)


async def test_lists_then_follows(api: FakeApi, client: Client) -> None:
    api.put(pod("old"))
    heard = Heard()
    reflector = Reflector[Object](client, PODS, heard)
    async with following(reflector):
        await watching(api)
        api.put(pod("new"))
        api.put(pod("new", run="yes"), "MODIFIED")
        api.put(pod("old"), "DELETED")
        await until(lambda: len(heard.events) == 4)
    assert heard.events == [
        ("ADDED", "old"),
        ("ADDED", "new"),
        ("MODIFIED", "new"),
        ("DELETED", "old"),
    ]
    assert list(reflector.cache) == [("a", "new")]
    assert reflector.cache["a", "new"]["metadata"]["labels"] == {"run": "yes"}


async def test_pages_selectors_and_versions_are_asked_for(api: FakeApi, client: Client) -> None:
    for number in range(5):
        api.put(pod(f"p{number}"))
    reflector = Reflector[Object](
        client, PODS, namespace="a", label_selector="x=y", field_selector="z=1", page_limit=2
    )
    async with following(reflector):
        await watching(api)
    assert len(reflector.cache) == 5
    watch = api.requests[-1]
    assert watch.path == "/api/v1/namespaces/a/pods"
    assert watch.query["resourceVersion"] == "5"
    assert watch.query["allowWatchBookmarks"] == "true"
    assert {request.query["labelSelector"] for request in api.requests} == {"x=y"}
    assert {request.query["fieldSelector"] for request in api.requests} == {"z=1"}


async def test_a_cut_stream_goes_on_from_the_last_version(api: FakeApi, client: Client) -> None:
    heard = Heard()
    async with following(Reflector[Object](client, PODS, heard)):
        await watching(api)
        api.put(pod("one"))
        api.send({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "77"}}})
        await until(lambda: heard.events)
        api.cut()
        await watching(api)
    assert [request.query.get("resourceVersion") for request in api.requests] == [None, "0", "77"]
    assert heard.events == [("ADDED", "one")]


async def test_gone_in_the_stream_lists_again_and_tells_the_difference(
    api: FakeApi, client: Client
) -> None:
    api.put(pod("stays"))
    api.put(pod("leaves"))
    api.put(pod("changes"))
    api.put(pod("reborn", uid="first"))
    heard = Heard()
    reflector = Reflector[Object](client, PODS, heard)
    async with following(reflector):
        await watching(api)
        heard.events.clear()
        streams, api.watchers = api.watchers, []
        api.put(pod("leaves"), "DELETED")
        api.put(pod("changes", now="new"))
        api.put(pod("reborn", uid="second"))
        api.put(pod("comes"))
        api.watchers = streams
        api.send({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}})
        await until(lambda: len(heard.events) == 5)
    assert sorted(heard.events) == [
        ("ADDED", "comes"),
        ("ADDED", "reborn"),
        ("DELETED", "leaves"),
        ("DELETED", "reborn"),
        ("MODIFIED", "changes"),
    ]


async def test_gone_as_an_answer_lists_again(api: FakeApi, client: Client) -> None:
    heard = Heard()
    async with following(Reflector[Object](client, PODS, heard)):
        await watching(api)
        api.answers.append(status(410, "Expired"))
        api.put(pod("one"), "ADDED")
        api.cut()
        await watching(api)
        await until(lambda: heard.events)
    kinds = ["watch" if request.query.get("watch") else "list" for request in api.requests]
    assert kinds == ["list", "watch", "watch", "list", "watch"]


async def test_lines_longer_than_the_reader_allows(api: FakeApi, client: Client) -> None:
    heard = Heard()
    reflector = Reflector[Object](client, PODS, heard)
    async with following(reflector):
        await watching(api)
        api.put(pod("big", blob="x" * (2 << 20)))
        await until(lambda: heard.events)
    assert len(reflector.cache["a", "big"]["metadata"]["labels"]["blob"]) == 2 << 20


async def test_a_server_that_was_away_is_found_again(api: FakeApi, client: Client) -> None:
    api.answers += [status(403, "Forbidden"), status(503, "ServiceUnavailable")]
    api.put(pod("one"))
    reflector = Reflector[Object](client, PODS)
    async with following(reflector):
        assert list(reflector.cache) == [("a", "one")]


async def test_typed_objects_and_one_that_does_not_fit(api: FakeApi, client: Client) -> None:
    strange = pod("strange")
    strange["metadata"]["labels"] = 7
    api.put(strange)
    api.put(pod("fine", a="b"))
    reflector = Reflector[Pod](client, PODS, decode=msgspec.json.Decoder(Pod).decode)
    async with following(reflector):
        assert list(reflector.cache) == [("a", "fine")]
        found = reflector.get("fine", "a")
        assert found is not None
        assert found.metadata.labels == {"a": "b"}


async def test_a_handler_that_fails_does_not_stop_the_others(api: FakeApi, client: Client) -> None:
    api.put(pod("bad"))
    api.put(pod("good"))
    seen: list[str] = []

    def handler(kind: str, obj: Object) -> None:
        name = obj["metadata"]["name"]
        if name == "bad":
            raise ValueError(name)
        seen.append(name)

    async with following(Reflector[Object](client, PODS, handler)):
        assert seen == ["good"]
