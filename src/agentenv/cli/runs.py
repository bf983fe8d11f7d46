"""``agentenv runs``: the runs in a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RUN_DIR_HELP = "The directory of all runs."


def runs(
    run_dir: Annotated[Path, typer.Option("--run-dir", metavar="DIR", help=RUN_DIR_HELP)] = Path("runs"),
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the runs, the oldest first.

    \b
    Examples:
      agentenv runs
      agentenv runs --run-dir /data/runs --json
    """
    from datetime import datetime

    from agentenv.cli.console import make_table, open_stdout, print_json, print_result
    from agentenv.errors import ConfigError, Problem
    from agentenv.fleet.runs import list_runs

    root = run_dir.expanduser()
    if root.exists() and not root.is_dir():
        message = f"expected the directory of all runs, {str(run_dir)!r} is a file"
        raise ConfigError([Problem("command line", "--run-dir", message, "name the directory it lies in")])
    found = list_runs(root)
    records = []
    for one in found:
        summary = one.summary() or {}
        records.append(
            {
                "name": one.name,
                "path": str(one.path),
                "run_id": one.run_id,
                # What the summary says is finer: a run that ended may have failed.
                "state": str(summary.get("state") or one.state.value),
                "started_unix": one.started_unix,
                "environments": one.environments,
                "episodes": summary.get("episodes"),
                "steps": summary.get("steps"),
                "problem": one.problem,
            }
        )
    if json_:
        print_json({"run_dir": str(run_dir), "runs": records})
        return
    if not records:
        print_result(open_stdout(), f"no runs in {run_dir}")
        return
    columns = [("run", "left"), ("state", "left"), ("started", "left"), ("environments", "right"), ("steps", "right")]
    rows = []
    for record in records:
        started = record["started_unix"]
        stamp = datetime.fromtimestamp(started).strftime("%Y-%m-%d %H:%M:%S") if isinstance(started, float) else "-"
        steps = record["steps"]
        rows.append(
            [
                str(record["name"]),
                str(record["state"]),
                stamp,
                str(record["environments"]),
                f"{steps:,}" if isinstance(steps, int) else "-",
                str(record["problem"]),
            ]
        )
    if any(row[-1] for row in rows):
        columns.append(("detail", "left"))
    else:
        rows = [row[:-1] for row in rows]
    print_result(open_stdout(), make_table(columns, rows))
