"""Writes the archive that a kernel unpacks as its first file system: format "newc", the same bytes for the same files.

The format is described in the kernel's Documentation/driver-api/early-userspace/buffer-format.rst. Devices can be
written without being root, because they are numbers in a header.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, directory or character device; all are root's.

    Attributes:
        path: Without a leading slash.
        mode: Kind and permissions.
        data: Content of a file.
        device: (major, minor) of a device.
    """

    path: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def directory(path: str) -> Entry:
    """A directory."""
    return Entry(path, stat.S_IFDIR | 0o755)


def file(path: str, data: bytes, *, executable: bool = False) -> Entry:
    """A file."""
    return Entry(path, stat.S_IFREG | (0o755 if executable else 0o644), data)


def character_device(path: str, major: int, minor: int) -> Entry:
    """A character device that only root may use."""
    return Entry(path, stat.S_IFCHR | 0o600, b"", (major, minor))


def write_cpio(out: IO[bytes], entries: list[Entry]) -> None:
    """Write an archive; directories must come before what is in them."""
    for number, entry in enumerate([*entries, Entry("TRAILER!!!", 0)], 1):
        name = entry.path.encode() + b"\0"
        links = 2 if stat.S_ISDIR(entry.mode) else 1
        fields = [number, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, *entry.device, len(name), 0]
        _write(out, b"070701" + b"".join(b"%08X" % field for field in fields) + name)
        _write(out, entry.data)


def _write(out: IO[bytes], data: bytes) -> None:
    out.write(data)
    out.write(b"\0" * (-len(data) % 4))
