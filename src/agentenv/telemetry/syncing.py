"""Bringing appended files to the disk, at most once a second and beside whoever writes them.

A process that is killed loses nothing it has written; a machine that loses its power loses what the kernel still
holds. Waiting for the disk after every record would make the disk the pace of a run, so a thread does it for all files.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

_EVERY_S = 1.0


class Syncer:
    """Syncs the files it is told of, a second later at most, until it is closed."""

    def __init__(self) -> None:
        self._touched: set[Path] = set()
        self._known: set[Path] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agentenv-sync", daemon=True)
        self._thread.start()

    def touch(self, path: Path) -> None:
        """Something was appended to this file. Any thread."""
        with self._lock:
            self._touched.add(path)

    def close(self) -> None:
        """Sync what was touched and end. Idempotent."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        last = False
        while not last:
            last = self._closed.wait(_EVERY_S)
            with self._lock:
                paths, self._touched = self._touched, set()
            for path in paths:
                # A disk that cannot keep a record says so when it is written; here is nobody to tell.
                with contextlib.suppress(OSError):
                    _sync(path)
                    if path not in self._known:
                        _sync(path.parent)
                        self._known.add(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd) if not path.is_dir() else os.fsync(fd)
    finally:
        os.close(fd)
