"""One end of the stream between host and machine: frames in and out, and the descriptors joined to its streams.

Both sides use this. Neither waits for anything but its loop: what cannot be written yet is kept, within the bounds that
credit sets, and whoever does not read holds up only what belongs to them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable

from agentenv.guest.pumping import HANGUP, READ, WRITE, Loop, close_quietly
from agentenv.wire.frames import CHUNK, CREDIT, WINDOW, Kind, Splitter, frame

_MOST_QUEUED = 4 << 20
_READ = 1 << 18


class Link:
    """A stream of frames over a descriptor that can be polled.

    Attributes:
        on_frame: Takes the frames that are not about byte streams: kind and body.
        on_lost: Called once when the stream has ended or is not the protocol, with the reason.
    """

    def __init__(
        self,
        loop: Loop,
        fd: int,
        *,
        max_body: int,
        on_frame: Callable[[Kind, bytes], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Take over a descriptor.

        Args:
            loop: Where it is watched.
            fd: The stream; closed with the link.
            max_body: The largest frame that is accepted.
            on_frame: See the attributes.
            on_lost: See the attributes.
        """
        self._loop = loop
        self._fd = fd
        self._splitter = Splitter(max(max_body, CHUNK))
        self._out = bytearray()
        self._held_up = False
        self._tunnels: dict[int, Tunnel] = {}
        self.on_frame = on_frame
        self.on_lost = on_lost
        os.set_blocking(fd, False)
        loop.watch(fd, READ, self._ready)

    @property
    def open(self) -> bool:
        """Whether frames can be sent."""
        return self._fd >= 0

    @property
    def crowded(self) -> bool:
        """Whether so much waits to be sent that streams should not add to it."""
        return len(self._out) > _MOST_QUEUED

    @property
    def flushed(self) -> bool:
        """Whether everything has been handed to the kernel."""
        return not self._out

    def accept(self, max_body: int) -> None:
        """Accept frames as large as this from now on."""
        self._splitter.max_body = max(max_body, CHUNK)

    def send(self, kind: Kind, stream: int = 0, body: bytes = b"") -> None:
        """Send a frame, as soon as there is room."""
        if self._fd < 0:
            return
        self._out += frame(kind, stream, body)
        self._flush()

    def join(
        self,
        stream: int,
        *,
        reader: int = -1,
        writer: int = -1,
        taker: Callable[[bytes], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Join descriptors to a stream; they are closed with it.

        Args:
            stream: Its number.
            reader: What is read here goes out on the stream.
            writer: What comes on the stream is written here. May be the same as ``reader``, for a socket.
            taker: Instead of ``writer``: is called with what comes.
            on_end: Called when there is nothing more to read.
        """
        old = self._tunnels.pop(stream, None)
        if old is not None:
            old.close()
        self._tunnels[stream] = Tunnel(self, self._loop, stream, reader, writer, taker, on_end)

    def put(self, stream: int, data: bytes) -> None:
        """Send bytes on a stream that has no reader; for messages, which are few and small."""
        for start in range(0, len(data), CHUNK):
            self.send(Kind.DATA, stream, data[start : start + CHUNK])

    def left(self, stream: int) -> None:
        """A stream is over in both directions."""
        self._tunnels.pop(stream, None)

    def busy(self, stream: int) -> bool:
        """Whether bytes may still come out of a stream's reader."""
        tunnel = self._tunnels.get(stream)
        return tunnel is not None and tunnel.reading

    def close(self) -> None:
        """Close it with every descriptor that is joined to it. Idempotent."""
        if self._fd < 0:
            return
        self._loop.forget(self._fd)
        close_quietly(self._fd)
        self._fd = -1
        for tunnel in list(self._tunnels.values()):
            tunnel.close()
        self._tunnels.clear()

    def _lose(self, why: str) -> None:
        if self._fd >= 0:
            self.close()
            self.on_lost(why)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if events & (READ | HANGUP) and self._fd >= 0:
            self._receive()

    def _receive(self) -> None:
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(f"cannot be read: {error.strerror}")
            return
        if not data:
            self._lose("was closed by the other side")
            return
        try:
            for kind, stream, body in self._splitter.feed(data):
                if kind in (Kind.DATA, Kind.END, Kind.CREDIT):
                    tunnel = self._tunnels.get(stream)
                    if tunnel is not None:
                        tunnel.take(kind, body)
                else:
                    self.on_frame(kind, body)
        except ValueError as error:
            self._lose(f"broke the protocol: {error}")

    def _flush(self) -> None:
        try:
            while self._out and self._fd >= 0:
                with memoryview(self._out) as data:
                    sent = os.write(self._fd, data[: 1 << 20])
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            self._lose(f"cannot be written: {error.strerror}")
        if self._fd >= 0:
            self._loop.watch(self._fd, READ | (WRITE if self._out else 0), self._ready)
            if self.crowded:
                self._held_up = True
            elif self._held_up:
                self._held_up = False
                for tunnel in list(self._tunnels.values()):
                    tunnel.go_on()


class Tunnel:
    """A stream of a link, joined to descriptors. Made by ``Link.join``.

    Attributes:
        reading: Whether bytes may still come from its reader.
    """

    def __init__(
        self,
        link: Link,
        loop: Loop,
        stream: int,
        reader: int,
        writer: int,
        taker: Callable[[bytes], None] | None,
        on_end: Callable[[], None] | None,
    ) -> None:
        """See ``Link.join``."""
        self._link, self._loop, self._stream = link, loop, stream
        self._reader, self._writer, self._taker, self._on_end = reader, writer, taker, on_end
        self._credit = WINDOW
        self._taken = 0  # bytes that were passed on and not yet granted anew
        self._pending = bytearray()
        self._ended = False
        self.reading = reader >= 0
        for fd in {reader, writer} - {-1}:
            os.set_blocking(fd, False)
        self._watch()

    def take(self, kind: Kind, body: bytes) -> None:
        """Take in a frame of this stream."""
        if kind is Kind.CREDIT:
            self._credit += CREDIT.unpack(body)[0] if len(body) == CREDIT.size else 0
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
            self._pending += body
            self._write()
        self._watch()

    def go_on(self) -> None:
        """The link has room again."""
        if self.reading:
            self._watch()

    def close(self) -> None:
        """Close the descriptors."""
        for fd in {self._reader, self._writer} - {-1}:
            self._loop.forget(fd)
            close_quietly(fd)
        self._reader = self._writer = -1
        self.reading = False

    def _watch(self) -> None:
        read = READ if self.reading and self._credit > 0 and not self._link.crowded else 0
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
        if self._ended and not self._pending:
            self._close_writer()
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
