"""Watches: what is told, in which form, from when on, and how they end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from makeway.embedded.api.watch import FEW
from makeway.embedded.server import serve
from tests.embedded.api.conftest import PODS, Api, connect, pod

CONFIGS = "/api/v1/namespaces/default/configmaps"


def config(name: str, **labels: str) -> dict[str, object]:
    return {"metadata": {"name": name, "labels": labels}}


async def test_a_watch_without_a_version_begins_with_what_exists(api: Api) -> None:
    await api.create(CONFIGS, config("a"))
    async with api.watch(CONFIGS) as following:
        first = await following()
        assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "a")
        assert first["object"]["kind"] == "ConfigMap"
        await api.create(CONFIGS, config("b"))
        assert (await following())["object"]["metadata"]["name"] == "b"


async def test_a_watch_from_a_version_tells_what_came_after_it(api: Api) -> None:
    created = await api.create(CONFIGS, config("a"))
    await api.patch(f"{CONFIGS}/a", {"data": {"x": "1"}})
    deleted = await api.delete(f"{CONFIGS}/a")
    assert deleted["status"] == "Success"
    version = created["metadata"]["resourceVersion"]
    async with api.watch(CONFIGS, resourceVersion=version) as following:
        changed, gone = await following(), await following()
    assert [changed["type"], gone["type"]] == ["MODIFIED", "DELETED"]
    assert int(gone["object"]["metadata"]["resourceVersion"]) > int(
        changed["object"]["metadata"]["resourceVersion"]
    )
    assert gone["object"]["data"] == {"x": "1"}


async def test_an_object_enters_and_leaves_a_selection(api: Api) -> None:
    await api.create(CONFIGS, config("a", app="x"))
    version = (await api.get(CONFIGS))["metadata"]["resourceVersion"]
    async with api.watch(CONFIGS, labelSelector="app=y", resourceVersion=version) as following:
        await api.patch(f"{CONFIGS}/a", {"metadata": {"labels": {"app": "y"}}})
        assert (await following())["type"] == "ADDED"
        await api.patch(f"{CONFIGS}/a", {"data": {"k": "v"}})
        assert (await following())["type"] == "MODIFIED"
        await api.patch(f"{CONFIGS}/a", {"metadata": {"labels": {"app": "x"}}})
        assert (await following())["type"] == "DELETED"
        await api.delete(f"{CONFIGS}/a")
        await api.create(CONFIGS, config("b", app="y"))
        assert (await following())["object"]["metadata"]["name"] == "b"


async def test_a_pod_that_is_bound_leaves_the_watch_of_pods_without_a_node(api: Api) -> None:
    await api.create(PODS, pod())
    async with api.watch(PODS, fieldSelector="spec.nodeName=") as following:
        assert (await following())["type"] == "ADDED"
        await api.create(f"{PODS}/a/binding", {"target": {"name": "n1"}})
        assert (await following())["type"] == "DELETED"


async def test_initial_events_end_with_a_marked_bookmark(api: Api) -> None:
    await api.create(CONFIGS, config("a"))
    async with api.watch(
        CONFIGS,
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
    ) as following:
        assert (await following())["type"] == "ADDED"
        bookmark = await following()
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert (
        bookmark["object"]["metadata"]["resourceVersion"]
        == (await api.get(CONFIGS))["metadata"]["resourceVersion"]
    )


async def test_a_version_of_another_life_is_expired(api: Api) -> None:
    async with api.watch(CONFIGS, resourceVersion="999999") as following:
        event = await following()
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == (
            "ERROR",
            410,
            "Expired",
        )
        assert await following() is None


async def test_a_table_watch_tells_rows(api: Api) -> None:
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    await api.create(PODS, pod())
    async with api.session.get(PODS, params={"watch": "true"}, headers=accept) as answer:
        event = json.loads(await answer.content.readline())
    assert event["object"]["kind"] == "Table"
    assert event["object"]["rows"][0]["cells"][:3] == ["a", "0/1", "Pending"]


async def test_both_kueue_versions_are_told_in_their_own_words(api: Api) -> None:
    path = "/apis/kueue.x-k8s.io/{}/clusterqueues"
    async with (
        api.watch(path.format("v1beta1")) as old,
        api.watch(path.format("v1beta2")) as new,
    ):
        await api.create(
            path.format("v1beta1"), {"metadata": {"name": "q"}, "spec": {"cohort": "c"}}
        )
        assert (await old())["object"]["spec"]["cohort"] == "c"
        assert (await new())["object"]["spec"]["cohortName"] == "c"


async def test_a_timeout_ends_a_watch(api: Api) -> None:
    async with api.watch(CONFIGS, timeoutSeconds="1") as following:
        assert await following() is None


async def test_watches_end_at_once_when_the_server_stops(tmp_path: Path) -> None:
    server = await serve(tmp_path)
    async with await connect(server) as session, Api(server, session).watch(CONFIGS) as following:
        waiting = asyncio.create_task(following())
        await asyncio.sleep(0)
        started = asyncio.get_running_loop().time()
        await server.stop()
        assert await waiting is None
        assert asyncio.get_running_loop().time() - started < 1


async def test_a_watch_goes_on_after_a_restart(tmp_path: Path) -> None:
    server = await serve(tmp_path)
    async with await connect(server) as session:
        api = Api(server, session)
        first = await api.create(CONFIGS, config("a", app="x"))
        await api.patch(f"{CONFIGS}/a", {"metadata": {"labels": {"app": "y"}}})
        await api.delete(f"{CONFIGS}/a")
    await server.stop()
    server = await serve(tmp_path)
    async with await connect(server) as session:
        api = Api(server, session)
        version = first["metadata"]["resourceVersion"]
        async with api.watch(CONFIGS, resourceVersion=version) as following:
            assert [(await following())["type"], (await following())["type"]] == [
                "MODIFIED",
                "DELETED",
            ]
        async with api.watch(CONFIGS, resourceVersion=version, labelSelector="app=x") as following:
            assert (await following())["type"] == "DELETED"
        newer = await api.create(CONFIGS, config("b"))
        assert int(newer["metadata"]["resourceVersion"]) > int(version) + 2
    await server.stop()


@pytest.mark.parametrize("watchers", [FEW, 3 * FEW])
async def test_many_watchers_miss_nothing_while_many_write(api: Api, watchers: int) -> None:
    version = (await api.get(CONFIGS))["metadata"]["resourceVersion"]

    async def names() -> set[str]:
        seen: set[str] = set()
        async with api.watch(CONFIGS, resourceVersion=version) as following:
            while len(seen) < 100:
                seen.add((await following())["object"]["metadata"]["name"])
        return seen

    watching = [asyncio.create_task(names()) for _ in range(watchers)]
    await asyncio.gather(*(api.create(CONFIGS, config(f"c{i}")) for i in range(100)))
    expected = {f"c{i}" for i in range(100)}
    assert all(seen == expected for seen in await asyncio.gather(*watching))
