"""What `launch` and `jobs launch` share: the task file, the accelerators that the nodes have, and the words around a submission."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from makeway.cli.manifests import existing_file
from makeway.cli.output import out
from makeway.client import Client
from makeway.client.resource import NODES
from makeway.control.clock import SystemClock
from makeway.errors import UserError
from makeway.kinds.skypilot.accelerators import Place, devices, place
from makeway.kinds.skypilot.task import Task, check_name, parse_task

Object = dict[str, Any]


def read_task(file: Path, env: Sequence[str], name: str | None = None) -> Task:
    """`name` is what the task shall be called: who mistypes the file often named the task right."""
    path = existing_file(file, also=name or "")
    task = parse_task(path.read_text(), str(file), _given(env))
    for note in task.notes:
        out.say(f"Note: {note}")
    return task


def _given(env: Sequence[str]) -> Mapping[str, str]:
    """`--env NAME=VALUE`, or `--env NAME` for the value it has in this shell."""
    given: dict[str, str] = {}
    for text in env:
        name, equals, value = text.partition("=")
        if not equals:
            if name not in os.environ:
                raise UserError(
                    f"{name} is not set in this shell.",
                    where="--env",
                    hint=f"Write --env {name}=VALUE.",
                )
            value = os.environ[name]
        given[name] = value
    return given


def chosen_name(said: str | None, task: Task, file: Path, option: str) -> str:
    """The name that was asked for, the task's own, or the file's."""
    name = said or task.name or file.stem
    return check_name(name, option)


def workdir_of(task: Task, file: Path) -> str:
    """Relative to where the command is typed, as SkyPilot has it."""
    if not task.workdir:
        return ""
    folder = Path(task.workdir).expanduser().absolute()
    if not folder.is_dir():
        raise UserError(f'there is no folder "{folder}".', where=f"{file}: workdir")
    return str(folder)


async def place_for(client: Client, task: Task) -> Place:
    if task.accelerators is None:
        return Place()
    nodes = await client.list(NODES)
    return place(task.accelerators, devices(nodes, task.accelerators.resource))


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user-{os.getuid()}"


def moment() -> str:
    """Now, as it stands in a task's id."""
    now = datetime.fromtimestamp(SystemClock().now(), UTC)
    return now.strftime("%Y-%m-%d-%H-%M-%S-%f")


def show_request(task: Task) -> None:
    gpus = task.accelerators.text if task.accelerators else "-"
    out.say(
        "Considered resources (one node):"
        if task.num_nodes == 1
        else f"Considered resources ({task.num_nodes} nodes):"
    )
    if not out.as_json:
        out.table(
            ("INFRA", "INSTANCE", "vCPUs", "Mem(GB)", "GPUS", "COST ($)", "CHOSEN"),
            [
                (
                    "makeway",
                    _instance(task),
                    _number(task.cpus),
                    _number(task.memory_gb),
                    gpus,
                    "0.00",
                    "✔",
                )
            ],
        )


def _instance(task: Task) -> str:
    base = f"{_number(task.cpus)}CPU--{_number(task.memory_gb)}GB"
    return f"{base}--{task.accelerators.text}" if task.accelerators else base


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.2f}"


def warn(found: Place) -> None:
    for warning in found.warnings:
        out.complain(f"Warning: {warning}")
