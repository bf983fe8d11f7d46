"""``agentenv crashes``: what died in a run, why, and how it was brought back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from agentenv.fleet.crashes import CrashReport
    from agentenv.fleet.rundir import RunDir

_SHOWN_STEPS = 10


def crashes(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name, beginning of a name, path, or latest.")],
    env: Annotated[
        str | None,
        typer.Argument(metavar="[ENV]", help="An environment's id, or a table's; all without.", show_default=False),
    ] = None,
    number: Annotated[
        int | None,
        typer.Argument(metavar="[NUMBER]", help="One crash of it, shown whole; the table without.", show_default=False),
    ] = None,
    run_dir: Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="The directory of all runs.")] = Path(
        "runs"
    ),
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the crashes of a run's environments, the oldest first; or show one.

    The cause's owner says who has to act: the environment's author, whoever sets the limits (resources), or the
    machine's operator (infrastructure).

    \b
    Examples:
      agentenv crashes latest
      agentenv crashes latest agent_1 3
      agentenv crashes 20260314 --json
    """
    from agentenv.cli.console import open_stdout, print_json, print_result
    from agentenv.cli.exits import FAILED
    from agentenv.cli.places import choose_places, tell_faults, unknown_environment
    from agentenv.fleet.crashes import find_crashes
    from agentenv.fleet.runs import find_run

    found = find_run(run_dir.expanduser(), run)
    places, faults = choose_places(found, env)
    if env is not None and number is not None and len(places) > 1:
        raise unknown_environment("ENV", env, [found], [place.env_id for place in places])
    reports, damaged = find_crashes(places)
    faults += damaged
    if number is not None:
        reports, faults = [_pick(found, reports, env, number, faults)], []
    if json_:
        crashes = [report.to_json() for report in reports]
        print_json({"run": str(found.path), "crashes": crashes, "damaged": faults})
    elif number is not None:
        print_result(open_stdout(), *_whole(reports[0]))
    elif not reports:
        said = "no crashes" if not faults else "no crashes that can be read"
        print_result(open_stdout(), f"{said} in {found.path.name}" + ("" if env is None else f" of {env}"))
    else:
        print_result(open_stdout(), _table(reports))
    if faults:
        tell_faults(faults)
        raise typer.Exit(FAILED)


def _pick(run: RunDir, reports: list[CrashReport], env: str | None, number: int, faults: list[str]) -> CrashReport:
    from agentenv.errors import ConfigError, Problem, RunDamaged

    for report in reports:
        if report.number == number:
            return report
    if faults:  # it may be the one
        raise RunDamaged("\n".join(faults))
    there = ", ".join(str(report.number) for report in reports[:20]) or "none"
    message = f"expected the number of a crash of {env!r} in run {run.path.name!r}, got {number}"
    raise ConfigError([Problem("argument", "NUMBER", message, f"there is a report of: {there}")])


def _table(reports: list[CrashReport]) -> Any:
    from agentenv.cli.console import make_table

    columns = [
        ("environment", "left"),
        ("#", "right"),
        ("when", "left"),
        ("owner", "left"),
        ("recovered by", "left"),
        ("replayed", "right"),
        ("ms", "right"),
        ("cause", "left"),
    ]
    rows = []
    for report in reports:
        recovery = report.recovery or {}
        rows.append(
            [
                report.env_id,
                str(report.number),
                _stamp(report.time_unix),
                report.cause.owner.value,
                str(recovery.get("how", "-")),
                _number(recovery.get("replayed_steps"), 0),
                _number(recovery.get("duration_ms"), 1),
                f"{report.cause.kind.value}: {report.cause.detail}",
            ]
        )
    return make_table(columns, rows)


def _whole(report: CrashReport) -> list[str]:
    import json

    from agentenv.telemetry.text import printable

    cause, recovery = report.cause, report.recovery
    lines = [
        f"environment  {report.env_id}, crash {report.number}, {_stamp(report.time_unix)}",
        f"cause        {cause.kind.value}: {printable(cause.detail)}",
        f"owner        {cause.owner.value}",
        "recovery     " + ("not finished" if recovery is None else _pairs(recovery)),
        "usage        " + ("not measured" if report.usage is None else _pairs(report.usage)),
    ]
    steps = list(zip(report.last_actions, report.last_rewards, strict=False))[-_SHOWN_STEPS:]
    lines.append(f"last steps   {len(report.last_actions)} kept" + ("" if not steps else ", action -> reward:"))
    lines += [printable(f"  {json.dumps(action)} -> {json.dumps(reward)}") for action, reward in steps]
    for title, text in (("Python stack", report.stack), ("last output", report.output)):
        lines.append(f"{title}:" if text else f"{title}: none")
        lines += [f"  {line}" for line in printable(text).rstrip("\n").split("\n") if text]
    return lines


def _pairs(record: Any) -> str:
    from agentenv.telemetry.text import one_line

    return ", ".join(f"{one_line(str(key))} {one_line(str(value))}" for key, value in record.items())


def _stamp(time_unix: float) -> str:
    from datetime import datetime

    try:
        return datetime.fromtimestamp(time_unix).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "-"


def _number(value: Any, digits: int) -> str:
    from agentenv.cli.console import format_number

    return format_number(value, digits) if isinstance(value, int | float) and not isinstance(value, bool) else "-"
