"""Files that are made on this host of what a sandbox sends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentenv.disk import Remedy, room_for
from agentenv.errors import ResourceLimit
from agentenv.wire.holes import end_sparsely, write_sparsely

_REMEDY = Remedy("free some of it", "copy to another disk")
# Of a name, in a temporary one: a name of 255 bytes has no room for more.
_STEM = 40
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def temporary_beside(path: Path) -> tuple[str, int]:
    """An empty file in the same directory, to take its place; its path and its descriptor.

    Raises:
        ResourceLimit: The disk is full.
        OSError: There is no such directory, or it may not be written; names the path that was asked for.
    """
    with _told(path.parent):
        try:
            fd, temporary = tempfile.mkstemp(prefix=f".{path.name[:_STEM]}.", suffix=".part", dir=path.parent)
        except OSError as error:
            error.filename = str(path)
            raise
    return temporary, fd


@contextmanager
def landing(path: Path, fd: int = -1) -> Iterator[Callable[[bytes], None]]:
    """What writes a new file, piece by piece; it is whole after the block. Zeros become holes.

    Args:
        path: The file.
        fd: Its descriptor, where it is there already; closed.

    Raises:
        ResourceLimit: The disk is full.
        OSError: It cannot be written; names it.
    """

    def land(piece: bytes) -> None:
        with _told(path):
            write_sparsely(fd, piece)

    with _told(path):
        fd = os.open(path, _FLAGS, 0o666) if fd < 0 else fd
    try:
        yield land
        with _told(path):
            end_sparsely(fd)
    finally:
        os.close(fd)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Have what fails named: whatever has no name is taken for the sandbox's."""
    try:
        with room_for("the copy in ", path.parent, _REMEDY):
            yield
    except ResourceLimit:
        raise
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise
