"""The command line: parses, wires everything together, prints. One file a command; each is imported only when it is asked for."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
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
jobs_app = typer.Typer(
    name="jobs",
    help="SkyPilot's managed jobs: they come back by themselves when they were evicted.",
    no_args_is_help=True,
)
app.add_typer(jobs_app)


def _as_json(value: bool) -> bool:
    """`--json` may stand before or after the command's name."""
    out.as_json = out.as_json or value
    return value


HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home", help="The folder that holds everything. Default: MAKEWAY_HOME, else ~/.makeway."
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", callback=_as_json, help="Print JSON for programs instead of text for people."
    ),
]
NamespaceOption = Annotated[str, typer.Option("-n", "--namespace", help="The namespace.")]
FilesOption = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", help="A file, a folder, or - for the pipe; repeatable."),
]
SelectorOption = Annotated[str, typer.Option("-l", "--selector", help="Choose by labels, K=V.")]
EnvOption = Annotated[
    list[str] | None,
    typer.Option("--env", help="NAME=VALUE, or NAME for its value in this shell; repeatable."),
]
DetachOption = Annotated[
    bool, typer.Option("-d", "--detach-run", help="Return when it is submitted.")
]
YesOption = Annotated[
    bool, typer.Option("-y", "--yes", help="Ask nothing (nothing is asked here anyway).")
]
WhatArgument = Annotated[
    list[str],
    typer.Argument(metavar="KIND [NAME]...", help="For example: pods, job NAME, pod/NAME."),
]


@app.callback()
def common(
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Say more about what happens.")
    ] = False,
    log_format: Annotated[
        str, typer.Option(help="Form of the log lines of `up`: text or json.")
    ] = "text",
    as_json: JsonOption = False,
) -> None:
    out.verbose = verbose
    out.log_format = _log_format(log_format)
    if verbose:
        from makeway.cli.logs import set_up_logs

        set_up_logs(log_format, verbose=True)


def _log_format(said: str) -> str:
    if said not in ("text", "json"):
        raise typer.BadParameter(f'expected text or json, got "{said}"', param_hint="--log-format")
    return said


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Print the version."""
    out.result({"version": __version__}, f"makeway {__version__}")


@app.command()
def demo(
    name: Annotated[
        str, typer.Argument(help="kueue, koordinator, kubeai, skypilot or training.")
    ] = "kueue",
    as_json: JsonOption = False,
) -> None:
    """Show priority and preemption on this machine within seconds; it leaves nothing behind."""
    from makeway.cli import demo as command

    command.demo(name)


# -- one machine --


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
        typer.Option(
            min=0,
            max=65535,
            help="Port of the API on 127.0.0.1. Default: a free one, kept in the home.",
        ),
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
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Write every cycle to this file; `makeway replay` decides it again."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start makeway on this machine: a Kubernetes-compatible API, the scheduler, and a runner for local processes."""
    from makeway.cli import up as command

    options = command.Options(
        config=config,
        capacity=command.parse_capacity(capacity),
        labels=command.parse_labels(label or []),
        local_node=not no_local_node,
        log_format=_log_format(log_format or out.log_format),
        verbose=out.verbose,
        record=record,
    )
    command.up(Home.chosen(home), port, options, detach=detach)


@app.command()
def down(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Stop makeway; pods get their grace. Everything is kept for the next `up`."""
    from makeway.cli import down as command

    command.down(Home.chosen(home))


@app.command()
def status(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Is it up, what do nodes and queues have, who runs, who waits and why. Exit code 1 when it is not up."""
    from makeway.cli import status as command

    if not command.status(home):
        raise typer.Exit(1)


@app.command()
def config(
    home: HomeOption = None,
    file: Annotated[
        Path | None, typer.Option("--config", help="Check this file and show what it would mean.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the configuration that is in force, with every default written out."""
    from makeway.cli import config as command

    command.config(home, file)


# -- objects --


@app.command()
def apply(
    files: FilesOption = None,
    namespace: NamespaceOption = "default",
    recursive: Annotated[
        bool, typer.Option("-R", "--recursive", help="Also the folders inside a folder.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask the server, change nothing.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create or change the objects that files describe."""
    from makeway.cli import apply as command

    if not files:
        raise typer.BadParameter("name at least one file", param_hint="-f")
    command.apply(home, files, namespace, recursive=recursive, dry_run=dry_run)


@app.command()
def get(
    what: WhatArgument,
    namespace: NamespaceOption = "default",
    everywhere: Annotated[
        bool, typer.Option("-A", "--all-namespaces", help="In all namespaces.")
    ] = False,
    form: Annotated[str, typer.Option("-o", "--output", help="json, yaml, wide or name.")] = "",
    selector: SelectorOption = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List objects, or show one."""
    from makeway.cli import get as command

    command.get(home, what, namespace, form, selector, everywhere=everywhere)


@app.command()
def describe(
    what: WhatArgument,
    namespace: NamespaceOption = "default",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show an object for a reader: what it is, why it waits, and what happened to it."""
    from makeway.cli import describe as command

    command.describe(home, what, namespace)


@app.command()
def explain(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A job, a workload, a pod group or a pod.")
    ],
    namespace: NamespaceOption = "default",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why it waits: what is missing where, who has it, what keeps them safe, what would let it run."""
    from makeway.cli import explain as command

    command.explain(home, name, namespace)


@app.command()
def delete(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KIND] [NAME]...", help="For example: pod NAME, pod/NAME."),
    ] = None,
    files: FilesOption = None,
    namespace: NamespaceOption = "default",
    selector: SelectorOption = "",
    everything: Annotated[bool, typer.Option("--all", help="All of that kind.")] = False,
    grace: Annotated[
        int | None,
        typer.Option("--grace-period", min=0, help="Seconds between SIGTERM and SIGKILL."),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Return when it is gone.")] = True,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete objects by name, by label, or those that files describe."""
    from makeway.cli import delete as command

    command.delete(
        home,
        what or [],
        files or [],
        namespace,
        selector,
        everything=everything,
        grace_s=grace,
        wait=wait,
    )


@app.command()
def logs(
    name: Annotated[str, typer.Argument(help="A pod, or a job or cluster for its newest pod.")],
    following: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on as more is printed.")
    ] = False,
    container: Annotated[str, typer.Option("-c", "--container", help="Which container.")] = "",
    tail: Annotated[int | None, typer.Option(min=0, help="Only so many last lines.")] = None,
    previous: Annotated[
        bool, typer.Option("-p", "--previous", help="Of the container before the restart.")
    ] = False,
    namespace: NamespaceOption = "default",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a pod printed."""
    from makeway.cli import podlogs as command

    command.logs(
        home, name, namespace, container, following=following, tail=tail, previous=previous
    )


# -- SkyPilot tasks --


@app.command()
def launch(
    file: Annotated[Path, typer.Argument(help="A SkyPilot task file.")],
    cluster: Annotated[
        str | None, typer.Option("-c", "--cluster", help="Its name. Default: the task's.")
    ] = None,
    yes: YesOption = False,
    detach: DetachOption = False,
    env: EnvOption = None,
    namespace: NamespaceOption = "default",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a SkyPilot task. When it is evicted it is over; `makeway jobs launch` comes back."""
    from makeway.cli import launch as command

    command.launch(home, file, cluster, namespace, env or [], detach=detach or out.as_json)


@jobs_app.command("launch")
def jobs_launch(
    file: Annotated[Path, typer.Argument(help="A SkyPilot task file.")],
    name: Annotated[
        str | None, typer.Option("-n", "--name", help="Its name. Default: the task's.")
    ] = None,
    yes: YesOption = False,
    detach: DetachOption = False,
    env: EnvOption = None,
    namespace: Annotated[str, typer.Option("--namespace", help="The namespace.")] = "default",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a SkyPilot task as a managed job: evicted, it waits and starts again by itself."""
    from makeway.cli import jobs as command

    command.launch(home, file, name, namespace, env or [], detach=detach or out.as_json)


@jobs_app.command("queue")
def jobs_queue(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List managed jobs."""
    from makeway.cli import jobs as command

    command.queue(home)


@jobs_app.command("cancel")
def jobs_cancel(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids or names.")] = None,
    name: Annotated[str | None, typer.Option("-n", "--name", help="The job of this name.")] = None,
    everything: Annotated[bool, typer.Option("-a", "--all", help="All of them.")] = False,
    yes: YesOption = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel managed jobs."""
    from makeway.cli import jobs as command

    named = [name] if name else []
    command.cancel(home, [*(ids or []), *named], everything=everything)


@jobs_app.command("logs")
def jobs_logs(
    job: Annotated[str | None, typer.Argument(help="Id or name. Default: the newest.")] = None,
    follow: Annotated[bool, typer.Option(help="Go on as more is printed.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a managed job printed."""
    from makeway.cli import jobs as command

    command.logs(home, job, following=follow)


# -- the entry point --


KubeconfigOption = Annotated[
    str, typer.Option(help="The kubeconfig to use. Default: as kubectl has it.")
]
OwnNamespaceOption = Annotated[
    str, typer.Option("--namespace", "-n", help="The namespace that makeway itself lives in.")
]
ImageOption = Annotated[
    str | None,
    typer.Option(
        help="The image to run. Default: the one that is installed, or makeway of this version."
    ),
]
ReplicasOption = Annotated[
    int | None,
    typer.Option(
        help="How many replicas; one of them decides. Default: as many as there are, or 2."
    ),
]
ClusterConfigOption = Annotated[
    Path | None,
    typer.Option(help="Configuration file: Kueue's Configuration, with a makeway: section."),
]
InsteadOfPoliciesOption = Annotated[
    bool | None,
    typer.Option(
        "--webhook/--no-webhook",
        help="A webhook instead of admission policies. Default: as installed before, or where the API server has no policies.",
    ),
]


@app.command()
def install(
    kubeconfig: KubeconfigOption = "",
    namespace: OwnNamespaceOption = "makeway-system",
    image: ImageOption = None,
    replicas: ReplicasOption = None,
    config: ClusterConfigOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the manifests instead of applying them.")
    ] = False,
    webhook: InsteadOfPoliciesOption = None,
) -> None:
    """Put makeway into the cluster of the kubeconfig. What is there already stays or is brought up to date."""
    from makeway.cli import install as command

    options = command.options_from(namespace, image, replicas, config)
    command.install(kubeconfig, options, dry_run=dry_run, webhook=webhook)


@app.command()
def upgrade(
    kubeconfig: KubeconfigOption = "",
    namespace: OwnNamespaceOption = "makeway-system",
    image: ImageOption = None,
    replicas: ReplicasOption = None,
    config: ClusterConfigOption = None,
    webhook: InsteadOfPoliciesOption = None,
) -> None:
    """Bring an installed makeway to this version. Workloads go on meanwhile."""
    from makeway.cli import install as command

    options = command.options_from(namespace, image, replicas, config)
    command.install(kubeconfig, options, dry_run=False, webhook=webhook)


@app.command()
def uninstall(
    kubeconfig: KubeconfigOption = "",
    namespace: OwnNamespaceOption = "makeway-system",
    definitions: Annotated[
        bool,
        typer.Option(
            "--definitions",
            help="Also delete the definitions that are makeway's, and all their objects.",
        ),
    ] = False,
) -> None:
    """Take makeway away from the cluster. Workloads that run go on."""
    from makeway.cli import install as command

    options = command.options_from(namespace, None, 1, None)
    command.uninstall(kubeconfig, options, definitions=definitions)


@app.command()
def run(
    config: ClusterConfigOption = None,
    kubeconfig: KubeconfigOption = "",
    listen: Annotated[
        str, typer.Option(help="Where /healthz, /readyz and /metrics are served.")
    ] = "127.0.0.1:8080",
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", envvar="POD_NAMESPACE", help="Where its Lease is kept."),
    ] = "makeway-system",
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
    webhook: Annotated[
        str,
        typer.Option(
            help="HOST:PORT of the webhook that API servers before 1.36 need. Default: none."
        ),
    ] = "",
    webhook_certificates: Annotated[
        Path, typer.Option(help="Folder with the webhook's tls.crt and tls.key.")
    ] = Path("/etc/makeway-webhook"),
) -> None:
    """Schedule on a cluster: in a pod as its service account, elsewhere as the kubeconfig says."""
    from makeway.cli import run as command

    hook = command.Hook(webhook, webhook_certificates) if webhook else None
    command.run(config, kubeconfig, listen, namespace, log_format, hook)


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="What `makeway up --record FILE` wrote.")],
    as_json: JsonOption = False,
) -> None:
    """Decide a recording again, and say whether every plan is the same to the byte."""
    from makeway.cli import replay as command

    command.replay(file)


def main(arguments: list[str] | None = None) -> Any:
    """Turns what a person can mend into a sentence and exit code 1; anything else is our bug, and says so."""
    try:
        return app(arguments)
    except UserError as error:
        out.complain(f"Error: {error}")
        sys.exit(1)
    except BrokenPipeError:  # `makeway get pods | head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - the interpreter flushes it at its end
        sys.exit(1)
    except Exception as error:
        out.complain(f"Error: this is our bug, not yours: {type(error).__name__}: {error}")
        out.complain(f"Please report it with this file: {_recorded()}")
        if out.verbose:
            traceback.print_exc()
        sys.exit(1)


def _recorded() -> Path:
    """The traceback of the error at hand, in the home where there is one."""
    from makeway.control.clock import SystemClock

    name = f"bug-{SystemClock().now():.0f}-{os.getpid()}.txt"
    folder = Home.chosen(None).path / "log"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="makeway-bug-"))
    file = folder / name
    file.write_text(
        f"makeway {__version__}, Python {sys.version}\n{' '.join(sys.argv)}\n\n{traceback.format_exc()}"
    )
    return file


if __name__ == "__main__":
    main()
