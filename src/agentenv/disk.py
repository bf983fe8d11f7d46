"""What has to be on the disk before anybody may count on it, and a disk that is full, in words."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from agentenv.errors import ResourceLimit

FULL = (errno.ENOSPC, errno.EDQUOT)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk.

    Raises:
        OSError: It cannot be opened, or the disk fails.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network file systems cannot sync a directory; what was renamed in it is renamed all the same.
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(fd)


@contextlib.contextmanager
def room_for(what: str, path: Path, remedy: str) -> Iterator[None]:
    """Turn a full disk into words; see ``no_room``.

    Raises:
        ResourceLimit: The disk or the quota is full.
    """
    try:
        yield
    except ResourceLimit:
        raise
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise no_room(what, path, remedy, error.errno) from error


def no_room(what: str, path: Path, remedy: str, code: int | None = None) -> ResourceLimit:
    """The error that says a disk is full, for what, where, and what helps."""
    free = "?"
    with contextlib.suppress(OSError):
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        free = f"{shutil.disk_usage(existing).free >> 20} MB"
    said = f"no room on the disk for {what}{path} ({free} free)\n  remedy: {remedy}"
    return ResourceLimit(code or errno.ENOSPC, said)
