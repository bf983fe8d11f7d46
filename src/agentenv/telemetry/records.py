"""Records that survive what happens to a run: one JSON object a line, each with a checksum.

A record is one ``write`` on a descriptor in append mode, so a process killed at any moment leaves at most one torn
line, at the end; the next writer starts a new line after it. The last member of every line, ``"crc"``, is the CRC-32
of the object without it: a flipped bit makes a damaged line, never another number. Any tool that reads JSON lines
can read these files. They are for our own small records; an observation has no business here.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentenv.telemetry.atomic import write_atomic
from agentenv.telemetry.jsontext import to_json
from agentenv.telemetry.regular import open_regular

__all__ = ["RecordWriter", "read_records", "to_json", "write_atomic"]

_logger = logging.getLogger("agentenv.telemetry")

_CHECKSUM = re.compile(rb',?"crc":"([0-9a-f]{8})"\}$')


class RecordWriter:
    """Appends records to a file, from any thread.

    The file is created at the first record; its directory must exist. In a forked child it writes nothing, since
    the records are the parent's.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._torn = False
        self._lost = 0
        self._closed = False
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @property
    def lost(self) -> int:
        """Records that could not be written."""
        return self._lost

    def append(self, record: Mapping[str, Any]) -> bool:
        """Writes one record; never raises for a reason of the disk.

        Returns:
            Whether it was written. If not, it is counted in ``lost``; the first time is reported through ``logging``.

        Raises:
            ValueError: the record has a member ``crc``, or contains itself.
        """
        line = encode_record(record)
        if os.getpid() != self._pid:
            return False
        with self._lock:
            error = self._write(line)
            if error is None:
                return True
            self._lost += 1
            first = self._lost == 1
        if first:
            _logger.warning(
                "a record cannot be written to %s: %s. The run goes on without it; further losses are only counted. "
                "Free some space or check the directory.",
                self.path,
                error.strerror or error,
            )
        return False

    def close(self) -> None:
        """Closes the file. Idempotent; records appended later are lost, and counted."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            if self._fd is not None:
                fd, self._fd = self._fd, None
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: bytes) -> OSError | None:
        if self._closed:
            return OSError("the writer was closed")
        try:
            if self._fd is None:
                self._fd, self._torn = _open(self.path)
            data = b"\n" + line if self._torn else line
            count = os.write(self._fd, data)
        except OSError as error:
            return error
        # A full disk may take the first part of a record. The next one then starts on a line of its own.
        self._torn = count < len(data)
        return OSError(f"the disk took {count} of {len(data)} bytes") if self._torn else None


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Returns a record as its line in the file.

    Raises:
        ValueError: it has a member ``crc``, or contains itself.
    """
    if "crc" in record:
        raise ValueError("expected a record without a member 'crc', which is the checksum's name")
    body = to_json(dict(record))
    comma = b"" if body == b"{}" else b","
    return body[:-1] + comma + b'"crc":"%08x"}\n' % zlib.crc32(body)


def decode_record(line: bytes) -> dict[str, Any] | None:
    """Returns the record of a line (without its newline), or None if the line is damaged."""
    found = _CHECKSUM.search(line)
    if found is None:
        return None
    body = line[: found.start()] + b"}"
    if zlib.crc32(body) != int(found.group(1), 16):
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_records(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Reads all records that are whole.

    Returns:
        The records in the order written, and the number of damaged lines that were skipped. A file that does not exist
        holds no records.

    Raises:
        OSError: the file exists but cannot be read.
    """
    records: list[dict[str, Any]] = []
    damaged = 0
    try:
        with open_regular(path) as file:
            # A binary file yields lines split on b"\n" alone.
            for line in file:
                line = line.removesuffix(b"\n")
                if not line:
                    continue
                record = decode_record(line)
                if record is None:
                    damaged += 1
                else:
                    records.append(record)
    except FileNotFoundError:
        pass
    return records, damaged


def _open(path: Path) -> tuple[int, bool]:
    """Opens for appending; says whether the last line lacks its end."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        size = os.fstat(fd).st_size
        return fd, size > 0 and os.pread(fd, 1, size - 1) != b"\n"
    except OSError:
        os.close(fd)
        raise
