"""The command line: parses, wires everything together, prints. One file a command; each is imported only when it is asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from makeway import __version__
from makeway.cli.home import Home
from makeway.cli.output import out
from makeway.errors import UserError

app = typer.Typer(
    name="makeway",
    help="Decides which AI workloads run now, where, and who steps aside, and says why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home", help="The folder that holds everything. Default: MAKEWAY_HOME, else ~/.makeway."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")
]


@app.callback()
def common(
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Say more about what happens.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    out.verbose = verbose
    out.as_json = out.as_json or as_json


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Print the version."""
    out.as_json = out.as_json or as_json
    out.result({"version": __version__}, f"makeway {__version__}")


@app.command()
def up(
    home: HomeOption = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", "-d", help="Return when it is ready; it goes on in the background."
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(help="Port of the API on 127.0.0.1. Default: a free one, kept in the home."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Configuration file: Kueue's Configuration, with a makeway: section."),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            help="What this machine offers instead of what it has, e.g. cpu=16,memory=64Gi,nvidia.com/gpu=4."
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Label of this machine's node, K=V; repeatable.")
    ] = None,
    no_local_node: Annotated[
        bool, typer.Option("--no-local-node", help="Do not register this machine as a node.")
    ] = False,
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
    as_json: JsonOption = False,
) -> None:
    """Start makeway on this machine: a Kubernetes-compatible API, the scheduler, and a runner for local processes."""
    from makeway.cli import up as command

    out.as_json = out.as_json or as_json
    options = command.Options(
        config=config,
        capacity=command.parse_capacity(capacity),
        labels=command.parse_labels(label or []),
        local_node=not no_local_node,
        log_format=log_format,
        verbose=out.verbose,
    )
    command.up(Home.chosen(home), port, options, detach=detach)


@app.command()
def down(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Stop makeway; pods get their grace."""
    from makeway.cli import down as command

    out.as_json = out.as_json or as_json
    command.down(Home.chosen(home))


@app.command()
def demo(
    name: Annotated[str, typer.Argument(help="Which demo: see the list below.")] = "kueue",
    as_json: JsonOption = False,
) -> None:
    """Show priority and preemption on this machine in a few seconds; it leaves nothing behind."""
    from makeway.cli import demo as command

    out.as_json = out.as_json or as_json
    command.demo(name)


def main(arguments: list[str] | None = None) -> Any:
    """Entry point: turns what a person can mend into a sentence and exit code 1."""
    try:
        return app(arguments)
    except UserError as error:
        out.complain(f"Error: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
