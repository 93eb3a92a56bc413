from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from makeway.embedded.node.machine import (
    Devices,
    NodeOptions,
    capacity,
    gpu_names,
    gpus_wanted,
    node_object,
)
from makeway.embedded.node.runner import parse_amounts
from makeway.errors import UserError

# As NVML answers on a machine with two cards.
RECORDED = ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"]


def recorded_nvml(names: list[str] | Exception) -> SimpleNamespace:
    def begin() -> None:
        if isinstance(names, Exception):
            raise names

    listed = names if isinstance(names, list) else []
    return SimpleNamespace(
        nvmlInit=begin,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(listed),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: listed[handle],
    )


def test_gpus_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", recorded_nvml(RECORDED))
    assert gpu_names() == RECORDED
    monkeypatch.setitem(
        sys.modules, "pynvml", recorded_nvml(OSError("NVML Shared Library Not Found"))
    )
    assert gpu_names() == []


def test_what_the_user_says_wins_over_what_is_there(tmp_path: Path) -> None:
    options = NodeOptions(name="Box", capacity={"cpu": "99"}, labels={"kubernetes.io/arch": "z"})
    offered = capacity(tmp_path, options, RECORDED)
    assert (offered["cpu"], offered["nvidia.com/gpu"]) == ("99", "2")
    node = node_object(options, offered, RECORDED, 0.0)
    assert node["metadata"]["name"] == "box"
    assert node["metadata"]["labels"]["kubernetes.io/arch"] == "z"
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"


def test_devices_are_kept_and_returned() -> None:
    devices = Devices(4)
    assert devices.assign("a", 2) == (0, 1)
    assert devices.assign("b", 1) == (2,)
    assert devices.assign("a", 2) == (0, 1)
    devices.release("a")
    assert devices.assign("c", 3) == (0, 1, 3)
    devices.restore("d", (1,))


def test_gpus_wanted() -> None:
    def container(count: int) -> dict[str, object]:
        return {"resources": {"limits": {"nvidia.com/gpu": str(count)}}}

    assert gpus_wanted({"containers": [container(1), container(2)]}) == 3
    assert gpus_wanted({"containers": [{}], "initContainers": [container(4)]}) == 4


def test_amounts() -> None:
    assert parse_amounts("cpu=16, memory=64Gi,nvidia.com/gpu=4") == {
        "cpu": "16",
        "memory": "64Gi",
        "nvidia.com/gpu": "4",
    }
    with pytest.raises(UserError, match='"cpu" is not NAME=AMOUNT'):
        parse_amounts("cpu")
