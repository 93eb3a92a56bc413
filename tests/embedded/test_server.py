"""The home of a running API: who may read it, who may share it, what it keeps."""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path

import aiohttp
import pytest
import yaml

from makeway.embedded.server import serve, serving
from makeway.errors import UserError


async def test_nothing_in_the_home_is_for_others(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with serving(home):
        assert home.stat().st_mode & 0o777 == 0o700
        for path in home.iterdir():
            assert path.stat().st_mode & 0o077 == 0, path


async def test_the_kubeconfig_is_enough_to_connect_safely(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        config = yaml.safe_load(server.kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        trust = ssl.create_default_context(cadata=authority)
        headers = {"Authorization": f"Bearer {user['token']}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            for host in ("127.0.0.1", "localhost"):
                url = cluster["server"].replace("127.0.0.1", host)
                async with session.get(f"{url}/version", ssl=trust) as answer:
                    assert answer.status == 200


async def test_a_restart_keeps_port_token_and_certificate(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        first = (server.port, server.token, server.kubeconfig.read_text())
    async with serving(tmp_path) as server:
        assert (server.port, server.token, server.kubeconfig.read_text()) == first


async def test_two_servers_do_not_share_a_home(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with pytest.raises(UserError, match="already in use"):
            await serve(tmp_path)
    async with serving(tmp_path):
        pass


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as server:
        with pytest.raises(UserError, match=f"Port {server.port} cannot be used"):
            await serve(tmp_path / "b", server.port)


async def test_a_home_whose_port_was_taken_meanwhile_gets_another(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as server:
        taken = server.port
    async with serving(tmp_path / "b", taken), serving(tmp_path / "a") as server:
        assert server.port != taken
        assert f":{server.port}" in server.kubeconfig.read_text()


async def test_a_start_takes_no_time_to_speak_of(tmp_path: Path) -> None:
    started = asyncio.get_running_loop().time()
    async with serving(tmp_path):
        assert asyncio.get_running_loop().time() - started < 1.5
