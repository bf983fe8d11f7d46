"""Where one stream of one environment's output ends: a capped file and a short memory of the end.

Keeping output must never harm the run. A full disk, a removed directory or a file that cannot be written costs
output, which is counted, noted in the file where it is missing once writing works again, and reported once through
``logging``; it is never an exception. The memory tail works in every case.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from agentenv.errors import counted
from agentenv.telemetry.rotation import RotatingFile
from agentenv.telemetry.text import one_line, printable

_logger = logging.getLogger("agentenv.telemetry")


class LogSink:
    """Takes bytes of any kind: split characters, NULs, lines without end.

    Safe to use from several threads. In a forked child it is inert: nothing is written, the tail stays readable.

    Args:
        path: The log file, created at the first byte; None keeps the tail only. Its directory must exist.
        max_bytes: Most bytes in one file.
        keep: Rotated files (``.1`` the newest) kept beside the current one.
        tail_bytes: How much of the end is held in memory.

    Raises:
        ValueError: a size is not positive, or ``keep`` is negative.
    """

    def __init__(
        self, path: Path | None, *, max_bytes: int = 8 * 2**20, keep: int = 2, tail_bytes: int = 16 * 2**10
    ) -> None:
        if max_bytes < 1 or tail_bytes < 1 or keep < 0:
            raise ValueError(
                "expected max_bytes >= 1, tail_bytes >= 1 and keep >= 0, "
                f"got max_bytes={max_bytes}, tail_bytes={tail_bytes}, keep={keep}"
            )
        self.path = path
        self._file = None if path is None else RotatingFile(path, max_bytes=max_bytes, keep=keep)
        self._tail_bytes = tail_bytes
        self._tail = bytearray()
        self._forgot = False
        self._line_open = False
        self._received_bytes = 0
        self._lost_bytes = 0
        self._gap_bytes = 0
        self._gap_reason = ""
        self._reported = False
        self._closed = False
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @property
    def received_bytes(self) -> int:
        """Bytes the environment wrote here so far."""
        return self._received_bytes

    @property
    def lost_bytes(self) -> int:
        """Bytes that could not be put into the file (they did pass through the tail)."""
        return self._lost_bytes

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called: what comes now is kept in the tail only."""
        return self._closed

    def write(self, data: bytes) -> None:
        """Stores output. Never raises for a reason of the disk."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._received_bytes += len(data)
            error = self._put(data)
        self._report(error)

    def mark(self, text: str) -> None:
        """Writes a line of our own, ``--- agentenv: text ---``, on a line of its own."""
        if os.getpid() != self._pid:
            return
        line = f"--- agentenv: {one_line(text)} ---\n".encode()
        with self._lock:
            error = self._put(b"\n" + line if self._line_open else line)
        self._report(error)

    def tail(self, lines: int = 20) -> str:
        """Returns the last lines, without control characters and escape sequences, without a final newline."""
        if os.getpid() != self._pid:
            data, cut = bytes(self._tail), self._forgot  # the lock may be held for ever by a thread that is not here
        else:
            with self._lock:
                data, cut = bytes(self._tail), self._forgot
        if cut:
            # Up to three bytes of a character whose beginning is gone.
            data = data[next((i for i, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0) :]
        shown = printable(data.decode("utf-8", "replace")).rstrip("\n").split("\n")
        return "\n".join(shown[-lines:]) if lines > 0 else ""

    def close(self) -> None:
        """Closes the file. Idempotent; what is written later reaches the tail only."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _put(self, data: bytes) -> OSError | None:
        """Remembers and stores; returns the error to report, if it is the first."""
        if not data:
            return None
        self._line_open = not data.endswith(b"\n")
        self._tail += data[-self._tail_bytes :]
        if (surplus := len(self._tail) - self._tail_bytes) > 0:
            del self._tail[:surplus]
        self._forgot = self._forgot or surplus > 0 or len(data) > self._tail_bytes
        if self._file is None or self._closed:
            return None
        note = b""
        if self._gap_bytes:
            note = (
                f"\n--- agentenv: {counted(self._gap_bytes, 'byte')} missing here ({self._gap_reason}) ---\n".encode()
            )
        done, error = self._file.write(note + data)
        if done >= len(note):
            self._gap_bytes = 0
        lost = len(data) - max(0, done - len(note))
        self._lost_bytes += lost
        self._gap_bytes += lost
        if error is None:
            return None
        self._gap_reason = error.strerror or str(error)
        if self._reported:
            return None
        self._reported = True
        return error

    def _report(self, error: OSError | None) -> None:
        # Outside the lock: a handler may well ask this sink for its tail.
        if error is None:
            return
        remedy = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the directory"
        _logger.warning(
            "output of an environment cannot be written to %s: %s. The run goes on; only the last %d bytes are kept "
            "in memory until writing works again (%s). Said once for this file.",
            self.path,
            error.strerror or error,
            self._tail_bytes,
            remedy,
        )
