from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from makeway.client import Client, Connection
from makeway.client import client as client_module
from tests.client.fake_api import FakeApi


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    fake = FakeApi()
    await fake.server.start_server()
    yield fake
    fake.cut()
    await fake.server.close()


@pytest.fixture
async def client(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(client_module, "FIRST_PAUSE_S", 0.001)
    async with Client(Connection(api.url)) as opened:
        yield opened
