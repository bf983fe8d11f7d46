"""Signals as something to read, so that one loop can wait for them together with everything else."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def catching() -> Iterator[int]:
    """A descriptor from which the numbers of signals can be read, which do nothing else meanwhile.

    Those that we were started to ignore, as by nohup(1), stay ignored.
    """
    wanted = (*_PASSED_ON, signal.SIGWINCH) if os.isatty(1) else _PASSED_ON
    numbers = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    descriptor = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
