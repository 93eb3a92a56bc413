"""What is too much: depth, size, aliases that unfold, watchers that do not read."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest

from makeway.embedded.api import watch
from makeway.embedded.api.forms import Form
from makeway.embedded.api.selectors import Selection
from makeway.embedded.api.tokens import Tokens
from makeway.embedded.api.watch import Watcher
from tests.embedded.api.conftest import Api

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
YAML = "application/yaml"


def nested(depth: int) -> bytes:
    return (
        b'{"metadata":{"name":"a"},"spec":{"network":'
        + b'{"a":' * depth
        + b"1"
        + b"}" * (depth + 2)
    )


@pytest.mark.parametrize("depth", [300, 2_000, 100_000])
@pytest.mark.parametrize("form", ["application/json", YAML])
async def test_deep_objects_are_refused(api: Api, depth: int, form: str) -> None:
    code, answer = await api.call("POST", JOBSETS, nested(depth), content_type=form)
    assert code == 400
    assert answer["message"] == "the object is nested deeper than 200 levels"


async def test_an_object_of_usual_depth_is_not(api: Api) -> None:
    assert (await api.call("POST", JOBSETS, nested(100)))[0] == 201


async def test_aliases_that_unfold_without_end_are_refused(api: Api) -> None:
    lines = ["metadata: {name: b}", "spec:", "  network:", "    a: &a [x, x, x, x, x, x, x, x, x]"]
    for this, before in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"    {this}: &{this} [{', '.join([f'*{before}'] * 9)}]")
    code, answer = await api.call("POST", JOBSETS, "\n".join(lines).encode(), content_type=YAML)
    assert (code, answer["message"]) == (400, "the object has more than 1000000 values")


async def test_ten_megabytes_are_refused(api: Api) -> None:
    headers = {"Content-Type": "application/json"}
    large = io.BytesIO(b" " * (10 << 20))
    async with api.session.post(JOBSETS, data=large, headers=headers) as answer:
        assert answer.status == 413
        assert (await answer.json())["reason"] == "RequestEntityTooLarge"


def test_a_watcher_that_does_not_read_is_cut_off_and_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "MAX_PENDING", 100)
    watcher = Watcher(cast("Form", None), cast("Selection", None))
    for _ in range(20):
        watcher.push(b"x" * 30)
    assert watcher.ended
    assert not cast("Any", watcher)._pending


def test_a_token_of_an_account_ends() -> None:
    tokens = Tokens("secret")
    account = {"metadata": {"name": "default", "namespace": "team"}}
    issued = tokens.issue(account, {"spec": {"expirationSeconds": 600}}, now=1000.0)
    bearer = f"Bearer {issued['status']['token']}".encode()
    assert tokens.accepts(bearer, 1599.0)
    assert not tokens.accepts(bearer, 1600.0)
    assert not Tokens("other").accepts(bearer, 1000.0)
    assert not tokens.accepts(b"Bearer a.b.c", 1000.0)
    assert not tokens.accepts(b"", 1000.0)
