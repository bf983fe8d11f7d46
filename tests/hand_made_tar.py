"""Archives of tar put together by hand, with what no tool would write."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping


def block(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", *, size: int | None = None, leads: str = ""
) -> bytes:
    """One header of 512 bytes with what follows it; ``size`` is what the header says where that is a lie."""
    header = tarfile.TarInfo(name)
    header.type, header.linkname = kind, leads
    header.size = len(data) if size is None else size
    return header.tobuf(tarfile.GNU_FORMAT) + data + b"\0" * (-len(data) % 512)


def records(said: Mapping[str, bytes | str]) -> bytes:
    """What an extended header holds."""
    out = b""
    for key, value in said.items():
        rest = f" {key}=".encode() + (value.encode() if isinstance(value, str) else value) + b"\n"
        length = len(rest) + 1
        while len(str(length)) + len(rest) != length:
            length = len(str(length)) + len(rest)
        out += str(length).encode() + rest
    return out


def pax(said: Mapping[str, bytes | str], *, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """An extended header."""
    return block("PaxHeaders/x", kind, records(said))


def end() -> bytes:
    """The end of an archive."""
    return bytes(1024)


class Endless(io.RawIOBase):
    """A beginning, and after that the same bytes for ever; knows how much of it was read."""

    def __init__(self, begins: bytes, goes_on: bytes = bytes(512)) -> None:
        self._begins, self._goes_on = begins, goes_on
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "all of what never ends"
        head = self._begins[self.count : self.count + size]
        at = (self.count + len(head) - len(self._begins)) % len(self._goes_on)
        rest = size - len(head)
        tail = (self._goes_on[at:] + self._goes_on * (rest // len(self._goes_on) + 1))[:rest]
        self.count += size
        assert self.count < 64 << 20, "more was read than anybody needs"
        return head + tail
