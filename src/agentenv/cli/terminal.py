"""This terminal, standing for one in a sandbox: what is typed goes there untouched, and its size follows.

However this ends - the program's end, an error, a signal - the terminal is what it was before.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from agentenv.errors import AgentEnvError, ConfigError, Problem

_ROWS, _COLUMNS = 24, 80


def expect_terminal() -> None:
    """Check that there is one.

    Raises:
        ConfigError: Standard input is none.
    """
    if not os.isatty(0):
        what = "expected standard input to be a terminal, it is none"
        raise ConfigError([Problem("command line", "--tty", what, "leave --tty out")])


def size_of() -> tuple[int, int]:
    """Rows and columns of this terminal; what terminals once had, where it does not know."""
    size = os.get_terminal_size(0)
    return size.lines or _ROWS, size.columns or _COLUMNS


class RawTerminal:
    """A context manager that has the terminal pass on all that is typed, Ctrl-C and the like too."""

    def __init__(self, resize: Callable[[int, int], None]) -> None:
        """``resize`` is told rows and columns when they change."""
        self._resize = resize
        self._settings: list[Any] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._settings = termios.tcgetattr(0)
        atexit.register(self._restore)
        self._before[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._follow)
        self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stand_still)
        self._before[signal.SIGCONT] = signal.signal(signal.SIGCONT, self._go_on)
        self._make_raw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        atexit.unregister(self._restore)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _make_raw(self) -> None:
        sys.stdout.flush()
        tty.setraw(0, termios.TCSADRAIN)

    def _restore(self) -> None:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(0, termios.TCSADRAIN, self._settings)

    def _follow(self, _number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(AgentEnvError, OSError):
            self._resize(*size_of())

    def _stand_still(self, _number: int, _frame: FrameType | None) -> None:
        """Somebody stops this process from outside: the shell gets its terminal as it was."""
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _go_on(self, _number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(termios.error):
            self._make_raw()
        self._follow(_number, _frame)
