"""``agentenv diff``: whether two runs are the same, and where they part."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer


def diff(
    first: Annotated[str, typer.Argument(metavar="RUN1", help="Name, beginning of a name, path, or latest.")],
    second: Annotated[str, typer.Argument(metavar="RUN2", help="The other one.")],
    env: Annotated[str | None, typer.Option("--env", metavar="ID", help="This environment only.")] = None,
    ignore_info: Annotated[
        bool, typer.Option("--ignore-info", help="Infos may differ: they may tell the time.")
    ] = False,
    run_dir: Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="The directory of all runs.")] = Path(
        "runs"
    ),
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare the finished episodes of two runs, step by step: actions, observations, rewards, ends, infos.

    Runs on other hosts, in other runtimes or with another number of environments at once are the same if their
    episodes are. Exit code 0: the same; 1: not, or not known, because something that was recorded is lost.

    \b
    Examples:
      agentenv diff latest 20260314-101530-gridworld
      agentenv diff runs/a other/b --env agent_1 --json
    """
    from agentenv.cli.console import make_table, open_stdout, print_json, print_result
    from agentenv.cli.exits import FAILED, OK
    from agentenv.cli.places import unknown_environment
    from agentenv.errors import counted
    from agentenv.fleet.comparing import compare_runs
    from agentenv.fleet.expected import read_expected
    from agentenv.fleet.runs import find_run

    root = run_dir.expanduser()
    runs = (find_run(root, first), find_run(root, second))
    if env is not None:
        ids = {place.env_id for run in runs for place in run.environments()}
        if env not in ids and not any(env in read_expected(run).missing() for run in runs):
            raise unknown_environment("--env", env, [*runs], sorted(ids))
    verdict = compare_runs(*runs, env_id=env, with_info=not ignore_info)
    same = verdict.same
    if json_:
        record: dict[str, Any] = {"runs": [run.path.name for run in runs], "same": same, **asdict(verdict)}
        print_json(record)
        raise typer.Exit(OK if same else FAILED)
    compared = f"{counted(verdict.episodes, 'episode')} of {counted(verdict.environments, 'environment')}"
    parts: list[Any] = []
    if same:
        parts.append(f"the same: {compared}")
    elif not verdict.differences and verdict.faults:
        lost = "what was lost of the rest cannot be compared"
        parts.append(f"not known to be the same: {compared} can be compared and do not differ; {lost}")
    elif not verdict.differences:
        parts.append("not known to be the same: no environment has finished an episode in both, nothing was compared")
    else:
        rows = [
            [
                one.env_id,
                "-" if one.episode is None else str(one.episode),
                "-" if one.step is None else str(one.step),
                ", ".join(one.what),
                one.detail,
            ]
            for one in verdict.differences[:30]
        ]
        columns = [("id", "left"), ("episode", "right"), ("step", "right"), ("what", "left"), ("detail", "left")]
        parting = counted(len(verdict.differences), "environment parts", "environments part")
        parts += [make_table(columns, rows), f"not the same: {parting}; {compared}"]
    parts += [f"damaged: {fault}" for fault in verdict.faults]
    if verdict.damaged:
        parts.append(f"passed over: {counted(verdict.damaged, 'damaged record')}")
    parts += [f"unknown: {reason}" for reason in verdict.unknown]
    parts += [f"made otherwise: {condition}" for condition in verdict.conditions]
    print_result(open_stdout(), *parts)
    raise typer.Exit(OK if same else FAILED)
