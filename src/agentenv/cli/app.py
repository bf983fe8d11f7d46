"""All commands under one name, and the form ``agentenv --config FILE``, which is ``agentenv run FILE``."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import agentenv
from agentenv.cli.bench import bench
from agentenv.cli.check import check
from agentenv.cli.crashes import crashes
from agentenv.cli.diff import diff
from agentenv.cli.exits import FAILED, OK, guarded, have_streams, silence_stderr, silence_stdout, tell_unprinted
from agentenv.cli.image import image
from agentenv.cli.kernel import kernel
from agentenv.cli.logs import logs
from agentenv.cli.replay import replay
from agentenv.cli.run import run
from agentenv.cli.runs import runs
from agentenv.cli.runtimes import runtimes
from agentenv.cli.sandbox import sandbox
from agentenv.cli.schema import schema
from agentenv.cli.snapshot import snapshot
from agentenv.cli.soak import soak
from agentenv.cli.sweep import sweep

# Plain help: the rich one costs a third of a second and breaks the examples' lines.
app = typer.Typer(
    name="agentenv",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agentenv {agentenv.__version__}")
        raise typer.Exit(OK)


@app.callback()
def describe(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Isolated, reproducible environments for reinforcement-learning agents.

    \b
    Examples:
      agentenv run examples/gridworld.toml
      agentenv --config examples/gridworld.toml     the same
      agentenv runtimes                             what works on this machine

    \b
    Exit codes: 0 ok, 1 the run failed, 2 wrong usage or configuration, 3 this machine cannot do it,
    130 ended by Ctrl-C, 143 ended by SIGTERM, 129 ended by SIGHUP (the terminal was closed).
    """


for command in (run, check, replay, diff, runtimes, runs, logs, crashes, bench, soak, schema, sweep):
    app.command()(guarded(command))
app.add_typer(image)
app.add_typer(kernel)
app.add_typer(sandbox)
app.add_typer(snapshot)


def run_app(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    if arguments and arguments[0].startswith("-") and any(a.partition("=")[0] == "--config" for a in arguments):
        arguments = ["run", *arguments]
    have_streams()
    try:
        app(args=arguments, prog_name="agentenv")
        code = OK
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else OK
    except OSError as error:  # of a help text; commands tell their own
        tell_unprinted(error)
        code = FAILED
    try:
        sys.stdout.flush()
    except OSError as error:
        if code != OK or isinstance(error, BrokenPipeError):  # then it is told, or nobody reads it any more
            silence_stdout()
        else:
            tell_unprinted(error)
            code = FAILED
    try:
        sys.stderr.flush()
    except OSError:
        silence_stderr()
    return code


if os.environ.get("AGENTENV_DEBUG") == "1":
    import faulthandler

    faulthandler.enable()
