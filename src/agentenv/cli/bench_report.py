"""From measurements to a table and a sentence: how it scales, and which resource ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentenv.cli.console import format_number, make_table, open_stdout, print_result
from agentenv.cli.measure import Row
from agentenv.errors import counted

_BUSY_PERCENT = 85.0
_ONE_CORE_PERCENT = 90.0
_LITTLE_MEMORY_PERCENT = 10.0


@dataclass(frozen=True, slots=True)
class BenchReport:
    """All sizes.

    Attributes:
        rows: The measurements.
        relative: Steps per second and environment, relative to the first size.
        ceiling: Which resource was exhausted, in words.
    """

    rows: Sequence[Row]
    relative: Sequence[float]
    ceiling: str


def bench_table(rows: Sequence[Row]) -> BenchReport:
    """Put the measurements together."""
    base = rows[0].ours.steps_per_s / rows[0].envs
    relative = [round(row.ours.steps_per_s / row.envs / base, 4) if base else 0.0 for row in rows]
    return BenchReport(rows, relative, name_ceiling(rows))


def name_ceiling(rows: Sequence[Row]) -> str:
    """Which resource was exhausted, judged at the largest size: there is where it ends."""
    largest = max(rows, key=lambda row: row.envs)
    size = counted(largest.envs, "environment")
    if largest.available_percent < _LITTLE_MEMORY_PERCENT:
        return (
            f"memory: {largest.available_percent:.0f} % of it was available with {size}; more of them need more memory"
        )
    if largest.ours.cpu_percent >= _BUSY_PERCENT:
        return (
            f"processors: {largest.ours.cpu_percent:.0f} % of {largest.cpus} were used at {size}"
            f" ({largest.ours.steps_per_s:,.0f} steps/s); more steps need more cores or a cheaper environment"
        )
    if largest.ours.host_percent >= _ONE_CORE_PERCENT:
        return (
            f"the stepping process: {largest.ours.host_percent:.0f} % of one processor at {size};"
            " several trainers side by side would use the others"
        )
    if largest.machine_percent >= _BUSY_PERCENT:
        return (
            f"processors, shared with other programs: the machine was {largest.machine_percent:.0f} % busy and"
            f" {largest.ours.cpu_percent:.0f} % of it ours"
        )
    return (
        f"none reached: {largest.ours.cpu_percent:.0f} % of {counted(largest.cpus, 'processor')} and"
        f" {100 - largest.available_percent:.0f} % of the memory were used; what remains is waiting from step to step"
    )


def print_bench(report: BenchReport) -> None:
    """Print it on stdout."""
    has_peer = any(row.peer for row in report.rows)
    columns = [
        ("envs", "right"),
        ("start s", "right"),
        ("CPU %", "right"),
        ("MB/env", "right"),
        ("steps/s", "right"),
        ("per env", "right"),
        ("vs first", "right"),
    ]
    if has_peer:
        columns += [("gymnasium steps/s", "right"), ("start s", "right"), ("MB/env", "right"), ("faster", "right")]
    cells = []
    for row, relative in zip(report.rows, report.relative, strict=True):
        line = [
            str(row.envs),
            format_number(row.ours.startup_s),
            format_number(row.ours.cpu_percent, 0),
            format_number(row.ours.memory_mb, 1),
            format_number(row.ours.steps_per_s, 0),
            format_number(row.ours.steps_per_s / row.envs, 0),
            format_number(relative),
        ]
        if row.peer is not None:
            faster = row.ours.steps_per_s / row.peer.steps_per_s if row.peer.steps_per_s else 0.0
            line += [
                format_number(row.peer.steps_per_s, 0),
                format_number(row.peer.startup_s),
                format_number(row.peer.memory_mb, 1),
                f"{faster:.1f}x",
            ]
        cells.append(line)
    print_result(open_stdout(), make_table(columns, cells), f"ceiling: {report.ceiling}")
