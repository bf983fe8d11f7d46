"""Ctrl-C, once and twice: the first asks to stop after the current step, the second stops at once.

The first signal only sets a flag and wakes the loop. The second raises, so that it also gets out of a policy that
never returns; while things are being taken down it is only noted, because a tear-down cut in the middle leaves things.
SIGTERM and SIGHUP count like Ctrl-C. Once one came, the process stays deaf to more after the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from agentenv.telemetry.wake import Wake

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopNow(BaseException):
    """The second signal came: leave everything as it is and take it down."""


class Interrupts:
    """A context manager that holds the handlers. Outside the main thread, where Python allows none, it does nothing.

    Attributes:
        wake: Becomes readable with every signal; may be set for other reasons too.
        count: Signals so far.
        number: The first signal, or None.
        may_raise: Whether the second signal may raise ``StopNow`` where the main thread is right now.
    """

    def __init__(self) -> None:
        self.wake = Wake()
        self.count = 0
        self.number: int | None = None
        self.may_raise = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                # nohup starts us with SIGHUP ignored, and a shell's background jobs with SIGINT: that stays so.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # After a signal the process is about to end, and one more must not cut short its last words.
            signal.signal(number, signal.SIG_IGN if self.count else handler)
        self.wake.close()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if not self.count:
            # At once, also while the main thread is in a policy that takes its time; and not through logging or a
            # console, either of which the handler may have interrupted.
            name = signal.Signals(number).name.encode()
            with contextlib.suppress(OSError):
                os.write(2, b"\nagentenv: %b: finishing the current step; press Ctrl-C again to stop now\n" % name)
        self.count += 1
        self.number = self.number or number
        self.wake.set()
        if self.count >= 2 and self.may_raise:
            self.may_raise = False
            raise StopNow
