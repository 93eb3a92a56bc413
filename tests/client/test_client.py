from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiohttp import web

from makeway.client import ApiError, Client, Connection, UnreachableError, embedded
from makeway.client.kubeconfig import Fixed, Identity
from makeway.client.resource import JOBS, NODES, PODS
from tests.client.fake_api import FakeApi, pod, status


def test_paths() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("a", "b", "status") == "/api/v1/namespaces/a/pods/b/status"
    assert JOBS.path("a") == "/apis/batch/v1/namespaces/a/jobs"
    assert NODES.path("ignored", "n") == "/api/v1/nodes/n"
    assert JOBS.api_version == "batch/v1"


async def test_get_asks_for_the_object(api: FakeApi, client: Client) -> None:
    assert (await client.get(PODS, "web", "a"))["path"] == "/api/v1/namespaces/a/pods/web"


async def test_list_takes_all_pages(api: FakeApi, client: Client) -> None:
    for number in range(5):
        api.put(pod(f"p{number}"))
    found = await client.list(PODS, limit=2)
    assert [item["metadata"]["name"] for item in found] == ["p0", "p1", "p2", "p3", "p4"]
    assert len(api.requests) == 3


async def test_refusals_carry_what_the_server_said(api: FakeApi, client: Client) -> None:
    api.answers.append(status(404, "NotFound", 'pods "web" not found', name="web", kind="pods"))
    with pytest.raises(ApiError) as raised:
        await client.get(PODS, "web", "a")
    error = raised.value
    assert (error.code, error.reason, error.not_found) == (404, "NotFound", True)
    assert str(error) == 'pods "web" not found'
    assert error.details["name"] == "web"


@pytest.mark.parametrize(
    ("reason", "conflict", "exists"), [("Conflict", True, False), ("AlreadyExists", False, True)]
)
async def test_409_has_two_meanings(
    api: FakeApi, client: Client, reason: str, *, conflict: bool, exists: bool
) -> None:
    api.answers.append(status(409, reason))
    with pytest.raises(ApiError) as raised:
        await client.create(PODS, pod("web"))
    assert (raised.value.conflict, raised.value.already_exists) == (conflict, exists)


async def test_a_body_that_is_no_status_is_quoted(api: FakeApi, client: Client) -> None:
    api.answers.append(lambda: web.Response(text="404 page not found", status=404))
    with pytest.raises(ApiError, match="404 page not found"):
        await client.get(PODS, "web", "a")


async def test_passing_troubles_are_sat_out(api: FakeApi, client: Client) -> None:
    api.answers += [status(503, "ServiceUnavailable"), status(500, "InternalError")]
    await client.patch(PODS, "web", {"metadata": {}}, "a")
    assert len(api.requests) == 3


async def test_a_create_is_not_repeated_after_a_500(api: FakeApi, client: Client) -> None:
    api.answers.append(status(500, "InternalError"))
    with pytest.raises(ApiError):
        await client.create(PODS, pod("web"))
    assert len(api.requests) == 1


async def test_429_is_repeated_but_is_the_answer_to_an_eviction(
    api: FakeApi, client: Client
) -> None:
    api.answers.append(status(429, "TooManyRequests"))
    await client.create(PODS, pod("web"))
    assert len(api.requests) == 2
    api.answers.append(status(429, "TooManyRequests", retryAfterSeconds=10))
    with pytest.raises(ApiError) as raised:
        await client.create(PODS, {"metadata": {"name": "web"}}, "a", subresource="eviction")
    assert raised.value.retry_after == 10
    assert api.requests[-1].path == "/api/v1/namespaces/a/pods/web/eviction"


async def test_troubles_that_stay_are_raised(api: FakeApi) -> None:
    api.answers += [status(503, "ServiceUnavailable")] * 2
    async with Client(Connection(api.url), attempts=2) as client:
        with pytest.raises(ApiError):
            await client.get(PODS, "web", "a")


async def test_nobody_there_says_where(client: Client) -> None:
    async with Client(Connection("http://127.0.0.1:9"), attempts=1) as nobody:
        with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:9: the API server"):
            await nobody.get(PODS, "web", "a")


async def test_delete_with_precondition_and_grace(api: FakeApi, client: Client) -> None:
    await client.delete(PODS, "web", "a", uid="u1", grace_s=0, propagation="Background")
    assert json.loads(api.bodies[-1]) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u1"},
        "gracePeriodSeconds": 0,
        "propagationPolicy": "Background",
    }


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        ("merge", "application/merge-patch+json"),
        ("json", "application/json-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
        ("apply", "application/apply-patch+yaml"),
    ],
)
async def test_patch_types(api: FakeApi, client: Client, kind: str, content_type: str) -> None:
    await client.patch(PODS, "web", {}, "a", kind=kind, subresource="status", force=True)
    request = api.requests[-1]
    assert request.headers["Content-Type"] == content_type
    assert request.path == "/api/v1/namespaces/a/pods/web/status"
    assert request.query["force"] == "true"
    assert ("fieldManager" in request.query) == (kind == "apply")


class Rotating:
    """Credentials whose first token the server does not like."""

    async def identity(self, *, renew: bool = False) -> Identity:
        return Identity(token="new" if renew else "old")


async def test_401_shows_new_credentials_once(api: FakeApi) -> None:
    async with Client(Connection(api.url, credentials=Rotating())) as client:
        api.answers.append(status(401, "Unauthorized"))
        await client.get(PODS, "web", "a")
        shown = [request.headers["Authorization"] for request in api.requests]
        assert shown == ["Bearer old", "Bearer new"]
        api.answers += [status(401, "Unauthorized")] * 2
        with pytest.raises(ApiError):
            await client.get(PODS, "web", "a")


async def test_unix_socket(tmp_path: Path) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.json_response({"authorization": request.headers["Authorization"]})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "api.sock")).start()
    async with Client(embedded(tmp_path / "api.sock", "secret")) as client:
        assert await client.get(PODS, "web", "a") == {"authorization": "Bearer secret"}
    await runner.cleanup()


async def test_fixed_credentials_are_sent(api: FakeApi) -> None:
    credentials = Fixed(Identity(token="t"))
    async with Client(Connection(api.url, credentials=credentials)) as client:
        await client.list(PODS)
    assert api.requests[0].headers["Authorization"] == "Bearer t"
