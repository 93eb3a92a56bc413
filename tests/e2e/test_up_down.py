"""What scripts rely on: `makeway up` and `makeway down`, by exit code and by sentence."""

from __future__ import annotations

import json
import socket
import stat
from pathlib import Path

from makeway.client.resource import NODES
from tests.e2e.cli import Makeway, a_home, alive, machine_of_its_own, processes_about


def test_up_and_down_can_be_repeated() -> None:
    with a_home() as home:
        makeway = Makeway(home)
        assert "does not run" in makeway("down")
        try:
            facts = json.loads(makeway("up", "--detach", "--no-local-node", "--json"))
            assert "already runs" in makeway("up", "--detach")
            assert makeway.json("status")["up"] is True
            assert Path(facts["kubeconfig"]) == home / "kubeconfig"
            assert stat.S_IMODE(home.stat().st_mode) == 0o700
        finally:
            assert "makeway stopped" in makeway("down")
        assert "does not run" in makeway("down")
        assert not alive(facts["pid"])


def test_a_port_that_is_taken_ends_with_1_and_the_path_of_the_log() -> None:
    with a_home() as home, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        said = Makeway(home)("up", "--detach", "--no-local-node", "--port", str(port), code=1)

        assert f"Port {port} cannot be used" in said
        assert str(home / "makeway.log") in said
        assert processes_about(str(home)) == []


def test_the_port_is_kept_and_so_are_the_objects() -> None:
    with a_home() as home:
        makeway = Makeway(home)
        ports = []
        for round_ in range(2):
            makeway("up", "--detach", "--no-local-node")
            try:
                ports.append((home / "port").read_text())
                if round_ == 0:
                    (home.parent / "x.yaml").write_text(
                        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept}\ndata: {a: b}\n"
                    )
                    assert "configmap/kept created" in makeway(
                        "apply", "-f", str(home.parent / "x.yaml")
                    )
                assert "kept" in makeway("get", "configmaps")
            finally:
                makeway("down")
        assert ports[0] == ports[1]


def test_capacity_and_labels_are_what_the_node_says() -> None:
    options = ("--capacity", "cpu=16,memory=64Gi,nvidia.com/gpu=4", "--label", "zone=a")
    with machine_of_its_own(*options) as makeway:
        node = makeway.until("the node is there", lambda: makeway.items(NODES))[0]

        assert node["status"]["capacity"]["nvidia.com/gpu"] == "4"
        assert node["status"]["capacity"]["cpu"] == "16"
        assert node["metadata"]["labels"]["zone"] == "a"


def test_mistakes_are_told_before_anything_starts(tmp_path: Path) -> None:
    makeway = Makeway(tmp_path / "home")
    config = tmp_path / "config.yaml"
    config.write_text("makeway: {victim: kueue}\n")

    assert "--capacity cpu=many" in makeway("up", "--detach", "--capacity", "cpu=many", code=1)
    assert "--label" in makeway("up", "--detach", "--label", "zone", code=1)
    assert "victim" in makeway("up", "--detach", "--config", str(config), code=1)
    assert "victim" in makeway("config", "--config", str(config), code=1)
    makeway("up", "--detatch", code=2)
    assert "does not run" in makeway.run("status").stdout
    assert makeway.run("status").returncode == 1
    assert "makeway up --detach" in makeway("get", "pods", code=1)


def test_what_is_no_mistake_of_the_user_is_called_our_bug(tmp_path: Path) -> None:
    makeway = Makeway(tmp_path / "home")
    makeway.home.mkdir()
    # A lock that is a folder is a thing no user does; it stands for whatever we did not think of.
    (makeway.home / "lock").mkdir()

    said = makeway("status", code=1)

    assert "this is our bug" in said
    recorded = Path(said.split("with this file: ")[1].strip())
    assert recorded.parent == makeway.home / "log"
    assert "Traceback" in recorded.read_text()


def test_log_lines_for_programs() -> None:
    with a_home() as home:
        makeway = Makeway(home)
        makeway("-v", "up", "--detach", "--no-local-node", "--log-format", "json")
        makeway("down")

        lines = (home / "makeway.log").read_text().splitlines()
        assert lines
        assert all({"time", "level", "message"} <= set(json.loads(line)) for line in lines)


def test_config_prints_what_is_in_force(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("makeway: {victims: kueue}\n")
    with machine_of_its_own("--no-local-node", "--config", str(file)) as makeway:
        assert makeway.json("config")["makeway"]["victims"] == "kueue"
        assert str(file) in makeway("config")
