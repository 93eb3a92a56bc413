"""`makeway config`: what is in force, every default written out; a file is checked by naming it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from makeway.cli.home import Home
from makeway.cli.output import out
from makeway.cli.up import options_of
from makeway.control.config import Configuration, load, notes


def config(home_option: Path | None, file: Path | None) -> None:
    home = Home.chosen(home_option)
    running = home.running_pid() is not None
    if file is not None:
        found, source = load(file), f"{file}: what would be in force"
    elif running and (named := options_of(home).config) is not None:
        found, source = load(named), f"{home.path}: from {named}"
    else:
        state = "runs" if running else "does not run"
        found, source = Configuration(), f"{home.path}: the defaults; makeway {state} there"
    content = _without_unread(msgspec.to_builtins(found))
    if out.as_json:
        out.result(content)
        return
    print(f"# {source}")
    for note in notes(found):
        print(f"# {note}")
    print(yaml.safe_dump(content, sort_keys=False), end="")


def _without_unread(content: dict[str, Any]) -> dict[str, Any]:
    """Sections that are accepted and mean nothing here are not in force."""
    return {key: value for key, value in content.items() if value is not None and value != ""}
