"""Locks on files, which the kernel releases when their holder ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path


def take(path: Path, *, shared: bool = False, wait: bool = True, create: bool = False) -> int | None:
    """Lock a file or a directory until the returned descriptor is closed.

    Args:
        path: What to lock.
        shared: Whether others may hold it shared at the same time.
        wait: Whether to wait for others.
        create: Whether a file that does not exist is made.

    Returns:
        A descriptor; None if another one holds it and we do not wait.

    Raises:
        FileNotFoundError: There is nothing to lock.
    """
    if path.is_dir():
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        # Reading is enough for a lock, and all there is of a file that must not change.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    except BaseException:
        os.close(fd)
        raise
    return fd


def hold(path: Path, waiting: Callable[[], None] | None = None, *, alone: bool = False) -> int:
    """Lock a file or a directory shared with others, so that whoever wants it alone to remove it does not get it.

    Args:
        path: What to lock. What it meant before and no longer means is not it: that was removed while we waited.
        waiting: Called once if somebody has it alone now.
        alone: Whether it is not shared.

    Returns:
        A descriptor; until it is closed the lock is ours.

    Raises:
        FileNotFoundError: There is nothing of this name, or not any more.
    """
    while True:
        fd = take(path, shared=not alone, wait=False)
        if fd is None:
            if waiting is not None:
                waiting()
            fd = take(path, shared=not alone)
        assert fd is not None
        if is_at(fd, path):
            return fd
        os.close(fd)  # removed meanwhile, and perhaps made again


def is_at(fd: int, path: Path) -> bool:
    """Whether what a descriptor refers to has this name still."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False, waiting: Callable[[], None] | None = None) -> Iterator[int]:
    """Hold a lock for a block.

    Args:
        path: The file, made if missing.
        shared: Whether others may hold it shared at the same time.
        waiting: Called once if somebody else holds it now.
    """
    while True:
        fd = take(path, shared=shared, wait=False, create=True)
        if fd is None:
            if waiting is not None:
                waiting()
            fd = take(path, shared=shared, create=True)
        assert fd is not None
        if is_at(fd, path):
            break
        os.close(fd)  # removed meanwhile: whoever comes now locks another one
    try:
        yield fd
    finally:
        os.close(fd)


def share(fd: int) -> None:
    """Let others hold a lock beside us that was ours alone."""
    fcntl.flock(fd, fcntl.LOCK_SH)
