"""A stream of a link, joined to descriptors: bytes between them, as many as the other side has granted.

END goes both ways. From whoever reads a descriptor it says that no more bytes will come; from whoever writes one, that
nobody takes them any more, so that a program whose output nobody reads gets the broken pipe it would have anywhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from typing import Protocol

from agentenv.guest.pumping import HANGUP, READ, WRITE, Loop, close_quietly
from agentenv.wire.frames import CHUNK, CREDIT, RPC, WINDOW, Kind


class Carrier(Protocol):
    """What a tunnel needs of its link."""

    holding: bool

    @property
    def crowded(self) -> bool: ...

    def send(self, kind: Kind, stream: int = 0, body: bytes = b"") -> None: ...

    def left(self, stream: int) -> None: ...


class Tunnel:
    """A stream of a link, joined to descriptors. Made by ``Link.join``.

    Attributes:
        reading: Whether bytes may still come from its reader.
    """

    def __init__(
        self,
        link: Carrier,
        loop: Loop,
        stream: int,
        reader: int,
        writer: int,
        taker: Callable[[bytes], None] | None,
        on_end: Callable[[], None] | None,
        on_orphan: Callable[[int], None] | None,
        credit: int = WINDOW,
        most_bytes: int | None = None,
    ) -> None:
        """See ``Link.join``."""
        self._link, self._loop, self._stream = link, loop, stream
        self._reader, self._writer, self._taker, self._on_end = reader, writer, taker, on_end
        self._on_orphan, self._room = on_orphan, most_bytes
        self._only_reads = writer < 0 and taker is None
        self._only_writes = reader < 0 and taker is None
        self._credit = credit
        self._taken = 0  # bytes that were passed on and not yet granted anew
        self._pending = bytearray()
        self._ended = False
        self.reading = reader >= 0
        for fd in {reader, writer} - {-1}:
            os.set_blocking(fd, False)
        self._watch()

    @property
    def unwritten(self) -> int:
        """Bytes that came and have not been written yet."""
        return len(self._pending)

    def take(self, kind: Kind, body: bytes) -> None:
        """Take in a frame of this stream."""
        if kind is Kind.CREDIT:
            self._credit += CREDIT.unpack(body)[0] if len(body) == CREDIT.size else 0
        elif kind is Kind.END and self._only_reads:
            self._stop_reading()
        elif kind is Kind.END:
            self._ended = True
            self._write()
        elif self._taker is not None:
            self._grant(len(body))
            self._taker(body)
            return
        elif self._writer >= 0:
            if len(self._pending) + len(body) > WINDOW + CHUNK:
                raise ValueError("more bytes on a stream than were granted")
            if self._room is not None:
                self._room -= len(body)
                if self._room < 0:
                    raise ValueError("more bytes on a stream than there is room for")
            self._pending += body
            self._write()
        self._watch()

    def go_on(self) -> None:
        """The link has room again, or none."""
        if self.reading:
            self._watch()

    def close(self) -> None:
        """Close the descriptors."""
        for fd in {self._reader, self._writer} - {-1}:
            self._loop.forget(fd)
            if fd == self._reader and self._on_orphan is not None:
                self._on_orphan(fd)
            else:
                close_quietly(fd)
        self._reader = self._writer = -1
        self.reading = False

    def linger(self) -> None:
        """The link is gone: what has come is written as far as somebody takes it, and nothing else is done."""
        reader, self._reader = self._reader, -1
        self.reading, self._ended = False, True
        if reader >= 0 and reader != self._writer:
            self._loop.forget(reader)
            close_quietly(reader)
        self._watch()

    def _watch(self) -> None:
        held = self._link.crowded or (self._link.holding and self._stream != RPC)
        read = READ if self.reading and self._credit > 0 and not held else 0
        write = WRITE if self._pending and self._writer >= 0 else 0
        if self._reader == self._writer:
            self._set(self._reader, read | write)
        else:
            self._set(self._reader if self.reading else -1, read)
            self._set(self._writer, write)

    def _set(self, fd: int, events: int) -> None:
        if fd < 0:
            return
        if events:
            with contextlib.suppress(PermissionError):  # a regular file cannot be polled: it is always ready
                self._loop.watch(fd, events, self._ready)
        else:
            self._loop.forget(fd)

    def _ready(self, events: int) -> None:
        if events & (WRITE | HANGUP) and self._pending:
            self._write()
        if events & (READ | HANGUP) and self.reading:
            self._read()
        self._watch()

    def _read(self) -> None:
        try:
            data = os.read(self._reader, min(CHUNK, max(1, self._credit)))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._credit -= len(data)
            self._link.send(Kind.DATA, self._stream, data)
            return
        self.reading = False
        if self._reader != self._writer:
            self._loop.forget(self._reader)
            close_quietly(self._reader)
            self._reader = -1
        self._link.send(Kind.END, self._stream)
        self._finish()
        if self._on_end is not None:
            self._on_end()

    def _write(self) -> None:
        if self._writer < 0:
            self._pending.clear()
            self._finish()
            return
        try:
            while self._pending:
                with memoryview(self._pending) as data:
                    sent = os.write(self._writer, data)
                del self._pending[:sent]
                self._grant(sent)
        except BlockingIOError:
            return
        except OSError:  # nobody reads any more: what comes is thrown away
            self._grant(len(self._pending))
            self._pending.clear()
            self._close_writer()
            if self._only_writes and not self._ended:
                self._link.send(Kind.END, self._stream)
        if self._ended and not self._pending:
            self._close_writer()
        self._finish()

    def _stop_reading(self) -> None:
        """Nobody takes what is read here."""
        self.reading = False
        if self._reader >= 0:
            self._loop.forget(self._reader)
            close_quietly(self._reader)
            self._reader = -1
        self._finish()

    def _close_writer(self) -> None:
        if self._writer < 0:
            return
        if self._writer == self._reader and self.reading:
            _shut_writing(self._writer)
        else:
            self._loop.forget(self._writer)
            close_quietly(self._writer)
            if self._reader == self._writer:
                self._reader = -1
        self._writer = -1

    def _grant(self, count: int) -> None:
        self._taken += count
        if self._taken >= WINDOW // 4:
            self._link.send(Kind.CREDIT, self._stream, CREDIT.pack(self._taken))
            self._taken = 0

    def _finish(self) -> None:
        if not self.reading and (self._writer < 0 or self._ended) and not self._pending and self._taker is None:
            self.close()
            self._link.left(self._stream)


def _shut_writing(fd: int) -> None:
    if stat.S_ISSOCK(os.fstat(fd).st_mode):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as held:
            held.shutdown(socket.SHUT_WR)
