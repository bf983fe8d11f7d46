"""An examination on a terminal and as JSON, and what is shown while it goes on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console

from agentenv.checks.rows import Examination, Verdict, count, worst
from agentenv.cli.console import make_table, open_stdout, print_result
from agentenv.errors import counted

_SHOWN = {Verdict.OK: "ok", Verdict.SKIP: "skipped", Verdict.WARN: "warning", Verdict.FAIL: "failed"}


class Once(logging.Filter):
    """Lets a message pass once: every sandbox of an examination would say the same."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it has not been said yet."""
        message = record.getMessage()
        new = message not in self._said
        self._said.add(message)
        return new


class Phases:
    """Says on a terminal what is being done, in a line that moves.

    Args:
        console: The one for stderr.
        env_id: The environment's id.
    """

    def __init__(self, console: Console, env_id: str) -> None:
        self._env_id = env_id
        self._status = console.status(env_id) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, text: str) -> None:
        """Show what is being done."""
        if self._status is not None:
            self._status.update(f"{self._env_id}: {text}")


def print_examination(examination: Examination) -> None:
    """Print it on stdout: a table, and below it what is to be done."""
    console = open_stdout()
    same = f" (and {len(examination.same_as_this)} like it)" if examination.same_as_this else ""
    columns = [("check", "left"), ("verdict", "left"), ("what", "left")]
    rows = [[row.name, _SHOWN[row.verdict], row.found] for row in examination.rows]
    title = f"{examination.env_id}: {examination.env}{same}"
    print_result(console, make_table(columns, rows, title=title))
    urgent = sorted((row for row in examination.rows if row.remedy), key=lambda row: row.verdict is not Verdict.FAIL)
    remedies = [[row.name, row.remedy] for row in urgent]
    if remedies:
        print_result(console, "", make_table([("to do", "left"), ("remedy", "left")], remedies))
    number = count(examination.rows)
    print_result(
        console,
        f"{examination.verdict.value}: {number['fail']} failed, {counted(number['warn'], 'warning')},"
        f" {number['ok']} ok, {number['skip']} skipped in {examination.duration_s:.1f} s",
        "",
    )


def print_refused(refused: Sequence[tuple[str, str]]) -> None:
    """Print what was not examined."""
    for env_id, reason in refused:
        print_result(open_stdout(), f"{env_id}: not examined: {reason}")


def to_json(
    source: str,
    steps: int,
    examinations: Sequence[Examination],
    refused: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """Everything, as JSON values."""
    return {
        "config": source,
        "steps": steps,
        "verdict": worst(one.verdict for one in examinations).value,
        "environments": [one.to_json() for one in examinations],
        "refused": [{"env_id": env_id, "reason": reason} for env_id, reason in refused],
    }
