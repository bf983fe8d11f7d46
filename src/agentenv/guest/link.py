"""One end of the stream between host and machine: frames in and out, and the descriptors joined to its streams.

Both sides use this. Neither waits for anything but its loop: what cannot be written yet is kept, within the bounds that
credit sets, and whoever does not read holds up only what belongs to them.

A link outlives its descriptor where both sides agree on it: they ``hold`` it, so that nothing but requests goes out,
let go of the descriptor (``rest``), and ``go_on`` with another one. What was held goes out with ``release``, and not a
byte is lost; or it is for nobody any more (``abandon``), as in a copy of a machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from agentenv.guest.pumping import HANGUP, READ, WRITE, Loop, close_quietly
from agentenv.guest.tunnel import Tunnel
from agentenv.wire.frames import CHUNK, RPC, WINDOW, Kind, Splitter, frame

_MOST_QUEUED = 4 << 20
_OF_STREAMS = (Kind.DATA, Kind.END, Kind.CREDIT)
# Thousands of frames without a body fit into what is read at once, and others wait until all are looked at.
_READ, _LITTLE = 1 << 18, 1 << 14


class Link:
    """A stream of frames over a descriptor that can be polled.

    Attributes:
        on_frame: Takes the frames that are not about byte streams: kind and body.
        on_lost: Called once when the stream has ended or is not the protocol, with the reason.
        holding: Whether nothing but requests goes out.
    """

    def __init__(
        self,
        loop: Loop,
        fd: int,
        *,
        max_body: int,
        on_frame: Callable[[Kind, bytes], None],
        on_lost: Callable[[str], None],
        lingers: bool = False,
    ) -> None:
        """Take over a descriptor.

        Args:
            loop: Where it is watched.
            fd: The stream; closed with the link.
            max_body: The largest frame that is accepted.
            on_frame: See the attributes.
            on_lost: See the attributes.
            lingers: Whether what came on streams is written to its end when the descriptor is lost, until ``close``.
        """
        self._loop = loop
        self._lingers = lingers
        self._fd = fd
        self._splitter = Splitter(max(max_body, CHUNK))
        self._out = bytearray()
        self._kept = bytearray()
        self._held_up = False
        self._resting = False
        self.holding = False
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

    @property
    def drained(self) -> bool:
        """Whether every stream that is read here has ended, and what was read is on its way."""
        return not any(tunnel.reading for tunnel in self._tunnels.values())

    @property
    def unwritten(self) -> int:
        """Bytes of all streams but that of requests that nobody has taken yet here."""
        return self.unwritten_on(*(stream for stream in self._tunnels if stream != RPC))

    def unwritten_on(self, *streams: int) -> int:
        """Bytes of streams that nobody has taken yet here."""
        return sum(self._tunnels[stream].unwritten for stream in streams if stream in self._tunnels)

    def accept(self, max_body: int) -> None:
        """Accept frames as large as this from now on."""
        self._splitter.max_body = max(max_body, CHUNK)

    def send(self, kind: Kind, stream: int = 0, body: bytes = b"") -> None:
        """Send a frame, as soon as there is room."""
        if self._fd < 0 and not self._resting:
            return
        if self.holding and (stream != RPC or kind not in _OF_STREAMS):
            self._kept += frame(kind, stream, body)
            return
        self._out += frame(kind, stream, body)
        self._flush()

    def hold(self) -> None:
        """From now on send nothing but requests and their answers; the rest waits."""
        self.holding = True
        self._look_again()

    def rest(self) -> None:
        """Let go of the descriptor, and keep everything else until ``go_on``."""
        self._let_go()
        self._resting = self.holding = True

    def go_on(self, fd: int) -> None:
        """Take over another descriptor; still nothing but requests goes out."""
        self._let_go()
        self._fd, self._resting = fd, False
        self._splitter = Splitter(self._splitter.max_body)
        os.set_blocking(fd, False)
        self._loop.watch(fd, READ, self._ready)
        self._flush()

    def release(self) -> None:
        """Send what was held, and everything from now on."""
        self.holding = False
        self._out += self._kept
        self._kept.clear()
        self._flush()
        self._look_again()

    def abandon(self) -> None:
        """Forget every stream but that of requests: there is nobody any more at their other ends."""
        self._kept.clear()
        for stream in [stream for stream in self._tunnels if stream != RPC]:
            self._tunnels.pop(stream).close()
        self.holding = False

    def join(
        self,
        stream: int,
        *,
        reader: int = -1,
        writer: int = -1,
        taker: Callable[[bytes], None] | None = None,
        on_end: Callable[[], None] | None = None,
        on_orphan: Callable[[int], None] | None = None,
        credit: int = WINDOW,
        most_bytes: int | None = None,
    ) -> None:
        """Join descriptors to a stream; they are closed with it.

        Args:
            stream: Its number.
            reader: What is read here goes out on the stream.
            writer: What comes on the stream is written here. May be the same as ``reader``, for a socket.
            taker: Instead of ``writer``: is called with what comes.
            on_end: Called when there is nothing more to read.
            on_orphan: Takes over ``reader`` when nobody is there any more to send its bytes to; without, it is closed.
            credit: Bytes that may go out before the other side grants any; with 0 not even an end is noticed before.
            most_bytes: Most that the other side may ever send; more is not the protocol.
        """
        old = self._tunnels.pop(stream, None)
        if old is not None:
            old.close()
        self._tunnels[stream] = Tunnel(
            self, self._loop, stream, reader, writer, taker, on_end, on_orphan, credit, most_bytes
        )

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

    def joined(self, stream: int) -> bool:
        """Whether a stream is not over yet."""
        return stream in self._tunnels

    def cut(self, stream: int) -> None:
        """End a stream in both directions, and tell the other side; what it still sends is thrown away."""
        tunnel = self._tunnels.pop(stream, None)
        if tunnel is not None:
            tunnel.close()
            self.send(Kind.END, stream)

    def exhaust(self) -> None:
        """Take in all that has come; for a link whose other side is gone, and sends no more."""
        while self._fd >= 0 and self._receive():
            pass

    def close(self) -> None:
        """Close it with every descriptor that is joined to it. Idempotent."""
        self._let_go()
        self._resting = False
        self._out.clear()
        self._kept.clear()
        for tunnel in list(self._tunnels.values()):
            tunnel.close()
        self._tunnels.clear()

    def _linger(self) -> None:
        """Close it, but for what has come and was not taken yet."""
        lingering = {stream: tunnel for stream, tunnel in self._tunnels.items() if tunnel.unwritten}
        for stream in lingering:
            del self._tunnels[stream]
        self.close()
        self._tunnels = lingering
        for tunnel in list(lingering.values()):
            tunnel.linger()

    def _let_go(self) -> None:
        if self._fd >= 0:
            self._loop.forget(self._fd)
            close_quietly(self._fd)
            self._fd = -1

    def _look_again(self) -> None:
        for tunnel in list(self._tunnels.values()):
            tunnel.go_on()

    def _lose(self, why: str) -> None:
        if self._fd < 0:
            return
        if self.holding and "protocol" not in why:  # the other side has let go of it first
            self.rest()
            return
        if self._lingers:
            self._linger()
        else:
            self.close()
        self.on_lost(why)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if events & (READ | HANGUP) and self._fd >= 0:
            self._receive()

    def _receive(self) -> bool:
        """Take in what has come; returns whether that was anything."""
        try:
            data = os.read(self._fd, min(_READ, max(_LITTLE, self._splitter.missing)))
        except BlockingIOError:
            return False
        except OSError as error:
            self._lose(f"cannot be read: {error.strerror}")
            return False
        if not data:
            self._lose("was closed by the other side")
            return False
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
        return True

    def _flush(self) -> None:
        try:
            while self._out and self._fd >= 0:
                with memoryview(self._out) as data:
                    sent = os.write(self._fd, data[: 1 << 20])
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            if self._lingers:  # what was sent before is still to be read, and the end is behind it
                self._out.clear()
            else:
                self._lose(f"cannot be written: {error.strerror}")
        if self._fd >= 0:
            self._loop.watch(self._fd, READ | (WRITE if self._out else 0), self._ready)
            if self.crowded:
                self._held_up = True
            elif self._held_up:
                self._held_up = False
                self._look_again()
