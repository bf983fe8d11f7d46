"""Everything that is printed: colour, tables, JSON, log lines.

stdout carries results, stderr carries logs and whatever moves. What came out of an environment is cleaned before it
is shown, so that it cannot play with the terminal.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentenv.cli.exits import silence_stdout
from agentenv.telemetry.text import one_line, printable

STATE_STYLES = {
    "running": "cyan",
    "starting": "yellow",
    "queued": "dim",
    "done": "green",
    "finished": "green",
    "failed": "bold red",
    "interrupted": "yellow",
    "works": "green",
    "does not work": "bold red",
    "paused": "yellow",
    "died": "bold red",
}
_LEVEL_STYLES = {logging.WARNING: "yellow", logging.ERROR: "bold red", logging.CRITICAL: "bold red"}


def open_stdout() -> Console:
    """The console for results. Away from a terminal, lines are as long as they are."""
    return _open(sys.stdout)


def open_stderr() -> Console:
    """The console for logs and the live table."""
    return _open(sys.stderr)


def print_json(value: Any) -> None:
    """Print one JSON object, and nothing else, on stdout."""
    try:
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=True) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()


def print_result(console: Console, *parts: Any) -> None:
    """Print tables and texts on stdout; a reader that left is no error."""
    try:
        for part in parts:
            with console.capture() as drawn:
                console.print(part, highlight=False, markup=False)
            # Tables pad their last column, which wraps where the terminal is narrow.
            console.file.writelines(f"{line.rstrip()}\n" for line in drawn.get().splitlines())
        console.file.flush()
    except BrokenPipeError:
        silence_stdout()


def make_table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], *, title: str = "") -> Table:
    """A table without lines.

    Args:
        columns: Name and justification ("left", "right") of each.
        rows: Cells, cleaned here; a cell that is a state is coloured.
        title: Line above it.
    """
    table = Table(box=None, title=title or None, title_justify="left", pad_edge=False, header_style="bold")
    for name, justify in columns:
        wrap = name in ("what", "remedy", "cause", "detail")
        placed: Any = justify
        table.add_column(name, justify=placed, no_wrap=not wrap, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell, 1000), style=STATE_STYLES.get(cell, "")) for cell in row))
    return table


def format_number(value: float | None, digits: int = 2) -> str:
    """A number for a table; "-" where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


class LogLines(logging.Handler):
    """Log records as plain lines on stderr: time, level where it matters, message.

    Args:
        console: Where they go; a live table on it stays below them.
        quiet_events: Leave out the ordinary events, which a live table shows already.
    """

    def __init__(self, console: Console, *, quiet_events: bool = False) -> None:
        super().__init__()
        self._console = console
        self._quiet_events = quiet_events

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record; a closed stderr is nothing to die of."""
        if self._quiet_events and record.name == "agentenv.events" and record.levelno < logging.WARNING:
            return
        try:
            stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
            level = f"{record.levelname.lower()}: " if record.levelno != logging.INFO else ""
            text = Text(f"{stamp} {level}{printable(record.getMessage())}", style=_LEVEL_STYLES.get(record.levelno, ""))
            self._console.print(text, highlight=False, soft_wrap=True)
        except (OSError, ValueError):
            pass
        except Exception:
            self.handleError(record)


def start_logging(console: Console, level: str, *, quiet: bool, verbose: int, live: bool = False) -> None:
    """Send log lines to a console from now on.

    Args:
        console: The one for stderr.
        level: Of the configuration: debug, info, warning or error.
        quiet: Warnings and errors only.
        verbose: Above 0: everything.
        live: Whether a live table shows the ordinary events.
    """
    logger = logging.getLogger("agentenv")
    for handler in [handler for handler in logger.handlers if isinstance(handler, LogLines)]:
        logger.removeHandler(handler)
    logger.addHandler(LogLines(console, quiet_events=live and not verbose))
    chosen = "debug" if verbose else "warning" if quiet else level
    logger.setLevel(chosen.upper())
    logger.propagate = False


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to whoever prints: rich would end the program with exit code 1."""
        raise BrokenPipeError


def _open(stream: Any) -> Console:
    console = _Console(file=stream, soft_wrap=False)
    if not console.is_terminal:
        console = _Console(file=stream, width=400, soft_wrap=False, no_color=True)
    return console
