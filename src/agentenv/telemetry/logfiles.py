"""Reading a rotated log, whole or while it grows.

Yields the bytes as they were written; ``text.printable_stream`` makes them fit for a terminal. Nothing is locked:
a rotation in the middle neither repeats nor skips bytes, as long as the parts exist.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from agentenv.telemetry.regular import open_regular
from agentenv.telemetry.rotation import part_path

_CHUNK_BYTES = 64 * 2**10
# After stop is set, follow() reads at most this much more of a log that keeps growing.
_LAST_BYTES = 2**20


def log_parts(path: Path) -> list[Path]:
    """Returns the files that exist of a log, newest first: ``stdout.log``, ``stdout.log.1``, ..."""
    return ([path] if path.exists() else []) + [part_path(path, number) for number in _numbers(path)]


def read_log(path: Path) -> Iterator[bytes]:
    """Yields a log's bytes in the order written, over all its parts. A log that was never written yields nothing.

    Raises:
        OSError: a part exists but cannot be read.
    """
    with ExitStack() as stack:
        for file in _open_parts(path, stack):
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk


def follow(path: Path, stop: threading.Event, *, poll_s: float = 0.2) -> Iterator[bytes]:
    """Yields a log's bytes from its oldest part on, then what is added, until ``stop`` is set.

    What was written before ``stop`` was set is still yielded (up to 1 MiB). The file may appear later, be rotated any
    number of times, be truncated or be deleted meanwhile; if parts vanished before they were read, a line says so.

    Args:
        path: The current file, such as ``.../stdout.log``.
        stop: Ends the generator.
        poll_s: Seconds between two looks at the file.

    Raises:
        OSError: the log exists but cannot be read.
    """
    file: BinaryIO | None = None
    try:
        left = _LAST_BYTES
        while True:
            stopping = stop.is_set()
            while left > 0:
                if file is None and (file := _oldest(path)) is None:
                    break
                if os.fstat(file.fileno()).st_size < file.tell():
                    file.seek(0)
                if chunk := file.read(_CHUNK_BYTES):
                    left -= len(chunk) if stopping or stop.is_set() else 0
                    yield chunk
                    continue
                newer, gap = _newer(path, file)
                if newer is None:
                    break
                # It may have grown between our last read and its rotation; it does not grow any more.
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
                if gap:
                    yield b"\n--- agentenv: part of the log was rotated away before it could be shown ---\n"
                file.close()
                file = newer
            if stopping or left <= 0:
                return
            stop.wait(poll_s)
    finally:
        if file is not None:
            file.close()


def _open_parts(path: Path, stack: ExitStack) -> list[BinaryIO]:
    """Opens the parts; returns them oldest first.

    Opened from the newest to the oldest: a rotation in between then shows a file twice, which its inode tells,
    rather than not at all. It may move the last one beyond what was listed: hence another look.
    """
    opened: list[BinaryIO] = []
    seen: set[tuple[int, int]] = set()
    numbers = [0, *_numbers(path)]
    while numbers:
        for number in numbers:
            with contextlib.suppress(FileNotFoundError):
                file = open_regular(part_path(path, number) if number else path, buffering=0)
                if (key := _identity(file)) in seen:
                    file.close()
                    continue
                seen.add(key)
                opened.append(stack.enter_context(file))
        numbers = [number for number in _numbers(path) if number > numbers[-1]]
    return opened[::-1]


def _numbers(path: Path) -> list[int]:
    """The numbers of the rotated parts there are, ascending."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in path.parent.iterdir():
            stem, _, number = entry.name.rpartition(".")
            if stem == path.name and number.isascii() and number.isdigit():
                found.append(int(number))
    return sorted(found)


def _oldest(path: Path) -> BinaryIO | None:
    with ExitStack() as stack:
        parts = _open_parts(path, stack)
        if not parts:
            return None
        for other in parts[1:]:
            other.close()
        stack.pop_all()
        return parts[0]


def _newer(path: Path, current: BinaryIO) -> tuple[BinaryIO | None, bool]:
    """The part written after this one, or None if this is the newest; and whether parts between them are gone."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        if (found.st_dev, found.st_ino) == _identity(current):
            return None, False
    with ExitStack() as stack:
        parts = _open_parts(path, stack)
        places = [_identity(part) for part in parts]
        gap = _identity(current) not in places
        after = 0 if gap else places.index(_identity(current)) + 1
        if after >= len(parts):
            return None, False
        for i, part in enumerate(parts):
            if i != after:
                part.close()
        stack.pop_all()
        return parts[after], gap


def _identity(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino
