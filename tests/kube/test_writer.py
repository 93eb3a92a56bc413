"""The writer: chains side by side, what hangs on a chain only after it, and nothing after what failed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest

from makeway.client import ApiError, Client, UnreachableError
from makeway.kube import writer as writing
from makeway.kube.actions import Action, Chain, Create, Patch, Tell
from makeway.kube.copy import LocalCopy
from makeway.kube.writer import MOST_AT_ONCE, Writer
from tests.kube.board import HandClock

Object = dict[str, Any]


class SlowApi:
    """Takes a turn of the event loop for each call, and refuses the names it was told to."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.unheard: list[str] = []  # names that get no answer the first time
        self.done: list[str] = []
        self.bodies: list[Object] = []
        self.under_way = 0
        self.most = 0

    async def create(self, _resource: object, obj: Object) -> Object:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        name = obj["metadata"]["name"]
        if name in self.refused:
            raise ApiError(403, "Forbidden", "no")
        self.done.append(name)
        return obj | {"metadata": obj["metadata"] | {"uid": name, "resourceVersion": "1"}}

    async def patch(
        self, _resource: object, name: str, body: Object, *_: object, **__: object
    ) -> Object:
        await asyncio.sleep(0)
        if name in self.unheard:
            self.unheard.remove(name)
            raise UnreachableError("https://far.example", "no route")
        self.done.append(name)
        self.bodies.append(body)
        return {"metadata": {"name": name, "uid": name, "resourceVersion": "2"}, **body}

    async def get(self, *_: object) -> Object:
        raise ApiError(404, "NotFound", "no")


def make(*names: str) -> list[Action]:
    return [Create(kind="Pod", obj={"metadata": {"name": name}}) for name in names]


def writer(api: SlowApi) -> Writer:
    return Writer(cast("Client", api), LocalCopy(), HandClock())


async def test_what_hangs_on_a_chain_follows_it_at_once() -> None:
    api = SlowApi()
    chains = [
        Chain(actions=make(f"record-{n}"), then=[Chain(actions=make(f"victim-{n}"))])
        for n in range(3 * MOST_AT_ONCE)
    ]
    done = await writer(api).run_all(chains)
    assert all(well for _, well in done)
    assert len(done) == 6 * MOST_AT_ONCE
    # What was begun is finished before the last ones begin.
    assert api.done.index("victim-0") < api.done.index(f"record-{3 * MOST_AT_ONCE - 1}")
    assert all(
        api.done.index(f"record-{n}") < api.done.index(f"victim-{n}") for n in range(len(chains))
    )
    assert api.most == MOST_AT_ONCE


async def test_a_single_chain_has_its_followers_side_by_side() -> None:
    api = SlowApi()
    followers = [Chain(actions=make(f"victim-{n}")) for n in range(8)]
    await writer(api).run_all([Chain(actions=make("record"), then=followers)])
    assert api.most == 8


async def test_after_a_failure_nothing_of_its_chain_is_done() -> None:
    api = SlowApi("record")
    failing = Chain(actions=make("record", "more"), then=[Chain(actions=make("victim"))])
    done = await writer(api).run_all([failing, Chain(actions=make("other"))])
    assert api.done == ["other"]
    assert sorted(well for _, well in done) == [False, True]


async def test_what_may_come_later_is_so_at_once_and_written_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "SAY_AGAIN_S", 0.0)
    api, copy = SlowApi(), LocalCopy()
    api.unheard = ["record"]
    copy.take("Preemption", {"metadata": {"name": "record", "uid": "u", "resourceVersion": "1"}})
    words = Writer(cast("Client", api), copy, HandClock())
    told = Patch(
        kind="Preemption", namespace="", name="record", body={"status": {"n": 1}}, later=True
    )

    assert await words.do(told)

    assert (copy.get("Preemption", "record") or {})["status"] == {"n": 1}
    assert (api.done, words.quiet) == ([], False)
    telling = asyncio.create_task(words.tell_all())
    while not words.quiet:
        await asyncio.sleep(0)
    assert api.done == ["record"]
    telling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await telling


async def test_of_too_many_words_events_are_left_out_and_never_what_counts_as_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "MOST_WORDS_WAITING", 3)
    api = SlowApi()
    words = writer(api)
    await words.do(Patch(kind="Preemption", namespace="", name="record", body={}, later=True))
    for number in range(10):
        about = {"kind": "Pod", "name": f"p{number}", "namespace": "a", "uid": "u"}
        words.tell(Tell(about=about, reason="R", note="n", component="c"))
    telling = asyncio.create_task(words.tell_all())
    while not words.quiet:
        await asyncio.sleep(0)
    assert api.done[0] == "record"
    assert len(api.done) == 3
    telling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await telling


async def test_words_on_one_object_that_wait_are_written_as_one_and_the_newest_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "SAY_AGAIN_S", 0.0)
    api = SlowApi()
    hand = writer(api)

    def word(**status: Object) -> Patch:
        body = {"status": {"others": status}}
        return Patch(kind="Preemption", namespace="a", name="flood", body=body, later=True)

    api.unheard = ["flood"]
    for patch in (word(one={"phase": "Draining"}), word(two={"phase": "Placed"})):
        assert await hand.do(patch)
    telling = asyncio.create_task(hand.tell_all())
    while "flood" in api.unheard:
        await asyncio.sleep(0)
    assert await hand.do(word(one={"phase": "Placed"}))  # while the first is being said again
    while not hand.quiet:
        await asyncio.sleep(0)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)

    assert api.bodies[-1]["status"]["others"]["one"] == {"phase": "Placed"}
    assert {"two"} <= set().union(*(body["status"]["others"] for body in api.bodies))
    assert len(api.bodies) <= 2
