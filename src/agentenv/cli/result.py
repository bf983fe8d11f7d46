"""The end of a run, for people: a table of the environments, and where everything is."""

from __future__ import annotations

from agentenv.cli.console import make_table, open_stdout, print_result
from agentenv.cli.live import COLUMNS, row
from agentenv.errors import counted
from agentenv.fleet.progress import EnvState, Progress
from agentenv.fleet.summary import Summary

_MOST_ROWS = 30


def print_summary(summary: Summary) -> None:
    """Print it on stdout."""
    environments = list(summary.environments)
    shown = environments
    note = ""
    if len(environments) > _MOST_ROWS:
        unwell = [environment for environment in environments if environment.state is not EnvState.DONE]
        shown = [*unwell, *(e for e in environments if e.state is EnvState.DONE)][:_MOST_ROWS]
        note = f"... and {len(environments) - len(shown)} more in summary.json"
    caused = any(environment.cause for environment in shown)
    columns = [*COLUMNS, ("cause", "left")] if caused else list(COLUMNS)
    rows = [[*row(environment), _cause(environment)] if caused else row(environment) for environment in shown]
    console = open_stdout()
    print_result(console, make_table(columns, rows), *([note] if note else []), _totals(summary), _where(summary))


def _totals(summary: Summary) -> str:
    played = f"{counted(summary.episodes, 'episode')}, {counted(summary.steps, 'step')}"
    return (
        f"{summary.state}: {played} in {summary.duration_s:.2f} s"
        f" (start-up {summary.startup_s:.2f} s, then {summary.steps_per_s:,.0f} steps/s);"
        f" seed {summary.seed}, runtime {summary.runtime}"
    )


def _where(summary: Summary) -> str:
    return f"run directory: {summary.run_dir}"


def _cause(environment: Progress) -> str:
    return "" if environment.cause is None else f"{environment.cause.kind.value}: {environment.cause.detail}"
