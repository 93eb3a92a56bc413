"""What the pods of this node share, and what is kept of each on disk beside its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from makeway.client import Client
from makeway.embedded.events import EventRecorder
from makeway.embedded.node.machine import Devices, NodeOptions


class Clock(Protocol):
    def now(self) -> float: ...


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What all pods of this node share."""

    client: Client
    home: Path
    options: NodeOptions
    clock: Clock
    events: EventRecorder
    devices: Devices
    allocatable: dict[str, str]


class Record(msgspec.Struct, frozen=True):
    """What is kept of a pod on disk beside its runs."""

    namespace: str
    name: str
    uid: str
    gpus: tuple[int, ...] = ()
    started_at: float = 0.0


def read_record(folder: Path) -> Record | None:
    try:
        return msgspec.json.decode((folder / "pod.json").read_bytes(), type=Record)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
