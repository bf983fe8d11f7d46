"""Waking a thread that waits in ``select``: an eventfd on Linux, a pipe elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys


class Wake:
    """A descriptor that becomes readable when ``set`` is called, from any thread, any number of times."""

    def __init__(self) -> None:
        self._write_fd: int | None = None
        if sys.platform == "linux":
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.fd, self._write_fd = os.pipe()
            os.set_blocking(self.fd, False)
            os.set_blocking(self._write_fd, False)

    def set(self) -> None:
        """Makes the descriptor readable."""
        # BlockingIOError: it is full of wake-ups already, which is as good.
        with contextlib.suppress(BlockingIOError):
            os.write(self.fd if self._write_fd is None else self._write_fd, (1).to_bytes(8, sys.byteorder))

    def clear(self) -> None:
        """Makes it unreadable again."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def close(self) -> None:
        """Closes it; not to be used afterwards."""
        os.close(self.fd)
        if self._write_fd is not None:
            os.close(self._write_fd)
