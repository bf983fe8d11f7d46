"""Files and trees of files: digests, sizes, syncing, removal, and a full disk said in words."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import stat
from pathlib import Path

from agentenv.disk import Remedy
from agentenv.images.progress import Task

_CHUNK = 1 << 20
MAKE_ROOM = Remedy("agentenv image gc", "choose another disk with AGENTENV_CACHE=DIR")
"""What helps where the disk of the store is full or read-only."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def digest_file(path: Path, task: Task | None = None) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
            if task is not None:
                task.advance(len(chunk))
    return found.hexdigest()


def disk_bytes(path: Path) -> int:
    """What a file or a tree takes of the disk; what vanishes meanwhile counts nothing."""
    total = 0
    pending = [str(path)]
    while pending:
        one = pending.pop()
        with contextlib.suppress(OSError):
            found = os.lstat(one)
            total += found.st_blocks * 512
            if stat.S_ISDIR(found.st_mode):
                with os.scandir(one) as entries:
                    pending += [entry.path for entry in entries]
    return total


def sync_tree(path: Path) -> None:
    """Wait until a file, or a tree with everything in it, is on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # One call for the whole file system: a tree has tens of thousands of files.
        if not stat.S_ISDIR(os.fstat(fd).st_mode) or _LIBC.syncfs(fd) != 0:
            os.fsync(fd)
    finally:
        os.close(fd)


def remove_tree(path: Path) -> None:
    """Remove a file or a tree, however deep, also one whose directories forbid it; what cannot be removed stays,
    without an error.
    """
    if not path.is_dir() or path.is_symlink():
        with contextlib.suppress(OSError):
            path.unlink()
        return
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        with contextlib.suppress(OSError):
            _flatten(path)
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)


def _flatten(path: Path) -> None:
    """Remove the files of a tree and bring its directories to its top, where each is soon empty.

    So no name is too long, and nothing goes as deep as the tree does.
    """
    path.chmod(0o700)
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        pending, count = _empty(top, top, 0)
        while pending:
            name = pending.pop()
            with contextlib.suppress(OSError):
                os.chmod(name, 0o700, dir_fd=top)
                folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
                try:
                    found, count = _empty(folder, top, count)
                finally:
                    os.close(folder)
                pending += found
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _empty(folder: int, top: int, count: int) -> tuple[list[str], int]:
    """Remove a directory's files and move its directories to the top; their names there, and how many were given."""
    moved = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                os.unlink(name, dir_fd=folder)
                continue
            os.chmod(name, 0o700, dir_fd=folder)  # for its "..", which changes
            count += 1
            place = f".removed-{os.getpid()}-{count}"
            os.rename(name, place, src_dir_fd=folder, dst_dir_fd=top)
            moved.append(place)
    return moved, count
