"""Layers as they lie in a store: hashed while they are read, and decompressed whatever they are compressed with."""

from __future__ import annotations

import contextlib
import hashlib
import io
import subprocess
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from agentenv.errors import ProtocolError
from agentenv.images.programs import end, need_program
from agentenv.images.progress import Task

_CHUNK = 1 << 18


class Blob(io.RawIOBase):
    """A file whose content must have the digest it is named by.

    Args:
        path: The file.
        digest: Its SHA-256, in hexadecimal.
        task: Told of what is read.

    Raises:
        ProtocolError: There is no such file.
    """

    def __init__(self, path: Path, digest: str, task: Task) -> None:
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed in close)
        except OSError as error:
            raise ProtocolError(f"expected the layer sha256:{digest}, and it is missing") from error
        self._hash = hashlib.sha256()
        self._digest = digest
        self._task = task

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As of any raw stream."""
        count = self._file.readinto(buffer)
        self._hash.update(memoryview(buffer)[:count])
        self._task.advance(count)
        return count

    def finish(self) -> None:
        """Read the rest and compare.

        Raises:
            ProtocolError: It is not what its digest says.
        """
        buffer = bytearray(_CHUNK)
        while self.readinto(buffer):
            pass
        if self._hash.hexdigest() != self._digest:
            raise ProtocolError(f"expected a layer with digest {self._digest}, got {self._hash.hexdigest()}")

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._file.close()
        super().close()


@contextlib.contextmanager
def decompressed(source: io.RawIOBase) -> Iterator[IO[bytes]]:
    """What a stream contains; what it is compressed with is seen from its first bytes, as other tools do.

    Raises:
        ProtocolError: It is damaged.
        RuntimeUnavailable: The program for it is missing.
    """
    buffered: io.BufferedReader[Any] = io.BufferedReader(source, 1 << 20)
    try:
        magic = buffered.peek(4)[:4]
        if magic[:2] == b"\x1f\x8b":
            yield io.BufferedReader(_Gunzip(buffered), 1 << 20)
        elif magic == b"\x28\xb5\x2f\xfd":
            with _zstd(buffered) as stream:
                yield stream
        else:
            yield buffered
    finally:
        # Only what was wrapped closes the source.
        buffered.detach()


class _Gunzip(io.RawIOBase):
    """A gzip stream of one or several members that is only read forwards."""

    def __init__(self, source: io.BufferedReader[Any]) -> None:
        self._source = source
        self._inflate = zlib.decompressobj(31)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            while True:
                rest = self._inflate.unused_data.lstrip(b"\0") if self._inflate.eof else self._inflate.unconsumed_tail
                rest = rest or self._source.read1(_CHUNK)
                if self._inflate.eof:
                    rest = rest.lstrip(b"\0")  # padding between members
                    if not rest and not self._source.peek(1):
                        return 0
                    self._inflate = zlib.decompressobj(31)
                elif not rest:
                    raise ProtocolError("expected a layer compressed by gzip, got one that ends in the middle")
                if data := self._inflate.decompress(rest, len(buffer)):
                    buffer[: len(data)] = data
                    return len(data)
        except zlib.error as error:
            raise ProtocolError(f"expected a layer compressed by gzip, got a damaged one: {error}") from error


@contextlib.contextmanager
def _zstd(source: io.BufferedReader[Any]) -> Iterator[IO[bytes]]:
    program = need_program("zstd", "to unpack layers that are compressed with it")
    process = subprocess.Popen(
        [program, "-d", "-c", "-q"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    entrance = process.stdin

    def feed() -> None:
        with contextlib.suppress(OSError, ValueError), entrance:
            while chunk := source.read1(_CHUNK):
                entrance.write(chunk)

    feeder = threading.Thread(target=feed, name="agentenv-zstd", daemon=True)
    feeder.start()
    try:
        yield process.stdout
        # To the end, so that all of it is read and checked.
        while process.stdout.read(_CHUNK):
            pass
        feeder.join()
        if process.wait() != 0:
            raise ProtocolError("expected a layer compressed by zstd, got a damaged one")
    finally:
        end(process)
        feeder.join()
        process.stdout.close()
