"""What ``agentenv run --resume`` does before it plays: find the run, and say so where there is nothing to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from agentenv.fleet.resuming import Resumption


def find_resumption(
    ref: str, run_dir: Path, given: Mapping[str, object], *, json_: bool = False, quiet: bool = False
) -> Resumption:
    """The run a user wants to go on with.

    Args:
        ref: What was given as ``--resume``.
        run_dir: The directory of all runs.
        given: The options that a resumed run cannot take, by name; None where they were not given.
        json_, quiet: How to say that the run is over.

    Raises:
        ConfigError: There is no such run, it runs, it cannot be resumed, or an option does not go with it.
        RunDamaged: Its folder holds something that cannot be gone on with.
        typer.Exit: The run is over; that was said. With the code that it ended with.
    """
    from agentenv.cli.console import open_stdout, print_json, print_result
    from agentenv.errors import ConfigError, Problem
    from agentenv.fleet.resuming import ended_as, read_resumption, refuse_running
    from agentenv.fleet.rundir import read_object
    from agentenv.fleet.runs import find_run

    wrong = [name for name, value in given.items() if value not in (None, [])]
    if wrong:
        message = f"expected no {' and no '.join(wrong)}: a resumed run keeps its own configuration"
        raise ConfigError([Problem("command line", "--resume", message, "only --run-dir says where the runs are")])
    run = find_run(run_dir.expanduser(), ref)
    refuse_running(run)
    ended = ended_as(run)
    if ended is not None:
        state, code = ended
        if json_:
            print_json(read_object(run.summary))
        elif not quiet:
            print_result(open_stdout(), f"{run.path.name} is over ({state}): nothing to resume")
        raise typer.Exit(code)
    return read_resumption(run)
