"""One read end of one environment's output: reading it never blocks, never fails and never hits a stranger.

The lock is held while the descriptor is read or closed, so a number that was closed, and perhaps given out anew, is
never read. Who watches it and when it is read is the pump's business.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable

from agentenv.telemetry.sink import LogSink

_logger = logging.getLogger("agentenv.telemetry")

TURN_BYTES = 64 * 2**10
_DRAIN_BYTES = 2**20


class Stream:
    """Owns a non-blocking descriptor whose bytes go to a sink.

    Args:
        fd: The read end.
        sink: Takes its bytes.
        on_end: Called once, before the descriptor is closed, with the stream's lock held.
    """

    def __init__(self, fd: int, sink: LogSink, on_end: Callable[[Stream], None]) -> None:
        self.fd = fd
        self.sink = sink
        self._on_end = on_end
        self._open = True
        self._lock = threading.Lock()

    def turn(self) -> int:
        """Moves at most 64 KiB to the sink and returns how much it was; at the end of the stream, closes it."""
        with self._lock:
            return self._move(TURN_BYTES)

    def exhaust(self) -> None:
        """Moves what is there now, at most 1 MiB."""
        with self._lock:
            left = _DRAIN_BYTES
            while left > 0 and (count := self._move(min(left, TURN_BYTES))):
                left -= count

    def end(self) -> None:
        """Closes the descriptor. Idempotent."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """In a forked child: closes this process's copy, without the lock (its holder may not exist here)."""
        self._lock = threading.Lock()
        if self._open:
            self._open = False
            with contextlib.suppress(OSError):
                os.close(self.fd)

    def _move(self, most: int) -> int:
        if not self._open:
            return 0
        try:
            data = os.read(self.fd, most)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""  # EIO is how a pseudo-terminal says that the other side is gone
        try:
            if data:
                self.sink.write(data)
                return len(data)
        except Exception:
            # One thread serves everybody; what goes wrong with one stream must stay with it.
            _logger.exception("output of an environment is no longer read (%s)", self.sink.path)
        self._end()
        return 0

    def _end(self) -> None:
        if self._open:
            # First, so that a fork from another thread just now does not make the child close a number used anew.
            self._open = False
            self._on_end(self)
            os.close(self.fd)
