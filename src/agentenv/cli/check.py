"""``agentenv check``: what in an environment would make training fail."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agentenv.cli.run import RUNTIME_HELP


def check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The TOML file.", show_default=False)],
    env: Annotated[str | None, typer.Option("--env", metavar="ID", help="Only the environment of this id.")] = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Steps of random play.")] = 10_000,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="The seed everything derives from.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change one key of the file.")
    ] = None,
    runtime: Annotated[str | None, typer.Option("--runtime", metavar="NAME", help=RUNTIME_HELP)] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="More log lines; twice: tracebacks.")] = 0,
) -> None:
    """Examine each environment of a file for what makes training fail or not repeat itself.

    It is played inside its sandbox: the same seed again, in another instance, with other global generators, another
    hash seed and at another time; beyond the end; with actions outside the space; pickled, forked; and for N random
    steps. Environments that differ in id, count, seed or policy only are examined once.

    \b
    Exit code 1 where a row fails; a warning or a skipped row does not count.

    \b
    Examples:
      agentenv check examples/gridworld.toml
      agentenv check my.toml --env cartpole --steps 2000 --json
    """
    import logging

    from agentenv.checks.choose import choose
    from agentenv.checks.examine import examine
    from agentenv.checks.rows import Verdict, worst
    from agentenv.cli.check_report import Once, Phases, print_examination, print_refused, to_json
    from agentenv.cli.console import open_stderr, print_json, start_logging
    from agentenv.cli.exits import FAILED
    from agentenv.cli.settings import load

    console = open_stderr()
    start_logging(console, "warning", quiet=True, verbose=verbose)
    logging.getLogger("agentenv.sandbox").addFilter(Once())
    loaded = load(config, settings=settings or [], seed=seed, runtime=runtime)
    choice = choose(loaded, env)
    examinations: list[Any] = []
    for chosen in choice.chosen:
        with Phases(console, chosen.environment.id) as phases:
            one = examine(loaded, chosen, steps=steps, on_phase=phases.show)
        examinations.append(one)
        if not json_:
            print_examination(one)
    verdict = worst(one.verdict for one in examinations)
    if json_:
        print_json(to_json(str(config), steps, examinations, choice.refused))
    else:
        print_refused(choice.refused)
    if verdict is Verdict.FAIL:
        raise typer.Exit(FAILED)
