"""Archives of tar from strangers, read forwards: every entry is bounded, and all that can be wrong is one error.

The standard library's reader keeps all entries, takes sizes from extended headers as they are, follows headers of
headers by recursion, and lets many kinds of errors through. This one has the formats that are in use - ustar, GNU's
long names, pax (POSIX.1-2008, "pax Extended Header") - and refuses sparse files, which no maker of layers writes.
"""

from __future__ import annotations

import math
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

LONGEST_NAME = 4096
"""Of a name or a link's target, in bytes, as of paths in Linux."""
LONGEST_HEADERS = 1 << 20
"""Of all that is said about one entry beside its 512 bytes."""
_GLOBAL = 1 << 16
_BLOCK = 512
_PIECE = 1 << 20
_BUFFER = 1 << 18
_XATTR = "SCHILY.xattr."
_SPARSE = "GNU.sparse."
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_LONG = {tarfile.GNUTYPE_LONGNAME: "path", tarfile.GNUTYPE_LONGLINK: "linkpath"}
_KINDS = {
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hard link",
    tarfile.FIFOTYPE: "pipe",
    tarfile.CHRTYPE: "character device",
    tarfile.BLKTYPE: "block device",
    **dict.fromkeys((tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE), "file"),
}
_KEPT = frozenset(("path", "linkpath", "size", "mtime", "uid", "gid"))
# What an inode of ext4 with 256 bytes can hold.
_TIMES = (-(1 << 31), (1 << 34) - (1 << 31) - 1)


class DamagedArchive(ValueError):
    """It is no archive, ends in the middle, or says what cannot be."""


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of an archive, with nothing in it that cannot be.

    Attributes:
        name: As it is there: it may lead anywhere, has no zero byte, and at most ``LONGEST_NAME`` bytes.
        kind: "file", "directory", "link", "hard link", "pipe", "character device", "block device" or "other".
        type: As tar calls it.
        leads: Where a link leads; as of names.
        mode: Permissions, with the special bits.
        uid: Owner, in 32 bits.
        gid: Group, in 32 bits.
        size: Bytes of content, from 0 on; only files have any, and what is of no known kind.
        mtime: Seconds since 1970, a finite number that a file system can hold.
        device: Major and minor number of a device.
        xattrs: Extended attributes.
        header_bytes: What its headers take in the archive.
    """

    name: str
    kind: str
    type: bytes
    leads: str
    mode: int
    uid: int
    gid: int
    size: int
    mtime: float
    device: tuple[int, int]
    xattrs: Mapping[str, bytes] = field(repr=False)
    header_bytes: int


class Archive:
    """The entries of an archive, one after the other; each is forgotten when the next is asked for.

    Args:
        stream: The archive, not compressed; it is read in blocks, so also beyond the archive's end.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._buffer = memoryview(b"")
        self._globals: dict[str, bytes] = {}
        self._global_bytes = 0
        self._content = self._padding = 0

    def __iter__(self) -> Iterator[Member]:
        """All entries.

        Raises:
            DamagedArchive: See there. Errors of the stream pass.
        """
        first = True
        while (member := self._next(first=first)) is not None:
            yield member
            first = False

    def content(self) -> Iterator[bytes]:
        """What is left of the content of the entry that came last, in pieces of at most 1 MiB.

        Raises:
            DamagedArchive: The archive ends in it.
        """
        while self._content:
            piece = self._some(min(self._content, _PIECE))
            if not piece:
                raise DamagedArchive("it ends in the content of a file")
            self._content -= len(piece)
            yield piece

    def _next(self, *, first: bool) -> Member | None:
        for _ in self.content():
            pass
        self._exactly(self._padding)
        self._padding = 0
        told: dict[str, bytes] = {}
        taken = 0
        while True:
            block = self._exactly(_BLOCK, may_end=not taken)
            if first and not block:
                raise DamagedArchive("it is empty")
            if not block.strip(b"\0"):
                if taken:
                    raise DamagedArchive("it ends between the headers of an entry")
                return None
            first = False
            taken += _BLOCK
            try:
                header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                raise DamagedArchive(f"{error} in a header") from error
            kind = header.type
            if kind == tarfile.XGLTYPE or kind in _PAX or kind in _LONG:
                data = self._header(header.size, taken)
                taken += len(data) + -len(data) % _BLOCK
                if kind == tarfile.XGLTYPE:
                    self._take_global(data)
                elif kind in _PAX:
                    told.update(_records(data))
                else:
                    told[_LONG[kind]] = data.partition(b"\0")[0]
                continue
            # What is said to be empty is as the entry itself has it.
            said = {key: value for key, value in {**self._globals, **told}.items() if value or key not in _KEPT}
            member = _member(header, said, taken)
            self._content = member.size
            self._padding = -self._content % _BLOCK
            return member

    def _header(self, size: int, taken: int) -> bytes:
        if not 0 <= size <= LONGEST_HEADERS - taken:
            raise DamagedArchive(
                f"expected at most {LONGEST_HEADERS:,} bytes of headers of an entry, got a member of {size:,} bytes"
            )
        data = self._exactly(size)
        self._exactly(-size % _BLOCK)
        return data

    def _take_global(self, data: bytes) -> None:
        self._global_bytes += len(data)
        if self._global_bytes > _GLOBAL:
            raise DamagedArchive(f"expected at most {_GLOBAL:,} bytes of headers for all entries, got more")
        self._globals.update(_records(data))

    def _exactly(self, size: int, *, may_end: bool = False) -> bytes:
        """So many bytes; none at the end of the stream, where it may be there."""
        data = b""
        while len(data) < size:
            piece = self._some(size - len(data))
            if not piece:
                if may_end and not data:
                    return b""
                raise DamagedArchive("it ends in the middle")
            data += piece
        return data

    def _some(self, most: int) -> bytes:
        if not self._buffer:
            if most >= _BUFFER:
                return self._stream.read(most)
            self._buffer = memoryview(self._stream.read(_BUFFER))
        piece = bytes(self._buffer[:most])
        self._buffer = self._buffer[most:]
        return piece


def _records(data: bytes) -> Iterator[tuple[str, bytes]]:
    """What an extended header says of what counts here: ``LENGTH KEY=VALUE``, each with a line feed at its end."""
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 20)
        digits = data[at : max(at, space)]
        end = at + int(digits) if digits.isdigit() else 0
        if not space < end - 1 < len(data) or data[end - 1 : end] != b"\n":
            raise DamagedArchive(f"expected LENGTH KEY=VALUE in an extended header, got {data[at : at + 40]!r}")
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not equals:
            raise DamagedArchive(f"expected KEY=VALUE in an extended header, got {key[:40]!r}")
        name = key.decode("utf-8", "surrogateescape")
        if name in _KEPT or name.startswith((_XATTR, _SPARSE)):
            yield name, value
        at = end


def _member(header: tarfile.TarInfo, told: Mapping[str, bytes], header_bytes: int) -> Member:
    name = _name(told.get("path"), header.name)
    if header.type == tarfile.GNUTYPE_SPARSE or any(key.startswith(_SPARSE) for key in told):
        raise DamagedArchive(f"expected files that are stored whole, got {name[:200]!r} as a sparse one")
    kind = _KINDS.get(header.type, "other")
    size = _number(told.get("size"), header.size, 63, "size", name)
    device = (0, 0)
    if kind.endswith(" device"):
        major = _number(None, header.devmajor, 12, "major number", name)
        device = major, _number(None, header.devminor, 20, "minor number", name)
    return Member(
        name=name.rstrip("/") if kind == "directory" or "path" in told else name,
        kind=kind,
        type=header.type,
        leads=_name(told.get("linkpath"), header.linkname) if kind.endswith("link") else "",
        mode=header.mode & 0o7777,
        uid=_number(told.get("uid"), header.uid, 32, "owner", name),
        gid=_number(told.get("gid"), header.gid, 32, "group", name),
        size=size if kind in ("file", "other") else 0,
        mtime=_time(told.get("mtime"), header.mtime, name),
        device=device,
        xattrs={key[len(_XATTR) :]: value for key, value in told.items() if key.startswith(_XATTR)},
        header_bytes=header_bytes,
    )


def _name(told: bytes | None, otherwise: str) -> str:
    name = otherwise if told is None else told.decode("utf-8", "surrogateescape")
    if "\0" in name or len(name.encode("utf-8", "surrogateescape")) > LONGEST_NAME:
        raise DamagedArchive(f"expected names of at most {LONGEST_NAME} bytes, none of them zero, got {name[:200]!r}")
    return name


def _number(told: bytes | None, otherwise: int, bits: int, what: str, name: str) -> int:
    number = otherwise
    if told is not None:
        number = int(told) if told.isdigit() and len(told) <= 20 else -1
    if not 0 <= number < 1 << bits:
        got = f"{otherwise:#x}" if told is None else repr(told[:40])
        raise DamagedArchive(f"expected a number of {bits} bits as {what} of {name[:200]!r}, got {got}")
    return number


def _time(told: bytes | None, otherwise: float, name: str) -> float:
    try:
        when = float(otherwise if told is None else told)
    except ValueError as error:
        raise DamagedArchive(f"expected a time of {name[:200]!r}, got {(told or b'')[:40]!r}") from error
    except OverflowError:
        when = math.inf
    least, most = _TIMES
    return 0.0 if math.isnan(when) else min(max(when, least), most)
