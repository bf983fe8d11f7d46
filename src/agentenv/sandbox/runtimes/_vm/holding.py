"""Holding the files that machines are made of: forks, recovery and snapshots need them as long as a machine may live.

Whoever collects in the store of images leaves what is locked. Files from elsewhere are locked just the same, which
bothers nobody.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import weakref
from pathlib import Path

from agentenv import locks
from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.files import MachineFiles

logger = logging.getLogger("agentenv.sandbox")

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_AGAIN = "make the image or kernel again, or name another one"
_all: weakref.WeakSet[Holding] = weakref.WeakSet()


class Holding:
    """The files that the machines of one runtime are made of."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._lock = threading.Lock()
        self._held: dict[Path, int] = {}
        _all.add(self)

    def keep(self, files: MachineFiles) -> None:
        """Hold the files of a machine until this is closed.

        Raises:
            RuntimeUnavailable: One is not there any more, or cannot be read.
        """
        with self._lock:
            for path in files.paths():
                fd = self._held.get(path)
                if fd is None or not locks.is_at(fd, path):
                    self._hold(path)

    def close(self) -> None:
        """Let go of all of them."""
        with self._lock:
            self.forget()

    def forget(self) -> None:
        """The same without a lock, for a forked child, in which it may be held for ever."""
        while self._held:
            os.close(self._held.popitem()[1])

    def _hold(self, path: Path) -> None:
        try:
            fd = locks.hold(path, lambda: logger.info("waiting for another process, which has %s locked", path))
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return  # as good as the file system
            raise RuntimeUnavailable(
                f"expected to read {path}, which machines are made of, got: {error.strerror}", _AGAIN
            ) from error
        before = self._held.pop(path, None)
        self._held[path] = fd
        if before is not None:
            os.close(before)


def _forget_all() -> None:
    for one in list(_all):
        one.forget()


os.register_at_fork(after_in_child=_forget_all)
