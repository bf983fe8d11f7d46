"""The table that moves while a run goes on, and the lines that stand in for it where there is no terminal."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agentenv.cli.console import format_number, make_table
from agentenv.errors import counted
from agentenv.fleet.play import Play
from agentenv.fleet.progress import EnvState, Progress

logger = logging.getLogger("agentenv.cli")

COLUMNS = (
    ("id", "left"),
    ("state", "left"),
    ("episodes", "right"),
    ("steps", "right"),
    ("steps/s", "right"),
    ("return", "right"),
    ("restarts", "right"),
    ("memory MB", "right"),
)
_REFRESH_S = 0.25
_LINE_EVERY_S = 10.0
_OTHER_LINES = 5
_ORDER = (EnvState.FAILED, EnvState.RUNNING, EnvState.STARTING, EnvState.QUEUED, EnvState.INTERRUPTED, EnvState.DONE)


class LiveTable:
    """A context manager whose ``update`` is the ``on_tick`` of a run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._next = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._live.stop()

    def update(self, play: Play) -> None:
        """Draw it anew, if it is time to."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REFRESH_S
            height = max(1, self._console.height - _OTHER_LINES)
            with contextlib.suppress(OSError):  # the terminal may be gone; the run ends by its SIGHUP, in good order
                self._live.update(draw(list(play.progress.values()), height), refresh=True)


class ProgressLines:
    """A line in the log now and then, for runs that take long and have no terminal."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _LINE_EVERY_S

    def update(self, play: Play) -> None:
        """Say how far it is, if it is time to."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LINE_EVERY_S
            logger.info("%s", describe(list(play.progress.values())))


def draw(environments: Sequence[Progress], height: int) -> Group:
    """The table, with as many rows as fit into ``height`` lines, the interesting ones first, and a line of totals."""
    shown = list(environments)
    hidden: list[Progress] = []
    if len(shown) > height:
        ordered = sorted(shown, key=lambda environment: _ORDER.index(environment.state))
        hidden = ordered[height - 1 :]
        chosen = {environment.env_id for environment in ordered[: height - 1]}
        shown = [environment for environment in shown if environment.env_id in chosen]
    parts: list[Table | Text] = [make_table(COLUMNS, [row(environment) for environment in shown])]
    if hidden:
        parts.append(Text(f"... and {len(hidden)} more: {_states(hidden)}", style="dim"))
    parts.append(Text(describe(environments), style="bold"))
    return Group(*parts)


def row(environment: Progress) -> list[str]:
    """The cells of one environment."""
    is_command = environment.wanted == 0
    exit_text = "-" if environment.exit_code is None else f"exit {environment.exit_code}"
    return [
        environment.env_id,
        environment.state.value,
        "command" if is_command else f"{environment.episodes}/{environment.wanted}",
        exit_text if is_command else f"{environment.steps:,}",
        "-" if is_command else f"{environment.steps_per_s:,.0f}",
        "-" if is_command else format_number(environment.mean_return),
        "-" if is_command else f"{environment.restarts:,}",
        format_number(environment.memory_peak_bytes / 2**20, 1) if environment.memory_peak_bytes else "-",
    ]


def describe(environments: Sequence[Progress]) -> str:
    """All of them in one line."""
    steps = sum(environment.steps for environment in environments)
    episodes = sum(environment.episodes for environment in environments)
    played = f"{counted(episodes, 'episode')}, {counted(steps, 'step')}"
    return f"{counted(len(environments), 'environment')}: {_states(environments)}; {played}"


def _states(environments: Sequence[Progress]) -> str:
    number = Counter(environment.state for environment in environments)
    return ", ".join(f"{number[state]} {state.value}" for state in EnvState if number[state])
