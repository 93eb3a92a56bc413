"""This machine as a Node: what it has, or what the user says that it offers."""

from __future__ import annotations

import logging
import platform
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil

from makeway import __version__
from makeway.client.resource import Object
from makeway.control.clock import timestamp

log = logging.getLogger(__name__)

GPU = "nvidia.com/gpu"
MOST_PODS = 110
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
LOOPBACK = "127.0.0.1"


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    # The host's name unless said otherwise.
    name: str = ""
    # What the node offers instead of what it has; amounts it does not have are accounting only.
    capacity: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    log_limit_bytes: int = 10 << 20
    # Nobody evicts for a missed heartbeat on one machine: seldom is enough.
    heartbeat_s: float = 60.0

    @property
    def node_name(self) -> str:
        return (self.name or socket.gethostname()).lower()


def gpu_names() -> list[str]:
    """The GPUs that NVML knows, in the order of their indices; none without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        # No library, no driver, no card: each says so in its own kind of error.
        log.debug("no GPUs: %s", error)
        return []
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
        return [name.decode() if isinstance(name, bytes) else str(name) for name in names]
    except Exception as error:
        log.warning("the GPUs cannot be listed: %s", error)
        return []
    finally:
        pynvml.nvmlShutdown()


def capacity(home: Path, options: NodeOptions, gpus: list[str]) -> dict[str, str]:
    found = {
        "cpu": str(psutil.cpu_count() or 1),
        "memory": f"{psutil.virtual_memory().total // 1024}Ki",
        "ephemeral-storage": f"{psutil.disk_usage(str(home)).total // 1024}Ki",
        "pods": str(MOST_PODS),
    }
    if gpus:
        found[GPU] = str(len(gpus))
    return {**found, **options.capacity}


def node_object(
    options: NodeOptions, offered: Mapping[str, str], gpus: list[str], now: float
) -> Object:
    system = platform.system().lower()
    machine = ARCHITECTURES.get(platform.machine(), platform.machine())
    labels = {
        "kubernetes.io/hostname": options.node_name,
        "kubernetes.io/os": system,
        "kubernetes.io/arch": machine,
        "beta.kubernetes.io/os": system,
        "beta.kubernetes.io/arch": machine,
        **({"nvidia.com/gpu.product": gpus[0].replace(" ", "-")} if gpus else {}),
        **options.labels,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": options.node_name,
            "labels": labels,
            "annotations": {"makeway.dev/node": "local"},
        },
        "status": {
            "capacity": dict(offered),
            "allocatable": dict(offered),
            "addresses": [
                {"type": "InternalIP", "address": LOOPBACK},
                {"type": "Hostname", "address": options.node_name},
            ],
            "conditions": conditions(now),
            "nodeInfo": {
                "architecture": machine,
                "bootID": "",
                "containerRuntimeVersion": f"makeway://{__version__}",
                "kernelVersion": platform.release(),
                "kubeProxyVersion": "",
                "kubeletVersion": f"makeway-{__version__}",
                "machineID": "",
                "operatingSystem": system,
                "osImage": platform.platform(),
                "systemUUID": "",
            },
        },
    }


def conditions(now: float) -> list[Object]:
    calm = {
        "MemoryPressure": ("KubeletHasSufficientMemory", "this machine has memory to give"),
        "DiskPressure": ("KubeletHasNoDiskPressure", "this machine has disk to give"),
        "PIDPressure": ("KubeletHasSufficientPID", "this machine has process ids to give"),
    }
    ready = {"Ready": ("KubeletReady", "makeway runs pods here as processes")}
    return [
        {
            "type": kind,
            "status": "True" if kind == "Ready" else "False",
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": timestamp(now),
            "lastTransitionTime": timestamp(now),
        }
        for kind, (reason, message) in {**calm, **ready}.items()
    ]


class Devices:
    """Which pod has which GPU, by index."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._taken: dict[str, tuple[int, ...]] = {}

    def assign(self, uid: str, wanted: int) -> tuple[int, ...]:
        """The same ones when asked again; fewer when others have not left yet."""
        if uid not in self._taken:
            used = {index for held in self._taken.values() for index in held}
            free = [index for index in range(self.count) if index not in used]
            self._taken[uid] = tuple(free[:wanted])
        return self._taken[uid]

    def restore(self, uid: str, indices: tuple[int, ...]) -> None:
        self._taken[uid] = indices

    def release(self, uid: str) -> None:
        self._taken.pop(uid, None)


def gpus_wanted(spec: Object) -> int:
    """As many as the containers together, or the largest init container, ask for."""

    def asked(container: Object) -> int:
        resources = container.get("resources") or {}
        given = (resources.get("limits") or {}).get(GPU) or (resources.get("requests") or {}).get(
            GPU
        )
        return int(given or 0)

    first = [asked(container) for container in spec.get("initContainers") or []]
    return max([sum(asked(container) for container in spec["containers"]), *first])
