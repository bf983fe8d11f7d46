"""What goes wrong in a keeper, in a file of bounded size: nobody else is there to be told.

The file is the process's standard error, so that it also has what Python itself says at its end.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

_STDERR = 2
_MOST_BYTES = 1 << 18


class KeeperLog(logging.Handler):
    """Warnings and errors, one line each, with tracebacks."""

    def __init__(self, path: Path) -> None:
        """Make a file standard error, and write there."""
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s: %(message)s"))
        self._open(path)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one; a full disk is nothing to die of."""
        with contextlib.suppress(OSError):
            os.write(_STDERR, f"{self.format(record)}\n".encode(errors="replace"))
            self.trim()

    def follow(self, path: Path) -> None:
        """Have the file at a path, where it was moved or removed meanwhile."""
        with contextlib.suppress(OSError):
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(_STDERR)):
                self._open(path)
            self.trim()

    def trim(self) -> None:
        """Of a file that is too long, keep the end."""
        size = os.fstat(_STDERR).st_size
        if size > _MOST_BYTES:
            rest = os.pread(_STDERR, _MOST_BYTES // 2, size - _MOST_BYTES // 2)
            os.ftruncate(_STDERR, 0)
            os.write(_STDERR, rest.partition(b"\n")[2])

    def _open(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.dup2(fd, _STDERR)
        finally:
            os.close(fd)
