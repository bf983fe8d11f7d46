"""The directories of machines: one for each run, which whoever outlives the run removes.

Its name says which process made it, and a lock on it that this process lives: a sweep may run where numbers of
processes mean others, as in a container that shares the host's directory for what is temporary.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from agentenv.disk import Remedy
from agentenv.sandbox.runtimes._runid import is_run_id, run_is_alive
from agentenv.sandbox.runtimes._vm.files import room_in

REMEDY = Remedy("free some of the disk", "choose another directory for what is temporary with TMPDIR=DIR")
_PREFIX = "agentenv."
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_held: dict[Path, int] = {}


def make_homes(run_id: str) -> Path:
    """The directory of a run's machines.

    Raises:
        ResourceLimit: There is no room, or it may not be made.
    """
    homes = Path(tempfile.gettempdir()) / f"{_PREFIX}{run_id}"
    with room_in(homes.parent, "keep the machines' own files", REMEDY):
        homes.mkdir(mode=0o700)
    keep_homes(homes)
    return homes


def keep_homes(homes: Path) -> None:
    """Have the directory of a run's machines there, held.

    Raises:
        ResourceLimit: There is no room, or it may not be made.
    """
    with room_in(homes.parent, "keep the machines' own files", REMEDY):
        homes.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(homes, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    _let_go(homes)
    _held[homes] = fd
    with contextlib.suppress(OSError):  # as good as the file system; and nobody else has a reason to lock it
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_homes(homes: Path) -> None:
    """Remove the directory of a run's machines. Idempotent."""
    shutil.rmtree(homes, ignore_errors=True)
    _let_go(homes)


def _let_go(homes: Path) -> None:
    fd = _held.pop(homes, None)
    if fd is not None:
        os.close(fd)


def memory_of_files_mb(directory: Path) -> int:
    """How much of a monitor's memory its files in a directory may be, MiB: 0 where they are on a disk.

    What is written to a file system in memory is charged to the control group of whoever writes it, and stays so: a
    machine that fills its drive there would have its monitor killed. How much that may be is the file system's to say.
    """
    device = os.stat(directory).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            place, _, kind = line.partition(" - ")
            if place.split()[2] == number and kind.split()[0] == "tmpfs":
                found = os.statvfs(directory)
                return found.f_blocks * found.f_frsize >> 20
    return 0


def sweep_homes(is_alive: Callable[[str], bool] = run_is_alive) -> tuple[str, ...]:
    """Remove the directories of runs that are dead; returns their ids."""
    removed = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        run_id = path.name.removeprefix(_PREFIX)
        if not is_run_id(run_id) or is_alive(run_id):
            continue
        with contextlib.suppress(OSError):  # another user's, or no directory
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if _is_free(fd):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)
            if not path.exists():
                removed.append(run_id)
    return tuple(removed)


def _is_free(fd: int) -> bool:
    """Whether nobody holds a directory; we do then, until it is closed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _NO_LOCKS
    return True


def _forget_all() -> None:
    """A fork of the host must not keep what it held, or it would outlive the host."""
    for homes in list(_held):
        _let_go(homes)


os.register_at_fork(after_in_child=_forget_all)
