"""Write docs/reference/cli.md from the command line itself, so that the page and the program say the same.

python -m tools.reference            writes the page
python -m tools.reference --check    only tells whether it is up to date (exit code 1 when it is not)
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from makeway.cli.main import app

PAGE = Path(__file__).parent.parent / "docs/reference/cli.md"
HEAD = """# Commands

*Written by `python -m tools.reference` from the program itself; `tests/test_docs.py` keeps it true.*

Exit codes: 0 done · 1 it could not be done, and the message says what to do · 2 the command was typed wrongly · 130 Ctrl-C.

Environment: `MAKEWAY_HOME` is the default of `--home`; `KUBECONFIG` names the cluster when makeway does not run in the home;
`NO_COLOR` turns colours off.
"""


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return int(PAGE.read_text() != text)
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text)
    return 0


def page() -> str:
    command = typer.main.get_command(app)
    return "\n".join([HEAD, *_sections(command, "makeway")])


def _sections(command: Any, path: str) -> Iterator[str]:
    yield from _section(command, path)
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _sections(inner, f"{path} {name}")


def _section(command: Any, path: str) -> Iterator[str]:
    yield f"## {path}\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    yield f"```\n{path} {' '.join(_usage(command))}\n```\n"
    rows = [row for parameter in command.params if (row := _row(parameter))]
    if rows:
        yield "| option | meaning |\n|---|---|"
        yield "\n".join(rows) + "\n"


def _usage(command: Any) -> Iterator[str]:
    yield "[OPTIONS]"
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = getattr(parameter, "metavar", None) or str(parameter.name).upper()
            yield name if parameter.required or name.startswith("[") else f"[{name}]"
    if getattr(command, "commands", None):
        yield "COMMAND"


def _row(parameter: Any) -> str:
    help_text = (getattr(parameter, "help", None) or "").replace("|", "\\|")
    if parameter.param_type_name == "argument":
        return f"| `{parameter.name}` | {help_text} |" if help_text else ""
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    shown = (
        f" Default: `{default}`."
        if isinstance(default, str | int) and default not in ("", False, True)
        else ""
    )
    return f"| {names} | {help_text}{shown} |"


if __name__ == "__main__":
    sys.exit(main())
