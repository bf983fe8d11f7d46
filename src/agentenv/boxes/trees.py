"""Directories as streams of a tar archive: made of what this host has, and laid out from what a sandbox sends.

What a sandbox sends is hostile. So nothing in it is written through a link or outside of the target, no owner, device
or special mode is taken over, links come last, when there is nothing more to write through them, and all that takes
disk or memory of this host is counted.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tarfile
from pathlib import Path
from typing import IO

from agentenv.archives import Archive, DamagedArchive, Member
from agentenv.boxes.landing import landing
from agentenv.boxes.results import Copied
from agentenv.errors import AgentEnvError, ProtocolError

_MOST_NAMES = 1_000_000
# What is kept in memory until the end: links, modes of directories.
_MOST_HELD = 256 << 20
_MOST_TOLD = 5_000
_BLOCK = 1 << 20
_BUFFER = 1 << 18
# File systems give out space in blocks, and a directory takes one.
_PAGE = 4096
_NO_LINK = (errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS)


def pack(directory: Path, stream: IO[bytes], copied: Copied | None = None) -> None:
    """Write a directory as an archive whose names begin in it.

    Args:
        directory: The directory.
        stream: The archive.
        copied: Is told of what goes in.

    Raises:
        OSError: Something in it cannot be read; names its path.
    """
    told = copied or Copied()
    at = "."

    def take(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal at
        at = member.name
        found = _anonymous(member)
        if found is None:
            told.left_out.append(member.name.removeprefix("./"))
        elif not (found.isdir() or found.issym()):
            told.count(found.size)
        return found

    with tarfile.open(fileobj=stream, mode="w|", bufsize=_BUFFER, format=tarfile.PAX_FORMAT) as archive:
        try:
            archive.add(f"{directory}/.", ".", filter=take)
        except (ConnectionError, AgentEnvError):  # nobody takes the archive
            raise
        except OSError as error:
            if error.filename is not None:
                raise
            # Reading does not say what was read; tarfile has no number for what became shorter meanwhile.
            raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(directory / at)) from error


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """The host's owners mean nothing in a sandbox; its devices and pipes are not for it."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def lay_out(
    stream: IO[bytes], target: Path, *, most_bytes: int, sandbox: str, copied: Copied | None = None
) -> list[str]:
    """Lay out an archive in a directory, made if missing.

    Args:
        stream: The archive.
        target: The directory.
        most_bytes: Take no more of this host's disk than that, for contents in whole blocks, directories and names.
        sandbox: Named in errors.
        copied: Is told of the files.

    Returns:
        Names that were left out; after some thousand of them how many more.

    Raises:
        ProtocolError: It is no archive.
        OSError: It is too large, or the target cannot be written.
    """
    target.mkdir(parents=True, exist_ok=True)
    return _Layout(target.resolve(), most_bytes, sandbox, copied or Copied()).take(stream)


class _Layout:
    def __init__(self, target: Path, most_bytes: int, sandbox: str, copied: Copied) -> None:
        self._copied = copied
        self._target, self._left, self._most, self._sandbox = target, most_bytes, most_bytes, sandbox
        self._omitted: list[str] = []
        self._omitted_more = 0
        self._links: list[tuple[str, str]] = []
        self._modes: list[tuple[str, int]] = []
        # Digests, since a million names could be gigabytes.
        self._files: set[bytes] = set()
        self._names = self._held = 0

    def take(self, stream: IO[bytes]) -> list[str]:
        try:
            archive = Archive(stream)
            for member in archive:
                self._charge(member.header_bytes)
                if member.kind != "directory":  # those count where they are made
                    self._count()
                self._put(archive, member)
        except DamagedArchive as error:
            raise ProtocolError(f"sandbox {self._sandbox!r}: what it sent is no whole archive: {error}") from error
        for name, leads in self._links:
            self._link(name, leads)
        for name, mode in reversed(self._modes):
            self._at(name).chmod(mode)
        if self._omitted_more:
            self._omitted.append(f"... and {self._omitted_more:,} more")
        return self._omitted

    def _put(self, archive: Archive, member: Member) -> None:
        name = _inside(member.name)
        if name is None or (not name and member.kind != "directory"):
            self._omit(member.name)
        elif member.kind == "directory":
            self._directory(name)
            self._hold(name)
            self._modes.append((name, member.mode & 0o777 | 0o700))
        elif member.kind == "file":
            self._file(archive, member, name)
        elif member.kind == "hard link":
            self._twin(member, name)
        elif member.kind == "link":
            self._hold(name, member.leads)
            self._links.append((name, member.leads))
        else:
            self._omit(name)

    def _at(self, name: str) -> Path:
        return self._target / name

    def _count(self) -> None:
        self._names += 1
        if self._names > _MOST_NAMES:
            raise self._too_large(f"at most {_MOST_NAMES:,} files and directories", "copy a part of it")

    def _charge(self, size: int) -> None:
        self._left -= size
        self._want(0)

    def _want(self, size: int) -> None:
        if size > self._left:
            raise self._too_large(f"at most {self._most >> 20} MiB", "raise max_mb, or copy a part of it")

    def _hold(self, *names: str) -> None:
        self._held += sum(len(os.fsencode(name)) + 100 for name in names)
        if self._held > _MOST_HELD:
            raise self._too_large(f"at most {_MOST_HELD >> 20} MiB of names of links", "copy a part of it")

    def _too_large(self, expected: str, remedy: str) -> OSError:
        return OSError(errno.EFBIG, f"sandbox {self._sandbox!r}: expected {expected}, got more; {remedy}")

    def _omit(self, name: str) -> None:
        if len(self._omitted) < _MOST_TOLD:
            self._omitted.append(name)
        else:
            self._omitted_more += 1

    def _directory(self, name: str) -> None:
        """Have a directory there, and none of the steps to it a link."""
        here = self._target
        for part in name.split("/") if name else ():
            here = here / part
            if here.is_symlink():
                raise OSError(errno.ELOOP, "expected a directory to copy into, got a link; copy to another place", here)
            try:
                here.mkdir()
            except FileExistsError:
                if not here.is_dir():
                    raise
            else:
                self._charge(_PAGE)
                self._count()

    def _clear(self, name: str) -> Path:
        self._directory(name.rpartition("/")[0])
        path = self._at(name)
        if path.is_symlink() or path.exists():
            path.unlink()  # a directory in the way of a file is the user's to remove
        return path

    def _file(self, archive: Archive, member: Member, name: str) -> None:
        self._want(member.size)
        path = self._clear(name)
        with landing(path) as land:
            for piece in archive.content():
                self._charge(len(piece))
                land(piece)
            self._charge(-member.size % _PAGE)
        os.chmod(path, member.mode & 0o777)
        os.utime(path, (member.mtime, member.mtime))
        self._copied.count(member.size)
        self._files.add(_digest(name))

    def _twin(self, member: Member, name: str) -> None:
        """A hard link, which takes no more space, to a file that this copy has made."""
        source = _inside(member.leads)
        if source is None or _digest(source) not in self._files:
            self._omit(member.name)
            return
        if source == name:
            return
        path = self._clear(name)
        try:
            os.link(self._at(source), path, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self._copy(self._at(source), path)
        self._copied.count(0)
        self._files.add(_digest(name))

    def _copy(self, source: Path, path: Path) -> None:
        """Where a file has no more links, or none at all."""
        with open(source, "rb") as old, landing(path) as land:
            found = os.fstat(old.fileno())
            self._charge(found.st_size + -found.st_size % _PAGE)
            while block := old.read(_BLOCK):
                land(block)
        os.chmod(path, found.st_mode & 0o777)
        os.utime(path, ns=(found.st_mtime_ns, found.st_mtime_ns))

    def _link(self, name: str, leads: str) -> None:
        if not _stays(name, leads):
            self._omit(name)
            return
        self._clear(name).symlink_to(leads)


def _inside(name: str) -> str | None:
    """A name below the target, without empty parts; "" is the target itself, None what lies elsewhere."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if name.startswith("/") or ".." in parts else "/".join(parts)


def _stays(name: str, leads: str) -> bool:
    """Whether a link leads to a place in the copy, whatever the other links are.

    Steps upwards count only at its beginning, where they are taken from a real directory: behind a name that is a
    link itself they would lead from where that one leads.
    """
    parts = [part for part in leads.split("/") if part not in ("", ".")]
    up = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return bool(leads) and not leads.startswith("/") and up <= name.count("/") and ".." not in parts[up:]


def _digest(name: str) -> bytes:
    return hashlib.blake2b(os.fsencode(name), digest_size=16).digest()
