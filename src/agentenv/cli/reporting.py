"""Shows work that takes its time: a bar on a terminal, plain lines elsewhere. All of it on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from agentenv.telemetry.text import printable


class Task(Protocol):
    """A piece of work that goes on."""

    def advance(self, amount: float) -> None:
        """So much more of its total is done."""


class Report(Protocol):
    """As ``agentenv.images.progress.Report``, which the command line does not import before it is needed."""

    def say(self, text: str) -> None:
        """Something worth one line."""

    def task(self, text: str, total: float | None = None) -> AbstractContextManager[Task]:
        """Work that begins now and ends with the block."""


class _Advancing:
    def __init__(self, progress: Progress, text: str, total: float | None) -> None:
        self._progress = progress
        self._id = progress.add_task(printable(text), total=total)

    def advance(self, amount: float) -> None:
        self._progress.advance(self._id, amount)


class Bars:
    """On a terminal.

    Args:
        console: The one for stderr.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """One line that stays."""
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def task(self, text: str, total: float | None = None) -> Iterator[Task]:
        """A bar where the total is known, else something that turns; gone when it is done."""
        columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
        columns += [BarColumn(), DownloadColumn()] if total else []
        with Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True) as progress:
            yield _Advancing(progress, text, total)


@contextmanager
def open_progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """For work that tells what is done, how many bytes of it, and of how many: one after another is shown."""
    report = open_report(console)
    with ExitStack() as shown:
        task: Task | None = None
        current, before = "", 0

        def show(text: str, done: int, total: int) -> None:
            nonlocal task, current, before
            if task is None or text != current:
                shown.close()
                task, current, before = shown.enter_context(report.task(text, total)), text, 0
            task.advance(done - before)
            before = done

        yield show


def open_report(console: Console) -> Report:
    """Bars on a terminal, log lines elsewhere."""
    if console.is_terminal:
        return Bars(console)
    from agentenv.images.progress import LINES

    return LINES
