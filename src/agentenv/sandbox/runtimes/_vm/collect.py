"""What a command left in /out, brought out of a machine as an archive and unpacked on the host; hostile data.

Whoever owns the machine's kernel writes this archive as it likes. So it is read by ``agentenv.archives``, which bounds
every entry, and not by the standard library's reader, which unpacks what is compressed, reads headers of any length
into memory and fails in many ways. No name is followed through a link, and what takes an inode is counted.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from agentenv.archives import Archive, DamagedArchive, Member
from agentenv.disk import UNWRITABLE

logger = logging.getLogger("agentenv.sandbox")

_MOST_FILES = 100_000
_MOST_DEPTH = 256
_Names = dict[str, "_Names"]
"""Of directories that are there, with those in them."""


def unpack(archive: Path, target: Path, *, most_bytes: int) -> None:
    """Unpack regular files and directories below ``target``; what is anything else, or lies elsewhere, is left out.

    So is what lies deeper than programs go, and not all go through a tree without recursion.

    Args:
        archive: A tar file, perhaps cut short; where nothing has come, an empty one.
        target: An existing directory.
        most_bytes: Of all files together; the rest is left out.
    """
    try:
        with open(archive, "rb") as stream:
            if os.fstat(stream.fileno()).st_size:
                _Target(target, most_bytes).take(Archive(stream))
    except _TooMuch:
        logger.warning("%s: more than %d MiB were left in /out; the rest was dropped", target, most_bytes >> 20)
    except DamagedArchive as error:
        logger.warning("%s: what was left in /out came as no whole archive, the rest is lost: %s", target, error)
    except OSError as error:
        logger.warning("%s: what was left in /out is lost from here on: %s", target, error.strerror)


class _TooMuch(Exception):
    """More was left than there is room for."""


class _Target:
    """A directory in which an archive is laid out."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._path, self._left, self._number = path, most_bytes, 0
        self._known: _Names = {}

    def take(self, archive: Archive) -> None:
        """Lay it out.

        Raises:
            _TooMuch: There is no room for all of it.
            DamagedArchive: It is no archive from there on.
            OSError: The disk takes nothing more.
        """
        for member in archive:
            self._count(member.size)
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if member.kind not in ("file", "directory") or member.name.startswith("/") or ".." in parts:
                continue
            if len(parts) > _MOST_DEPTH:
                continue
            try:
                self._put(archive, member, parts)
            except OSError as error:
                # Anything else is what a name or a place of theirs is refused for.
                if error.errno in UNWRITABLE:
                    raise

    def _put(self, archive: Archive, member: Member, parts: list[str]) -> None:
        is_file = member.kind == "file"
        self._make_directories(parts[:-1] if is_file else parts)
        if is_file and parts:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(self._path.joinpath(*parts), flags, 0o666), "wb") as file:
                for piece in archive.content():
                    file.write(piece)

    def _make_directories(self, parts: list[str]) -> None:
        """Each once: names of thousands of parts would take hours if all of them were looked at for every file."""
        below = self._known
        for depth, part in enumerate(parts, 1):
            if part not in below:
                place = self._path.joinpath(*parts[:depth])
                try:
                    place.mkdir()
                except FileExistsError:
                    if place.is_symlink():
                        raise
                else:
                    self._count(0)
                below[part] = {}
            below = below[part]

    def _count(self, size: int) -> None:
        self._number += 1
        self._left -= size
        if self._number > _MOST_FILES or self._left < 0:
            raise _TooMuch
