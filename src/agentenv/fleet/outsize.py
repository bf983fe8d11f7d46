"""How much a directory holds that hostile code writes to.

Nothing in it is opened but directories, none through a symbolic link, and the walk is bounded in entries and in depth:
what goes beyond the bounds counts as too large.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_MAX_ENTRIES = 100_000
_MAX_DEPTH = 64
_ENTRY_BYTES = 512
_CLOSED = "a directory that may not be read"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def find_excess(directory: Path, limit_bytes: int) -> str:
    """Look whether a directory has outgrown its limit.

    Args:
        directory: The directory; one that is missing holds nothing.
        limit_bytes: The most that is allowed: disk blocks, and a little for every entry.

    Returns:
        What is too much, or keeps that from being seen, in words; or "".
    """
    try:
        root = os.open(directory, _OPEN)
    except PermissionError:
        return _CLOSED
    except OSError:
        return ""
    total = entries = 0
    open_fds: list[int] = [root]
    stack: list[list[str]] = [_names(root)]
    try:
        while stack:
            if not stack[-1]:
                stack.pop()
                os.close(open_fds.pop())
                continue
            name = stack[-1].pop()
            entries += 1
            if entries > _MAX_ENTRIES:
                return f"more than {_MAX_ENTRIES} files"
            try:
                found = os.stat(name, dir_fd=open_fds[-1], follow_symlinks=False)
                total += found.st_blocks * 512 + _ENTRY_BYTES
                if total > limit_bytes:
                    return f"more than {limit_bytes >> 20} MB"
                if stat.S_ISDIR(found.st_mode):
                    if len(stack) >= _MAX_DEPTH:
                        return f"directories more than {_MAX_DEPTH} deep"
                    child = os.open(name, _OPEN, dir_fd=open_fds[-1])
                    open_fds.append(child)
                    stack.append(_names(child))
            except PermissionError:
                return _CLOSED  # there may be any number of files in it
            except OSError:
                continue  # it went away while we looked
    finally:
        for fd in open_fds:
            os.close(fd)
    return ""


def _names(fd: int) -> list[str]:
    # The kernel hands out names as they come; more than the bound need not be held.
    names: list[str] = []
    try:
        with os.scandir(fd) as found:
            for entry in found:
                names.append(entry.name)
                if len(names) > _MAX_ENTRIES:
                    break
    except OSError:
        pass
    return names
