"""Where users' data lies on the disk, what has to be there before anybody may count on it, and, in words, a disk that
takes nothing more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import ResourceLimit, RuntimeUnavailable

FULL = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (*FULL, errno.EROFS)
"""Of a disk that takes nothing more, whatever is written: it is full, a quota is, or it is read-only, as one that has
shown errors becomes by itself."""

MOUNT = "mount it writable (a disk that has shown errors needs fsck first)"


@dataclass(frozen=True, slots=True)
class Remedy:
    """What helps where a disk takes nothing more.

    Attributes:
        room: What makes room on it.
        elsewhere: How another disk is chosen.
    """

    room: str
    elsewhere: str


def data_directory() -> Path:
    """Where agentenv keeps what cannot be made again.

    ``$AGENTENV_DATA``, or "agentenv" in ``$XDG_DATA_HOME`` or ``~/.local/share``.

    Raises:
        RuntimeUnavailable: There is no home directory.
    """
    return _directory("AGENTENV_DATA", "XDG_DATA_HOME", ".local/share")


def cache_directory() -> Path:
    """Where agentenv keeps what can be made again.

    ``$AGENTENV_CACHE``, or "agentenv" in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        RuntimeUnavailable: There is no home directory.
    """
    return _directory("AGENTENV_CACHE", "XDG_CACHE_HOME", ".cache")


def _directory(ours: str, everybodys: str, below_home: str) -> Path:
    chosen = os.environ.get(ours)
    given = chosen or os.environ.get(everybodys)
    path = os.path.expanduser(given) if given else f"{_home()}/{below_home}"
    if path.startswith("~"):
        what = (
            f" for {ours}={chosen}" if chosen else f": HOME is not set, and user {os.getuid()} is in no list of users"
        )
        message = f"expected a home directory{what}"
        raise RuntimeUnavailable(message, f"set HOME=DIR, or {ours}=DIR")
    return Path(path).absolute() if chosen else Path(path).absolute() / "agentenv"


def _home() -> str:
    """Of this user; "~" where there is none, as in a container that runs as a number which is no user there."""
    try:
        return os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "~"


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
def room_for(what: str, path: Path, remedy: Remedy) -> Iterator[None]:
    """Turn a disk that takes nothing more into words; see ``no_room``.

    Raises:
        ResourceLimit: The disk or the quota is full, or it is read-only.
    """
    try:
        yield
    except ResourceLimit:
        raise
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise no_room(what, path, remedy, error.errno) from error


def no_room(what: str, path: Path, remedy: Remedy, code: int | None = None) -> ResourceLimit:
    """The error that says that a disk is full or read-only, for what, where, and what helps."""
    code = code or errno.ENOSPC
    if code == errno.EROFS:
        said = f"expected to write {what}{path}, but its disk is read-only"
        return ResourceLimit(code, f"{said}\n  remedy: {MOUNT}, or {remedy.elsewhere}")
    free = "?"
    with contextlib.suppress(OSError):
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        free = f"{shutil.disk_usage(existing).free >> 20} MB"
    said = f"no room on the disk for {what}{path} ({free} free)"
    return ResourceLimit(code, f"{said}\n  remedy: {remedy.room}, or {remedy.elsewhere}")
