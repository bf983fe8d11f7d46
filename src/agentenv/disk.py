"""Where users' data lies on the disk, what has to be there before anybody may count on it, and a full disk in words."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from agentenv.errors import ResourceLimit

FULL = (errno.ENOSPC, errno.EDQUOT)


def data_directory() -> Path:
    """Where agentenv keeps what cannot be made again.

    ``$AGENTENV_DATA``, or "agentenv" in ``$XDG_DATA_HOME`` or ``~/.local/share``.
    """
    if chosen := os.environ.get("AGENTENV_DATA"):
        return Path(chosen).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local/share").absolute() / "agentenv"


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
