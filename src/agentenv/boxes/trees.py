"""Directories as streams of a tar archive: made of what this host has, and laid out from what a sandbox sends.

What a sandbox sends is hostile. So nothing in it is written through a link or outside of the target, no owner, device
or special mode is taken over, and links come last, when there is nothing more to write through them.
"""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from pathlib import Path
from typing import IO, Self

from agentenv.errors import ProtocolError

_MOST_NAMES = 1_000_000
_BLOCK = 1 << 20
_BUFFER = 1 << 18
_LONGEST_HEADER = 1 << 20
_OF_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


def pack(directory: Path, stream: IO[bytes]) -> None:
    """Write a directory as an archive whose names begin in it.

    Raises:
        OSError: Something in it cannot be read.
    """
    with tarfile.open(fileobj=stream, mode="w|", bufsize=_BUFFER, format=tarfile.PAX_FORMAT) as archive:
        archive.add(f"{directory}/.", ".", filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """The host's owners mean nothing in a sandbox; its devices and pipes are not for it."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


class _Member(tarfile.TarInfo):
    """Headers are held in memory, whatever size they say they have."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (member.type in _OF_HEADERS and member.size > _LONGEST_HEADER):
            raise tarfile.ReadError(f"a member of {member.size} bytes")
        return member


def lay_out(stream: IO[bytes], target: Path, *, most_bytes: int, sandbox: str) -> list[str]:
    """Lay out an archive in a directory, made if missing.

    Args:
        stream: The archive.
        target: The directory.
        most_bytes: Take no more than that.
        sandbox: Named in errors.

    Returns:
        Names that were left out.

    Raises:
        ProtocolError: It is no archive.
        OSError: It is too large, or the target cannot be written.
    """
    target.mkdir(parents=True, exist_ok=True)
    return _Layout(target.resolve(), most_bytes, sandbox).take(stream)


class _Layout:
    def __init__(self, target: Path, most_bytes: int, sandbox: str) -> None:
        self._target, self._left, self._most, self._sandbox = target, most_bytes, most_bytes, sandbox
        self._omitted: list[str] = []
        self._links: list[tuple[Path, str]] = []
        self._modes: list[tuple[Path, int]] = []
        self._files: set[Path] = set()
        self._names = 0

    def take(self, stream: IO[bytes]) -> list[str]:
        try:
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_BUFFER, tarinfo=_Member) as archive:
                for member in archive:
                    self._put(archive, member)
        except (tarfile.TarError, EOFError) as error:
            raise ProtocolError(f"sandbox {self._sandbox!r}: what it sent is no whole archive: {error}") from error
        for path, leads in self._links:
            self._link(path, leads)
        for path, mode in reversed(self._modes):
            path.chmod(mode)
        return self._omitted

    def _put(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._names += 1
        if self._names > _MOST_NAMES:
            raise OSError(errno.EFBIG, f"sandbox {self._sandbox!r}: expected at most {_MOST_NAMES} files, got more")
        path = self._place(member.name)
        if path is None or (path == self._target and not member.isdir()):
            self._omitted.append(member.name)
        elif member.isdir():
            self._directory(path)
            self._modes.append((path, member.mode & 0o777 | 0o700))
        elif member.isreg():
            self._file(archive, member, path)
        elif member.islnk():
            source = self._place(member.linkname)
            if source in self._files and source is not None:
                self._clear(path)
                shutil.copyfile(source, path, follow_symlinks=False)
                self._files.add(path)
            else:
                self._omitted.append(member.name)
        elif member.issym():
            self._links.append((path, member.linkname))
        else:
            self._omitted.append(member.name)

    def _place(self, name: str) -> Path | None:
        """Where a name lies below the target; None where it does not."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts:
            return None
        return self._target.joinpath(*parts)

    def _directory(self, path: Path) -> None:
        """Have a directory there, and none of the steps to it a link."""
        here = self._target
        for part in path.relative_to(self._target).parts:
            here = here / part
            if here.is_symlink():
                raise OSError(errno.ELOOP, "expected a directory to copy into, got a link; copy to another place", here)
            here.mkdir(exist_ok=True)

    def _clear(self, path: Path) -> None:
        self._directory(path.parent)
        if path.is_symlink() or path.exists():
            path.unlink()  # a directory in the way of a file is the user's to remove

    def _file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        self._left -= member.size
        if self._left < 0:
            most = f"at most {self._most >> 20} MiB"
            raise OSError(errno.EFBIG, f"sandbox {self._sandbox!r}: expected {most}, got more; raise max_mb")
        content = archive.extractfile(member)
        if content is None:
            self._omitted.append(member.name)
            return
        self._clear(path)
        with content, open(path, "xb") as file:
            shutil.copyfileobj(content, file, _BLOCK)
            os.fchmod(file.fileno(), member.mode & 0o777)
        os.utime(path, (member.mtime, member.mtime))
        self._files.add(path)

    def _link(self, path: Path, leads: str) -> None:
        if not self._stays(path, leads):
            self._omitted.append(str(path.relative_to(self._target)))
            return
        self._clear(path)
        path.symlink_to(leads)

    def _stays(self, path: Path, leads: str) -> bool:
        """Whether a link leads to a place in the copy, whatever the other links are.

        Steps upwards count only at its beginning, where they are taken from a real directory: behind a name that is a
        link itself they would lead from where that one leads.
        """
        parts = [part for part in leads.split("/") if part not in ("", ".")]
        up = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
        depth = len(path.parent.relative_to(self._target).parts)
        return not leads.startswith("/") and up <= depth and ".." not in parts[up:]
