"""Requests that schemathesis makes up from the served OpenAPI, and garbage of all kinds: the answer is always the API's own kind of error,
nothing that was stored is lost, and nobody is answered without the token.
"""

from __future__ import annotations

import base64
import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok

from tests.embedded.api.unwired import Server

CONFIGS = "/api/v1/namespaces/default/configmaps"
PROTOBUF = "application/vnd.kubernetes.protobuf"
KEPT = {"metadata": {"name": "kept"}, "data": {"a": "b"}}


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@contextlib.contextmanager
def running() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            server.call("POST", CONFIGS, KEPT)
            yield server
            code, content = server.call("GET", f"{CONFIGS}/kept")
            assert code == 200, "what was stored before is gone"
            assert json.loads(content)["data"] == KEPT["data"]
        finally:
            server.stop()


def examples(count: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )


def check(code: int, content: bytes, about: object) -> None:
    """An answer, or a refusal as kubectl can show it; never an error of ours."""
    assert code < 500, (about, content)
    if code >= 400 and content.startswith(b"{"):
        status = json.loads(content)
        assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", code)
        assert status["message"], about


# ---- by the served description -------------------------------------------------------------------

SMALL = ["apis/coordination.k8s.io/v1", "apis/scheduling.k8s.io/v1", "apis/kueue.x-k8s.io/v1beta2"]


def groups() -> list[str]:
    with running() as server:
        _, content = server.call("GET", "/openapi/v3")
        return sorted(json.loads(content)["paths"])


def send_made_up(group: str, count: int) -> int:
    """Requests to every operation of a group; how many were sent."""
    sent = 0
    with running() as server:
        _, document = server.call("GET", f"/openapi/v3/{group}")
        schema = schemathesis.openapi.from_dict(json.loads(document))
        for found in schema.get_all_operations():
            assert isinstance(found, Ok), found
            operation = found.ok()

            @examples(count)
            @given(operation.as_strategy())
            def send(case: Any) -> None:
                nonlocal sent
                sent += 1
                body = b"" if isinstance(case.body, schemathesis.core.NotSet) else case.body
                query = urlencode(case.query or {}, doseq=True).encode()
                path = case.formatted_path.replace("{namespace}", "default")
                media = "application/json" if case.media_type in (None, "*/*") else case.media_type
                code, content = server.call(case.method.upper(), path, body, media, query)
                check(code, content, (case.method, path, query, body))

            send()
    return sent


@pytest.mark.parametrize("group", SMALL)
def test_made_up_requests_are_answered(group: str) -> None:
    assert send_made_up(group, 3) >= 9


@pytest.mark.slow
def test_made_up_requests_to_everything_are_answered() -> None:
    counts = {group: send_made_up(group, 25) for group in groups() if "metrics" not in group}
    assert min(counts.values()) > 0, counts


# ---- garbage -------------------------------------------------------------------------------------

METHODS = st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "X"])
PATHS = st.sampled_from(
    [
        "/api/v1/namespaces/other/configmaps",
        f"{CONFIGS}/target",
        f"{CONFIGS}/target/status",
        "/api/v1/namespaces/default/pods/x/exec",
        "/api/v1/namespaces/default/pods/x/binding",
        "/api/v1/nodes",
        "/apis/apps/v1/namespaces/default/deployments/x/scale",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "/apis/metrics.k8s.io/v1beta1/nodes",
        "/apis",
        "/openapi/v3/api/v1",
        "/api//v1",
        "/api/v1/namespaces//pods",
        "/apis/",
        "/",
        "/healthz",
    ]
)
TYPES = st.sampled_from(
    [
        "application/json",
        "application/yaml",
        PROTOBUF,
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
        "application/cbor",
        "text/plain; charset=utf-16",
        "",
    ]
)


QUERIES = ("continue", "limit", "labelSelector", "fieldSelector", "fieldManager", "dryRun")


def test_garbage_gets_an_error_of_the_api(server: Server) -> None:
    @examples(150)
    @given(METHODS, PATHS, TYPES, st.binary(max_size=60), st.text(max_size=20))
    def send(method: str, path: str, media: str, body: bytes, word: str) -> None:
        for name in QUERIES:
            query = urlencode({name: word}).encode()
            code, content = server.call(method, path, body, media, query)
            check(code, content, (method, path, media, body, query))

    send()


def test_broken_protobuf_is_refused(server: Server) -> None:
    """The envelope is right, so that whatever is inside is looked at."""
    kinds = st.sampled_from(
        [("v1", "ConfigMap"), ("v1", "Pod"), ("apps/v1", "Deployment"), ("", "")]
    )

    @examples(200)
    @given(kinds, st.binary(max_size=80))
    def send(kind: tuple[str, str], raw: bytes) -> None:
        version, name = (text.encode() for text in kind)
        meta = _field(1, version) + _field(2, name)
        body = b"k8s\0" + _field(1, meta) + _field(2, raw)
        for path in (CONFIGS, "/api/v1/namespaces/default/pods"):
            code, content = server.call("POST", path, body, PROTOBUF)
            check(code, content, (path, body))
            assert code != 201 or b"made" in content or raw, "an empty object was stored"

    send()


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def test_no_continue_value_but_our_own_is_believed(server: Server) -> None:
    @examples(100)
    @given(st.text() | st.binary().map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
    def send(value: str) -> None:
        query = urlencode({"limit": 1, "continue": value}).encode()
        code, content = server.call("GET", CONFIGS, query=query)
        assert code == (400 if value else 200), value
        check(code, content, value)

    send()


def test_nothing_is_answered_without_the_token(server: Server) -> None:
    @examples(150)
    @given(METHODS, PATHS, st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"")))
    def send(method: str, path: str, word: bytes) -> None:
        for authorization in (word, b"Bearer " + word, b"bearer t" + word, b"Basic dDp0", b""):
            if authorization in (b"Bearer t", b"bearer t"):
                continue
            code, content = server.call(method, path, KEPT, authorization=authorization)
            assert code == 401, (method, path, authorization)
            assert json.loads(content)["reason"] == "Unauthorized"

    send()


def test_a_patch_cannot_copy_without_end(server: Server) -> None:
    """Each step doubles what there is: forty of them would fill any memory."""
    doubling: list[dict[str, Any]] = [{"op": "add", "path": "/data", "value": {"a": "x" * 100}}]
    doubling += [
        {"op": "copy", "from": "/data", "path": f"/data/{'b' * (step + 1)}"} for step in range(40)
    ]
    server.call("POST", CONFIGS, {"metadata": {"name": "target"}, "data": {"a": "b"}})
    patch = "application/json-patch+json"
    code, content = server.call("PATCH", f"{CONFIGS}/target", doubling, patch)
    assert code == 413, content
    many = [{"op": "test", "path": "/metadata/name", "value": "target"}] * 20_000
    code, content = server.call("PATCH", f"{CONFIGS}/target", many, patch)
    assert code == 413, content
    assert "10000" in json.loads(content)["message"]


@pytest.mark.parametrize("text", [r'"\ud800"', "2026-01-01", "!!binary aGk=", "2026-13-45"])
def test_yaml_that_json_has_no_words_for_is_text_or_refused(server: Server, text: str) -> None:
    body = f"metadata: {{name: odd}}\ndata: {{a: {text}}}".encode()
    code, content = server.call("POST", CONFIGS, body, "application/yaml")
    check(code, content, text)
    assert code == 201 or b"error converting YAML to JSON" in content


def test_a_review_tells_a_good_token_from_a_bad_one(server: Server) -> None:
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    good, bad = (
        json.loads(server.call("POST", path, {"spec": {"token": token}})[1])["status"]
        for token in ("t", "x")
    )
    assert good["authenticated"]
    assert not bad.get("authenticated")
