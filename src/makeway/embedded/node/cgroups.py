"""Limits that the kernel keeps, where it lets us: cgroup v2, as root or in a delegated tree."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from makeway.client.resource import Object
from makeway.model.resources import amount_of, parse_quantity

log = logging.getLogger(__name__)

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000


def limits_as_files(container: Object) -> dict[str, str]:
    """What to write for a container's limits, by file name."""
    limits = (container.get("resources") or {}).get("limits") or {}
    files: dict[str, str] = {}
    if "cpu" in limits:
        files["cpu.max"] = f"{amount_of('cpu', limits['cpu']) * PERIOD_US // 1000} {PERIOD_US}"
    if "memory" in limits:
        files["memory.max"] = str(parse_quantity(str(limits["memory"])))
    return files


def make_cgroup(name: str, container: Object, root: Path = ROOT) -> str:
    """The file to join by, or nothing where there are no limits or no rights."""
    files = limits_as_files(container)
    if not files or not (root / "cgroup.controllers").exists():
        return ""
    group = root / "makeway" / name
    try:
        group.parent.mkdir(exist_ok=True)
        for above in (root, group.parent):
            (above / "cgroup.subtree_control").write_text("+cpu +memory")
        group.mkdir(exist_ok=True)
        for file, content in files.items():
            (group / file).write_text(content)
    except OSError as error:
        log.debug("no cgroup limits: %s", error)
        return ""
    return str(group / "cgroup.procs")


def remove_cgroup(name: str, root: Path = ROOT) -> None:
    with contextlib.suppress(OSError):
        (root / "makeway" / name).rmdir()
