"""Snapshots of machines that have booted and imported what environments need, from which others are brought back.

Booting and importing take seconds; bringing back takes a fraction of one, and what nobody changes stays shared. A
template is kept in a cache under a name made from all that went into it, so that it serves later runs as well, and is
written once, whoever asks for it first.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agentenv.errors import ResourceLimit

SCRATCH = "scratch.ext4"
_FORMAT = "3"
_MOST_BYTES = 4 << 30
_KEPT_S = 3600.0


class Templates:
    """The templates in one directory."""

    def __init__(self, directory: Path) -> None:
        """Use a directory; it is made when it is needed."""
        self._directory = directory

    def get(self, parts: Sequence[str], make: Callable[[Path], None]) -> Path:
        """The template made from these parts.

        Args:
            parts: All that went into it.
            make: Writes it into an empty directory, when there is none yet.

        Raises:
            ResourceLimit: The disk is full.
        """
        name = hashlib.sha256(json.dumps([_FORMAT, *parts]).encode()).hexdigest()[:32]
        found = self._directory / name
        if found.is_dir():
            os.utime(found)
            return found
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self._directory / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if found.is_dir():
                return found
            for stale in self._directory.glob(f".{name}-*"):
                shutil.rmtree(stale, ignore_errors=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=self._directory))
            try:
                make(temporary)
                os.rename(temporary, found)
            except BaseException as error:
                shutil.rmtree(temporary, ignore_errors=True)
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                    text = f"cannot keep a machine's snapshot in {self._directory}: {error.strerror}"
                    raise ResourceLimit(error.errno, text) from error
                raise
        self._make_room(found)
        return found

    def _make_room(self, newest: Path) -> None:
        """Remove those unused for longest, where all of them take too much; never one that was used within the hour.

        Machines that run keep hold of the memory they came from, wherever its name is gone.
        """
        used = {path: path.stat().st_mtime for path in self._directory.iterdir() if path.is_dir()}
        left = _MOST_BYTES
        for path in sorted(used, key=lambda path: used[path], reverse=True):
            left -= sum(file.stat().st_blocks * 512 for file in path.iterdir())
            if left < 0 and path != newest and time.time() - used[path] > _KEPT_S and path.name[0] != ".":
                shutil.rmtree(path, ignore_errors=True)
                path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
