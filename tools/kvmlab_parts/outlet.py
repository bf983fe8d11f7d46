"""Output on its way from a machine to one of our descriptors, without ever blocking on either."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from dataclasses import dataclass, field

from .stream import Stream

CHUNK = 65536
_WITHOUT_BLOCKING = select.PIPE_BUF
"""What fits into a pipe that poll(2) calls writable."""


@dataclass(slots=True)
class Outlet:
    """One stream of a command.

    Attributes:
        source: Where it comes from.
        sink: The descriptor it goes to.
        stream: Knows where it ends.
        pending: What was received and not written yet.
        closed: Whether the other end of the source is gone.
    """

    source: socket.socket
    sink: int
    stream: Stream
    pending: bytearray = field(default_factory=bytearray)
    closed: bool = False

    @property
    def done(self) -> bool:
        return self.stream.ended and not self.pending

    def receive(self) -> None:
        """Take what is there. The end comes when the machine is gone."""
        try:
            data = self.source.recv(CHUNK)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        self.pending += self.stream.feed(data)
        self.closed = not data

    def write(self) -> None:
        """Pass on some of it.

        Raises:
            OSError: It cannot be written; BrokenPipeError where nobody reads it any more.
        """
        with contextlib.suppress(BlockingIOError):  # another process made our standard output so
            written = os.write(self.sink, self.pending[:_WITHOUT_BLOCKING])
            del self.pending[:written]
