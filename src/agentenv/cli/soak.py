"""``agentenv soak``: step a configuration for minutes or days and say what grows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentenv.cli.run import RUNTIME_HELP
from agentenv.errors import counted

if TYPE_CHECKING:
    from agentenv.soak.report import Judged, Report
    from agentenv.soak.soak import Moment


def soak(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The TOML file.", show_default=False)],
    hours: Annotated[float | None, typer.Option("--hours", metavar="H", help="How long to step, in hours.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", metavar="M", help="Or in minutes.")] = None,
    chaos: Annotated[
        float, typer.Option("--chaos", metavar="N", help="Processes of environments to kill a minute, on average.")
    ] = 0.0,
    envs: Annotated[int | None, typer.Option("--envs", metavar="N", help="Scale every count to N in all.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="The seed everything derives from.")] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", metavar="DIR", help="The directory that receives one folder a run.")
    ] = None,
    runtime: Annotated[str | None, typer.Option("--runtime", metavar="NAME", help=RUNTIME_HELP)] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change one key of the file.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Warnings and errors only.")] = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="More log lines; twice: tracebacks.")] = 0,
) -> None:
    """Step every environment of a file with random actions for a long time, and find what leaks or becomes slower.

    Memory, descriptors, threads, processes, control groups, disk, step latency and throughput are sampled; each
    gets a slope with 99 % bounds and a verdict. The first Ctrl-C ends it and judges what was measured.
    Exit code 1: something leaks, becomes slower, or an environment failed by itself.

    \b
    Examples:
      agentenv soak examples/gridworld.toml --minutes 2
      agentenv soak examples/gridworld.toml --hours 24 --chaos 10 --json
    """
    from agentenv.cli.console import open_stderr, print_json, start_logging
    from agentenv.cli.exits import silence_stdout
    from agentenv.cli.settings import load

    seconds = _seconds(hours, minutes, chaos)
    loaded = load(config, envs=envs, settings=settings or [], seed=seed, run_dir=run_dir, runtime=runtime)
    console = open_stderr()
    live = console.is_terminal and not quiet
    start_logging(console, loaded.global_.log_level, quiet=quiet, verbose=verbose, live=live)

    from agentenv.cli.policy_ground import make_importable
    from agentenv.soak.soak import soak as run_soak

    make_importable(loaded, Path.cwd())
    argv = ["agentenv", *sys.argv[1:]]
    if live:
        with console.status("starting") as status:
            report = run_soak(
                loaded,
                seconds=seconds,
                chaos_per_minute=chaos,
                argv=argv,
                on_tick=lambda moment: status.update(describe(moment)),
            )
    else:
        report = run_soak(loaded, seconds=seconds, chaos_per_minute=chaos, argv=argv, on_tick=_Lines(seconds))
    try:
        if json_:
            print_json(report.to_json())
        elif not quiet:
            print_report(report)
    except OSError:
        # With a SIGHUP the terminal is gone as well. The report is written, and the signal decides the exit code.
        if report.number is None:
            raise
        silence_stdout()
    raise typer.Exit(report.exit_code)


def describe(moment: Moment) -> str:
    """How far it is, in a line."""
    unit, name = (3600.0, "h") if moment.wanted_s > 7200 else (60.0, "min")
    parts = [f"{moment.elapsed_s / unit:.1f} of {moment.wanted_s / unit:.1f} {name}", counted(moment.steps, "step")]
    if moment.sample is not None:
        host = moment.sample.host
        rate, p50 = host.get("rate"), host.get("p50")
        parts += [f"{rate:,.0f}/s"] if rate is not None else []
        parts += [f"median step {p50:.3f} ms"] if p50 is not None else []
        descriptors = counted(round(host["descriptors"] or 0), "descriptor")
        processes = counted(round(host["processes"] or 0), "process", "processes")
        parts += [f"host {host['memory']:.1f} MB, {descriptors}, {processes}"]
    if moment.kills:
        parts.append(_deaths(moment.kills, moment.losses))
    if moment.failures:
        parts.append(counted(moment.failures, "failure"))
    return "; ".join(parts)


def _deaths(kills: int, losses: int) -> str:
    return f"{counted(kills, 'kill')}, {counted(losses, 'loss', 'losses')}"


def print_report(report: Report) -> None:
    """Print it on stdout: a row for each kind of resource, the environment that is worst for all."""
    from agentenv.cli.console import make_table, open_stdout, print_result
    from agentenv.soak.report import worst_first

    kinds: dict[tuple[str, bool], list[Judged]] = {}
    for one in report.resources:
        kinds.setdefault((one.series.resource.label, one.series.resource.each), []).append(one)
    columns = [("resource", "left"), ("unit", "left"), ("level", "right"), ("slope/h", "right"), ("from", "right")]
    columns += [("to", "right"), ("tolerated", "right"), ("verdict", "left"), ("detail", "left")]
    rows = []
    for members in kinds.values():
        worst = worst_first(members)[0]
        note = f"; the worst of {len(members)}: {worst.series.sandbox}" if len(members) > 1 else ""
        rows.append(_row(worst, note))
    steps, samples = counted(report.steps, "step"), counted(report.samples, "sample")
    ends = [f"{report.verdict}: {steps} in {report.duration_s:.1f} s, {samples}"]
    if report.chaos_per_minute:
        ends[0] += f"; {_deaths(report.kills, report.losses)}"
    if report.lost_samples:
        ends.append(counted(report.lost_samples, "sample was lost", "samples were lost"))
    if report.failures:
        ends.append(f"{counted(report.failures, 'failure')} of environments; the last: {report.last_failure}")
    ends += [text for text in (report.error, report.plot_note) if text]
    print_result(open_stdout(), make_table(columns, rows), *ends, f"run directory: {report.run_dir}")


def _row(one: Judged, note: str) -> list[str]:
    from agentenv.cli.console import format_number
    from agentenv.soak.judge import HOUR_S

    verdict, trend = one.verdict, one.verdict.trend
    hourly = [None, None, None] if trend is None else [x * HOUR_S for x in (trend.slope, trend.low, trend.high)]
    return [
        one.series.resource.label,
        one.series.resource.unit,
        format_number(None if trend is None else trend.level),
        *(format_number(value) for value in hourly),
        format_number(verdict.limit_per_hour),
        verdict.outcome.value,
        verdict.reason + note,
    ]


class _Lines:
    """A line in the log now and then, where there is no terminal: every ten seconds, or a hundred in all."""

    def __init__(self, seconds: float) -> None:
        self._every_s = max(10.0, seconds / 100)
        self._next_s = self._every_s

    def __call__(self, moment: Moment) -> None:
        if moment.elapsed_s >= self._next_s:
            import logging

            self._next_s = moment.elapsed_s + self._every_s
            logging.getLogger("agentenv.cli").info("%s", describe(moment))


def _seconds(hours: float | None, minutes: float | None, chaos: float) -> float:
    """The duration in seconds.

    Raises:
        ConfigError: Not exactly one was given, or a number makes no sense.
    """
    from agentenv.errors import ConfigError, Problem

    problems: list[Any] = []
    if (hours is None) == (minutes is None):
        got = "neither" if hours is None else "both"
        message = f"expected one of them, got {got}"
        problems.append(Problem("command line", "--hours, --minutes", message, "such as --minutes 2 or --hours 24"))
    for name, value in (("--hours", hours), ("--minutes", minutes)):
        if value is not None and not 0 < value < 1e6:
            problems.append(Problem("command line", name, f"expected more than 0 and less than a million, got {value}"))
    if not 0 <= chaos <= 6000:
        problems.append(Problem("command line", "--chaos", f"expected 0 to 6000 kills a minute, got {chaos}"))
    if problems:
        raise ConfigError(problems)
    return 3600 * hours if hours is not None else 60 * (minutes or 0.0)
