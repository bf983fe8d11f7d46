"""Opening what should be a file of ours: a pipe would keep whoever opens it for ever, a device gives data for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path, *, buffering: int = -1) -> BinaryIO:
    """Open a file for reading.

    Args:
        path: The file, or a link to it.
        buffering: As of ``open``.

    Raises:
        OSError: It cannot be opened, or it is no file; names ``path``.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))
    # Not to wait, where a pipe took its place in between.
    return open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=buffering)


def read_regular(path: Path) -> bytes:
    """The content of a file; as ``open_regular``."""
    with open_regular(path) as file:
        return file.read()
