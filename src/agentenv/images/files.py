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
    with contextlib.suppress(OSError):
        found = path.lstat()
        total = found.st_blocks * 512
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(path) as entries:
                total += sum(disk_bytes(Path(entry.path)) for entry in entries)
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
    """Remove a file or a tree, also one whose directories forbid it; what cannot be removed stays, without an error."""
    if not path.is_dir() or path.is_symlink():
        with contextlib.suppress(OSError):
            path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        for folder, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                os.chmod(folder, 0o700)
                for name in os.listdir(folder):
                    if os.path.isdir(below := os.path.join(folder, name)) and not os.path.islink(below):
                        os.chmod(below, 0o700)
        shutil.rmtree(path, ignore_errors=True)
