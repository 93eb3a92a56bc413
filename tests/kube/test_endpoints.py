"""What a replica answers over HTTP, before the API server is asked at all."""

from __future__ import annotations

from unittest.mock import AsyncMock

import aiohttp
import pytest

from makeway.client import Client
from makeway.control.clock import SystemClock
from makeway.control.metrics import Metrics
from makeway.kube.checkpoints import Checkpoints
from makeway.kube.endpoints import Health, serve_endpoints


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, "{}", 401),
        ({"Authorization": "Basic abc"}, "{}", 401),
        ({"Authorization": "Bearer abc"}, "not json", 400),
        ({"Authorization": "Bearer abc"}, '{"savedAt": "yesterday"}', 400),
        ({"Authorization": "Bearer abc"}, "x" * 5000, 413),
    ],
)
async def test_a_report_without_token_or_sense_reaches_nobody(
    headers: dict[str, str], body: str, status: int
) -> None:
    client = AsyncMock(spec=Client)
    clock = SystemClock()
    async with (
        serve_endpoints(
            "127.0.0.1:0", Health(), Metrics(clock), Checkpoints(client, clock)
        ) as address,
        aiohttp.ClientSession() as session,
        session.post(f"http://{address}/checkpointed", data=body, headers=headers) as answer,
    ):
        assert answer.status == status

    client.create.assert_not_called()
