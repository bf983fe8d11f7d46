"""``agentenv run``: play a configuration without a trainer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

CONFIG_HELP = "The TOML file."
# Words, since what has the table is more than a help may import.
RUNTIME_HELP = "auto, bubblewrap, process, firecracker or qemu."
SET_HELP = "Change one key of the file: --set environments.agent_1.memory_mb=64. May be repeated."


def run(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help=CONFIG_HELP, show_default=False)] = None,
    config_option: Annotated[
        Path | None, typer.Option("--config", metavar="CONFIG", help="The same as the argument.")
    ] = None,
    envs: Annotated[int | None, typer.Option("--envs", metavar="N", help="Scale every count to N in all.")] = None,
    episodes: Annotated[
        int | None, typer.Option("--episodes", metavar="N", help="Episodes of each environment.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="The seed everything derives from.")] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", metavar="DIR", help="The directory that receives one folder a run.")
    ] = None,
    runtime: Annotated[str | None, typer.Option("--runtime", metavar="NAME", help=RUNTIME_HELP)] = None,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="RUN", help="Go on with a run that was interrupted: a name, or latest."),
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help=SET_HELP)] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Warnings and errors only.")] = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="More log lines; twice: tracebacks.")] = 0,
) -> None:
    """Run every environment of a file, each in a sandbox of its own.

    The first Ctrl-C ends after the current step and writes everything, a second ends at once; nothing is left
    behind either way.

    \b
    Examples:
      agentenv run examples/gridworld.toml
      agentenv run examples/gridworld.toml --envs 50 --episodes 5 --seed 7 --json
      agentenv run my.toml --set global.max_parallel_envs=4 --set environments.agent_1.memory_mb=64
      agentenv run --resume latest                  after a crash: finished episodes are not repeated
    """
    from agentenv.cli.console import open_stderr, print_json, start_logging
    from agentenv.cli.exits import silence_stdout
    from agentenv.cli.resume import find_resumption
    from agentenv.cli.settings import load

    console = open_stderr()
    live = console.is_terminal and not quiet
    if resume is None:
        resumption = None
        loaded = load(
            config,
            config_option,
            envs=envs,
            settings=settings or [],
            episodes=episodes,
            seed=seed,
            run_dir=run_dir,
            runtime=runtime,
        )
    else:
        given: dict[str, object] = {"CONFIG": config, "--config": config_option, "--envs": envs, "--set": settings}
        given |= {"--episodes": episodes, "--seed": seed, "--runtime": runtime}
        start_logging(console, "info", quiet=quiet, verbose=verbose, live=live)
        resumption = find_resumption(resume, run_dir or Path("runs"), given, json_=json_, quiet=quiet)
        loaded = resumption.config
    start_logging(console, loaded.global_.log_level, quiet=quiet, verbose=verbose, live=live)

    from agentenv.cli.live import LiveTable, ProgressLines
    from agentenv.cli.policy_ground import make_importable, stdout_kept
    from agentenv.cli.result import print_summary
    from agentenv.fleet.play import Play

    argv = ["agentenv", *sys.argv[1:]]
    make_importable(loaded, Path.cwd() if resumption is None else resumption.cwd)
    with stdout_kept():
        if live:
            with LiveTable(console) as table:
                summary = Play(loaded, argv=argv, on_tick=table.update, resumption=resumption).run()
        else:
            summary = Play(loaded, argv=argv, on_tick=ProgressLines().update, resumption=resumption).run()
    try:
        if json_:
            print_json(summary.to_json())
        elif not quiet:
            print_summary(summary)
    except OSError:
        # With a SIGHUP the terminal is gone as well. The summary is written, and the signal decides the exit code.
        if summary.signal is None:
            raise
        silence_stdout()
    raise typer.Exit(summary.exit_code)
