"""``agentenv bench``: how a configuration behaves from one environment to many, and what stops it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentenv.cli.run import RUNTIME_HELP
from agentenv.errors import counted


def bench(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The TOML file.", show_default=False)],
    envs: Annotated[str, typer.Option("--envs", metavar="N,N,...", help="Numbers of environments in all.")] = "1,10,50",
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, help="Seconds of stepping for each number.")
    ] = 3.0,
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="gymnasium", help="Measure gymnasium's AsyncVectorEnv in the same minutes."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change one key of the file.")
    ] = None,
    runtime: Annotated[str | None, typer.Option("--runtime", metavar="NAME", help=RUNTIME_HELP)] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="More log lines; twice: tracebacks.")] = 0,
) -> None:
    """Step a configuration with random actions as one vector, at several sizes.

    Memory is what an environment shares with no other. The comparison alternates with ours in short rounds, because
    a machine is not equally fast all the time. Each [[environments]] table of the file keeps at least one
    environment, so that of a file with three tables the smallest size is 3.

    \b
    Examples:
      agentenv bench examples/gridworld.toml --envs 1,10,50
      agentenv bench examples/gridworld.toml --envs 1,10 --compare gymnasium --json
      agentenv bench my.toml --envs 3,30             of a file with three tables
    """
    from dataclasses import asdict

    from agentenv.cli.bench_report import bench_table, print_bench
    from agentenv.cli.console import open_stderr, print_json, start_logging
    from agentenv.cli.measure import measure
    from agentenv.cli.settings import load
    from agentenv.errors import ConfigError, Problem

    try:
        sizes = [int(part) for part in envs.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        problem = Problem("command line", "--envs", f"expected numbers such as 1,10,50, got {envs!r}")
        raise ConfigError([problem])
    if compare not in (None, "gymnasium"):
        problem = Problem("command line", "--compare", f"expected gymnasium, got {compare!r}")
        raise ConfigError([problem])
    console = open_stderr()
    start_logging(console, "warning", quiet=True, verbose=verbose)
    loaded = load(config, settings=settings or [], runtime=runtime)
    scaled = [loaded.scaled(size) for size in sizes]
    rows = []
    for size, one in zip(sizes, scaled, strict=True):
        if console.is_terminal:
            with console.status(counted(size, "environment")):
                rows.append(measure(one, seconds=seconds, peer=compare is not None))
        else:
            rows.append(measure(one, seconds=seconds, peer=compare is not None))
    report = bench_table(rows)
    if json_:
        print_json(
            {
                "config": str(config),
                "seconds": seconds,
                "compare": compare,
                "ceiling": report.ceiling,
                "rows": [{**asdict(row), "per_env_relative": report.relative[i]} for i, row in enumerate(rows)],
            }
        )
        return
    print_bench(report)
