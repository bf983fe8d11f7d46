"""A file that never grows past its cap: ``stdout.log`` becomes ``stdout.log.1``, and so on.

The disk cost is at most ``(keep + 1) * max_bytes``, whatever is written. It holds at most one descriptor, opened at
the first byte, and refuses to follow a symbolic link. It knows nothing of locks, tails or reports: see ``sink``.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

# O_NONBLOCK: a FIFO in the file's place is an error at once, not a reader we wait for. Regular files ignore it.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def part_path(path: Path, number: int) -> Path:
    """Returns the path of a rotated part; number 1 is the newest of them."""
    return path.with_name(f"{path.name}.{number}")


class RotatingFile:
    """Appends bytes under a size cap.

    Args:
        path: The file being written.
        max_bytes: Most bytes in one part.
        keep: Rotated parts kept beside the current one; 0 keeps none.
    """

    def __init__(self, path: Path, *, max_bytes: int, keep: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd: int | None = None
        self._size = 0

    def write(self, data: bytes) -> tuple[int, OSError | None]:
        """Appends as much as the disk takes.

        Returns:
            How many bytes of ``data`` are in the file, and the error that stopped it, or None. After an error the
            next call tries anew.
        """
        view = memoryview(data)
        done = 0
        try:
            while done < len(data):
                fd = self._open()
                room = self._max_bytes - self._size
                if room <= 0:
                    self._rotate()
                    continue
                piece, cut = self._fit(data, done, room)
                count = os.write(fd, view[done : done + piece])
                done += count
                self._size += count
                if cut and count == piece:
                    self._rotate()
        except OSError as error:
            return done, error
        return done, None

    def close(self) -> None:
        """Closes the descriptor; a later write opens the file again."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def _fit(self, data: bytes, start: int, room: int) -> tuple[int, bool]:
        """How many bytes to write now, and whether the part ends after them.

        A part ends at a line's end if it can: after the last line that fits, or before one that fits into a new part.
        """
        left = len(data) - start
        if left <= room:
            return left, False
        newline = data.rfind(b"\n", start, start + room)
        if newline != -1:
            return newline + 1 - start, True
        ends = data.find(b"\n", start, start + self._max_bytes)
        fits_anew = ends != -1 or left <= self._max_bytes
        return (0 if fits_anew and room < self._max_bytes else room), True

    def _open(self) -> int:
        if self._fd is None:
            fd = os.open(self.path, _FLAGS, 0o644)
            found = os.fstat(fd)
            self._size = found.st_size if stat.S_ISREG(found.st_mode) else 0
            self._fd = fd
        return self._fd

    def _rotate(self) -> None:
        self.close()
        if self._keep == 0:
            self.path.unlink(missing_ok=True)
            return
        for number in range(self._keep - 1, 0, -1):
            older = part_path(self.path, number)
            if older.exists():
                older.replace(part_path(self.path, number + 1))
        self.path.replace(part_path(self.path, 1))
